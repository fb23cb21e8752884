"""Policies: whose signatures the images of a gallery need. Parsing is strict: an ignored field would be a security
hole."""

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final

import msgspec

from corral.base.errors import InvalidInput

SECTION: Final = "verification"
_KEYLESS: Final = ("issuer", "issuer_regex", "identity", "identity_regex", "not_before")
UNSIGNED: Final = "unsigned"
SUMS: Final = "sha256"
_KNOWN: Final = (*_KEYLESS, "public_key", UNSIGNED)
_LONGEST: Final = 4096
_LONGEST_KEY: Final = 64 * 1024
_SHOWN: Final = 200
_PEM: Final = re.compile(r"-----BEGIN PUBLIC KEY-----\s([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----")
_Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class Verification(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Accepts either an identity that Sigstore's authority certified, or keys. All stated fields must match."""

    issuer: str = ""
    """The OpenID Connect issuer that authenticated the signer."""
    issuer_regex: str = ""
    """Searched anywhere in the issuer, as in LocalAI: anchor it with ^ and $."""
    identity: str = ""
    """The signer: a mail address, or the URI of a workflow."""
    identity_regex: str = ""
    not_before: datetime | None = None
    """Lower bound for the earliest proven time of the signature."""
    public_key: str = ""
    """One or several PEM blocks, or one key as bare base64. A signature by any of them is accepted."""
    unsigned: str = ""
    """`sha256`: archives, which cannot be signed, are accepted if their entry has a sum. Empty: they are refused."""

    @property
    def is_keyless(self) -> bool:
        return not self.public_key

    @property
    def accepts_sums(self) -> bool:
        """Whether the sum of an archive, which stands in the gallery, counts where a signature cannot be."""
        return self.unsigned == SUMS


def read_policy(stated: Mapping[str, str]) -> Verification | None:
    """Parse a policy; None if it is empty. InvalidInput names the invalid field."""
    texts = {key: text for key, value in stated.items() if (text := _text(key, value))}
    if not texts:
        return None
    if texts.get(UNSIGNED, SUMS) != SUMS:
        raise _problem(UNSIGNED, f"must be {SUMS}, got {texts[UNSIGNED][:_SHOWN]!r}")
    if "public_key" in texts:
        return _keyed(texts)
    for name in ("issuer", "identity"):
        if name not in texts and f"{name}_regex" not in texts:
            raise _problem(name, f"is missing: a policy without a key needs {name} or {name}_regex")
        pattern = texts.get(f"{name}_regex", "")
        try:
            re.compile(pattern)
        except re.error as error:
            problem = f"is not a regular expression: {error} in {pattern[:_SHOWN]!r}"
            raise _problem(f"{name}_regex", problem) from error
    not_before = _moment(texts.pop("not_before", ""))
    return Verification(**texts, not_before=not_before)


def _text(key: str, value: object) -> str:
    if key not in _KNOWN:
        raise _problem(key[:_SHOWN], f"is unknown; known are {', '.join(_KNOWN)}")
    if not isinstance(value, str):
        raise _problem(key, f"must be text, got {type(value).__name__}")
    most = _LONGEST_KEY if key == "public_key" else _LONGEST
    if len(value) > most:
        raise _problem(key, f"has more than {most} characters")
    return value.strip()


def _keyed(texts: Mapping[str, str]) -> Verification:
    keyless_names = [name for name in _KEYLESS if name in texts]
    if "not_before" in keyless_names:
        raise _problem("not_before", "needs a proven time, and a signature by a key has none")
    if keyless_names:
        raise _problem("public_key", f"cannot stand beside {keyless_names[0]}: a policy names keys, or an identity")
    key_documents(texts["public_key"])
    return Verification(public_key=texts["public_key"], unsigned=texts.get(UNSIGNED, ""))


def key_documents(text: str) -> list[bytes]:
    """Return the keys of a policy as DER bytes. Their content is not checked."""
    blocks = _PEM.findall(text)
    if not blocks and "-----" not in text:
        blocks = [text]
    try:
        documents = [base64.b64decode("".join(block.split()), validate=True) for block in blocks]
    except binascii.Error:
        documents = []
    if not documents or not all(documents) or len(blocks) != max(1, text.count("-----BEGIN ")):
        raise _problem("public_key", "must be a PEM block that begins with -----BEGIN PUBLIC KEY-----, or its base64")
    return documents


def _moment(text: str) -> datetime | None:
    if not text:
        return None
    try:
        return msgspec.convert(text, type=_Moment)
    except msgspec.ValidationError:
        raise _problem("not_before", f"must be a time such as 2026-01-31T00:00:00Z, got {text[:_SHOWN]!r}") from None


def _problem(name: str, text: str) -> InvalidInput:
    return InvalidInput(f"{SECTION}.{name}", text)


def expected_signer(policy: Verification) -> str:
    """Describe the signer that a keyless policy expects, for error messages."""
    identity_words = [*_stated("identity", policy.identity, policy.identity_regex)]
    issuer_words = [*_stated("issuer", policy.issuer, policy.issuer_regex)]
    since = f", not before {policy.not_before.isoformat()}" if policy.not_before else ""
    return f"a signature by the {' and '.join(identity_words)} of the {' and '.join(issuer_words)}{since}"


def _stated(name: str, value: str, pattern: str) -> list[str]:
    exact = [f"{name} {value}"] if value else []
    return exact + ([f"{name} that matches {pattern}"] if pattern else [])


def signer_problem(policy: Verification, *, issuer: str, identities: list[str]) -> str:
    """Return why a certificate's signer does not match the policy; empty if it does."""
    if not _matches(issuer, policy.issuer, policy.issuer_regex):
        return f"it was issued by way of {_shown(issuer)}"
    if not any(_matches(identity, policy.identity, policy.identity_regex) for identity in identities):
        return f"it was made by {', '.join(map(_shown, identities)) or 'nobody that it names'}"
    return ""


def _matches(actual: str, value: str, pattern: str) -> bool:
    """Match a value or a pattern. Unprintable text never matches: a line break would let $ match before the end."""
    if not actual or not actual.isprintable() or len(actual) > _LONGEST:
        return False
    return (not value or actual == value) and (not pattern or re.search(pattern, actual) is not None)


def _shown(name: str) -> str:
    return repr(name[:_SHOWN]) if name else "no issuer"


def time_problem(policy: Verification, proven: list[datetime]) -> str:
    """Return why a signature is too old; empty if it is not, or the policy sets no limit."""
    if policy.not_before is None:
        return ""
    if not proven:
        return "its time is not proven"
    earliest = min(proven)
    return "" if earliest >= policy.not_before else f"it was made at {earliest.isoformat()}"
