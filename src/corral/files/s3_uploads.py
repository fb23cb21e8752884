"""Storing files in parts: several at once, and after an interruption only those that are missing.

What was begun is found at the storage itself, so it does not matter who began it. A part that is there counts if it
has the MD5 of the file's bytes; so a file that changed meanwhile is never put together from two. The metadata of an
object are those of whoever began it, and nobody can read them before it is whole: so only an upload whose key says what
it holds is continued, and every other one begins anew.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Final, Self, TypeVar

from corral.base.errors import CorralError
from corral.base.retry import Backoff
from corral.base.tasks import first_failure, in_thread, task_group
from corral.files.file_peer import LocalFileChanged
from corral.files.s3_requests import S3Answer, S3Requests, all_of, one_of
from corral.files.storage import FileToStore, StorageRefused, StorageUnavailable

PART: Final = 5 * 1024 * 1024
"""Bytes per part, the least that S3 takes, unless that makes too many. One per lane may have to be sent twice."""
_MEGABYTE: Final = 1024 * 1024
_MOST_PARTS: Final = 9_000
_LANES: Final = 4
_MOST_AT_ONCE: Final = 16
_ABORT_SECONDS: Final = 5.0
_FINISH_SECONDS: Final = 600.0
"""Storages may copy all parts before they answer."""
_GONE: Final = frozenset({"NoSuchUpload"})
_NO_BUCKET: Final = frozenset({"NoSuchBucket"})
"""Some storages make a bucket when something is stored, and some do not."""
_BACKOFF: Final = Backoff(first=timedelta(milliseconds=200), cap=timedelta(seconds=5), spread=0.2)
_STARTS: Final = 3

T = TypeVar("T")


class UploadGone(CorralError):
    """What was begun is not there any more: somebody finished it, or the storage lost it."""

    code = "upload_gone"


def part_size(size: int) -> int:
    """Bytes of each part but the last, for a file of this size."""
    return max(PART, -(-size // (_MOST_PARTS * _MEGABYTE)) * _MEGABYTE)


def spans(size: int) -> dict[int, tuple[int, int]]:
    """The parts of a file by their numbers, which begin with 1: offset and length."""
    step = part_size(size)
    return {number: (begin, min(step, size - begin)) for number, begin in enumerate(range(0, size, step), 1)}


class _Patience:
    """How long nothing may succeed before it is given up."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._failing_since: float | None = None
        self._failures = 0

    async def keep(self, work: Callable[[], Awaitable[T]]) -> T:
        """Try until it works. StorageUnavailable when nothing did for too long; StorageRefused at once."""
        while True:
            try:
                result = await work()
            except StorageRefused:
                raise
            except StorageUnavailable as error:
                await self._failed(error)
            else:
                self._failing_since, self._failures = None, 0
                return result

    async def _failed(self, error: StorageUnavailable) -> None:
        now = time.monotonic()
        self._failures += 1
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since > self._seconds:
            raise StorageUnavailable(f"no progress for {self._seconds:.0f} s: {error.message}") from error
        await asyncio.sleep(_BACKOFF.steady(self._failures).total_seconds())


class _Reading:
    """Reads pieces of a file in threads. On leaving it waits for the last one.

    The HTTP client cancels the task that asks for pieces and does not wait for it, but the caller closes the file.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._lock.acquire()

    async def of(self, read: Callable[[], bytes]) -> bytes:
        async with self._lock:
            return await in_thread(read)


class S3Uploads:
    """Stores files in one bucket."""

    def __init__(self, requests: S3Requests, *, stall: timedelta, patience: timedelta) -> None:
        self._requests = requests
        self._stall = stall.total_seconds()
        self._patience = patience.total_seconds()
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)

    async def send(
        self,
        key: str,
        file: FileToStore,
        *,
        metadata: Mapping[str, str],
        is_there: Callable[[], Awaitable[bool]],
        goes_on: bool,
    ) -> None:
        """Have the file stored as a whole. `is_there` tells whether somebody else finished it meanwhile; `goes_on`:
        whatever was begun under this key was begun for the same bytes, and is continued."""
        headers = {f"x-amz-meta-{name}": value for name, value in metadata.items()}
        patience = _Patience(self._patience)
        if file.mark.size <= PART:
            span = 0, file.mark.size
            await patience.keep(lambda: self._put(key, {}, file, number=1, span=span, headers=headers))
            return
        for left in reversed(range(_STARTS)):
            try:
                await self._send_parts(key, file, headers, patience, goes_on=goes_on)
            except UploadGone as error:
                if await is_there():
                    return
                if not left:
                    raise StorageUnavailable(f"the object storage lost what was sent of {file.name}") from error
            else:
                return

    async def _send_parts(
        self, key: str, file: FileToStore, headers: Mapping[str, str], patience: _Patience, *, goes_on: bool
    ) -> None:
        upload = await patience.keep(lambda: self._begun(key, headers, goes_on=goes_on))
        try:
            etags = await patience.keep(lambda: self._present(key, upload, file))
            await self._send_missing(key, upload, file, etags, patience)
            await patience.keep(lambda: self._finish(key, upload, etags))
        except UploadGone:
            raise
        except BaseException as error:
            if isinstance(error, LocalFileChanged) or not goes_on:
                await self._abort(key, upload)  # nobody would ever continue it
            raise

    async def _send_missing(
        self, key: str, upload: str, file: FileToStore, etags: dict[int, str], patience: _Patience
    ) -> None:
        """Send the parts that have no mark yet."""
        missing = iter([(number, span) for number, span in spans(file.mark.size).items() if number not in etags])

        async def send(number: int, span: tuple[int, int]) -> S3Answer:
            query = {"partNumber": str(number), "uploadId": upload}
            return await self._put(key, query, file, number=number, span=span, headers={})

        async def lane() -> None:
            for number, span in missing:
                answer = await patience.keep(lambda number=number, span=span: send(number, span))  # type: ignore[misc]
                etags[number] = answer.etag

        with first_failure(LocalFileChanged, UploadGone, StorageUnavailable):
            async with task_group() as group:
                for index in range(_LANES):
                    group.create_task(lane(), name=f"parts of {file.name}, lane {index}")
        file.check()

    async def _abort(self, key: str, upload: str) -> None:
        with contextlib.suppress(StorageUnavailable):
            await self._ask("DELETE", key, {"uploadId": upload}, seconds=_ABORT_SECONDS)

    async def _begun(self, key: str, headers: Mapping[str, str], *, goes_on: bool) -> str:
        """The upload of this key that somebody began, if it may be continued, or else a new one."""
        if goes_on:
            answer = await self._ask("GET", "", {"uploads": "", "prefix": key}, tolerated=_NO_BUCKET)
            for upload in all_of(answer.text, "Upload"):
                if one_of(upload, "Key") == key:
                    return one_of(upload, "UploadId")
        answer = await self._ask("POST", key, {"uploads": ""}, headers=headers)
        return one_of(answer.text, "UploadId")

    async def _present(self, key: str, upload: str, file: FileToStore) -> dict[int, str]:
        """The parts that are there and have the file's bytes: their marks by their numbers."""
        etags: dict[int, str] = {}
        file_spans, marker = spans(file.mark.size), "0"
        file.moved.clear()
        while marker:
            answer = await self._ask("GET", key, {"uploadId": upload, "part-number-marker": marker}, tolerated=_GONE)
            if answer.code in _GONE:
                raise UploadGone
            for part in all_of(answer.text, "Part"):
                number, etag = int(one_of(part, "PartNumber") or 0), one_of(part, "ETag").strip('"')
                span = file_spans.get(number)
                if span is None or one_of(part, "Size") != str(span[1]):
                    continue
                if await in_thread(lambda span=span: file.md5(span)) == etag:  # type: ignore[misc]
                    etags[number] = etag
                    file.has(number, span[1])
            is_cut = one_of(answer.text, "IsTruncated") == "true"
            marker = one_of(answer.text, "NextPartNumberMarker") if is_cut else ""
        return etags

    async def _put(
        self,
        key: str,
        query: Mapping[str, str],
        file: FileToStore,
        *,
        number: int,
        span: tuple[int, int],
        headers: Mapping[str, str],
    ) -> S3Answer:
        """Send a range of a file. No byte moves for too long: StorageUnavailable."""
        begin, length = span
        loop = asyncio.get_running_loop()
        async with self._turns, _Reading() as reading:
            try:
                async with asyncio.timeout(self._stall) as limit:

                    async def piece(offset: int, size: int) -> bytes:
                        content = await reading.of(lambda: file.read(offset, size))
                        file.sends(number, size)
                        limit.reschedule(loop.time() + self._stall)
                        return content

                    async def pieces() -> AsyncIterator[bytes]:
                        for offset in range(begin, begin + length, _MEGABYTE):
                            yield await piece(offset, min(_MEGABYTE, begin + length - offset))

                    # One piece goes out with the head; several are read while those before them are sent.
                    body = pieces() if length > _MEGABYTE else await piece(begin, length) if length else b""
                    answer = await self._requests.ask(
                        "PUT", key, query, headers=headers, body=body, length=length, tolerated=_GONE
                    )
            except (TimeoutError, StorageUnavailable) as error:
                file.check()
                file.has(number, 0)
                if isinstance(error, StorageUnavailable):
                    raise
                raise StorageUnavailable(f"the object storage took nothing for {self._stall:.0f} s") from error
        if answer.code in _GONE:
            raise UploadGone
        file.check()
        return answer

    async def _finish(self, key: str, upload: str, etags: Mapping[int, str]) -> None:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{etags[number]}&quot;</ETag></Part>"
            for number in sorted(etags)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        answer = await self._ask("POST", key, {"uploadId": upload}, body=body, tolerated=_GONE, seconds=_FINISH_SECONDS)
        if answer.code in _GONE:
            raise UploadGone

    async def _ask(  # noqa: PLR0913 - the parts of a request
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        tolerated: frozenset[str] = frozenset(),
        seconds: float | None = None,
    ) -> S3Answer:
        try:
            async with asyncio.timeout(seconds or self._stall):
                return await self._requests.ask(
                    method, key, query, headers=headers, body=body, length=len(body or b""), tolerated=tolerated
                )
        except TimeoutError as error:
            raise StorageUnavailable("the object storage does not answer") from error
