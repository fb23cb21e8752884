"""Signed requests to one bucket, for what the client library of `s3.py` does not offer: parts of an upload one by one.

Signatures are Amazon's version 4 over everything but the body, whose digest the receiver of a file checks. Addresses
have the bucket in their path. Answers are read by their few names, and not as XML of a stranger.
"""

import hashlib
import hmac
import html
import re
from collections.abc import AsyncIterable, Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Final
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec
from yarl import URL

from corral.base.http_client import HttpFailed, asked, read_body
from corral.files.storage import KEYS_REFUSED, StorageConfig, StorageRefused, StorageUnavailable, check_key

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_UNSIGNED: Final = "UNSIGNED-PAYLOAD"
_MOST_ANSWER: Final = 8 * 1024 * 1024
_UNRESERVED: Final = "-_.~"
_KEY_REFUSED: Final = frozenset({"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"})
_PASSING: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS})
_PASSING_CODES: Final = frozenset({"InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown"})
"""Whatever the status beside them: a storage may have said 200 before something went wrong."""

Body = bytes | AsyncIterable[bytes]


class S3Answer(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    etag: str
    text: str

    @property
    def code(self) -> str:
        """Amazon's name of what went wrong; empty when nothing did, or the server does not say."""
        return one_of(self.text, "Code") if "<Error>" in self.text else ""


def all_of(text: str, name: str) -> list[str]:
    """The contents of all elements of this name, those within them as they are."""
    return re.findall(rf"<{name}>(.*?)</{name}>", text, re.DOTALL)


def one_of(text: str, name: str) -> str:
    """The text of the first element of this name; empty without one."""
    match = re.search(rf"<{name}>([^<]*)</{name}>", text)
    return html.unescape(match[1]) if match else ""


def signed_headers(
    config: StorageConfig, method: str, url: str, headers: Mapping[str, str], *, at: datetime, payload: str = _UNSIGNED
) -> dict[str, str]:
    """The headers with those that prove who asks. The URL's path and query must be quoted as they will be sent."""
    parts = urlsplit(url)
    stamp = f"{at:%Y%m%dT%H%M%SZ}"
    scope = f"{at:%Y%m%d}/{config.region}/s3/aws4_request"
    whole = {**headers, "host": parts.netloc, "x-amz-content-sha256": payload, "x-amz-date": stamp}
    signed = {name.lower(): value.strip() for name, value in whole.items()}
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    query = "&".join(sorted(parts.query.split("&"))) if parts.query else ""
    canonical = "\n".join([method, parts.path or "/", query, lines, names, payload])
    text = "\n".join([_ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{config.secret_key}".encode()
    for word in scope.split("/"):
        key = hmac.digest(key, word.encode(), "sha256")
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    credential = f"Credential={config.access_key}/{scope}"
    return {**whole, "Authorization": f"{_ALGORITHM} {credential}, SignedHeaders={names}, Signature={signature}"}


class S3Requests:
    """Asks one bucket. Every failure is a StorageUnavailable in words for people; StorageRefused: for good."""

    def __init__(self, config: StorageConfig, session: aiohttp.ClientSession, now: Callable[[], datetime]) -> None:
        self._config = config
        self._session = session
        self._now = now
        self._root = f"{config.url.rstrip('/')}/{quote(config.bucket, safe=_UNRESERVED)}"

    async def ask(  # noqa: PLR0913 - the parts of a request
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        length: int = 0,
        tolerated: frozenset[str] = frozenset(),
    ) -> S3Answer:
        """The answer, if it is a good one or its problem is among those tolerated. An empty key means the bucket."""
        if key:
            check_key(key)
        path = f"/{quote(key, safe=_UNRESERVED + '/')}" if key else ""
        asks = "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in sorted(query.items()))
        url = f"{self._root}{path}?{asks}" if asks else f"{self._root}{path}"
        signed = signed_headers(self._config, method, url, headers or {}, at=self._now())
        if body is not None:
            signed["Content-Length"] = str(length)
        try:
            async with asked(self._session, method, URL(url, encoded=True), headers=signed, data=body) as response:
                content = await read_body(response, _MOST_ANSWER)
                etag = response.headers.get("ETag", "").strip('"')
                answer = S3Answer(status=response.status, etag=etag, text=content.decode(errors="replace"))
        except HttpFailed as error:
            raise StorageUnavailable(f"the object storage at {error.message}") from error
        if (answer.status < HTTPStatus.MULTIPLE_CHOICES and not answer.code) or answer.code in tolerated:
            return answer
        raise self._problem(answer)

    def _problem(self, answer: S3Answer) -> StorageUnavailable:
        summary = f"{answer.status} {answer.code}".strip()
        if answer.code in _PASSING_CODES:
            return StorageUnavailable(f"the object storage answers {summary}")
        if answer.code == "NoSuchBucket":
            return StorageRefused(f"the object storage has no bucket {self._config.bucket}: see storage_bucket")
        if answer.code in _KEY_REFUSED or answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            if answer.code == "RequestTimeTooSkewed":
                return StorageRefused("the object storage refuses requests: its clock and this machine's differ")
            return StorageRefused(KEYS_REFUSED.format(summary))
        if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR and answer.status not in _PASSING:
            return StorageRefused(f"the object storage answers {summary}")
        return StorageUnavailable(f"the object storage answers {summary}")


def _quoted(text: str) -> str:
    return quote(text, safe=_UNRESERVED)
