"""The key that secrets are sealed with: made once, kept in a private file, the same on all frontends."""

import base64
import binascii
import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from corral.base.errors import InvalidInput, PathNotUsable
from corral.base.ids import new_secret
from corral.base.private_files import make_private_directory, read_private, write_private

_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class SecretsKey:
    """256 bits; written as 43 characters of URL-safe base64."""

    raw: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> Self:
        return cls.from_text(new_secret())

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read what `to_text` wrote; the text itself never appears in an error."""
        cleaned = text.strip().rstrip("=")
        try:
            raw = base64.b64decode(cleaned + "=" * (-len(cleaned) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if len(raw) != _BYTES:
            raise InvalidInput("secrets key", f"it must be {_BYTES} bytes in URL-safe base64, which is 43 characters")
        return cls(raw)

    def to_text(self) -> str:
        return base64.urlsafe_b64encode(self.raw).decode().rstrip("=")

    @classmethod
    def load_or_create(cls, path: Path) -> Self:
        """The key in the file. Of several processes that find none, one makes it and all get the same."""
        found = read_private(path)
        if found is None:
            _create(path, cls.generate().to_text())
            found = read_private(path)
        if found is None:
            raise PathNotUsable(f"{path} went away while it was being created")
        try:
            return cls.from_text(found.decode("ascii", errors="replace"))
        except InvalidInput as error:
            raise PathNotUsable(f"{path} does not hold a secrets key: {error.problem}") from None


def _create(path: Path, text: str) -> None:
    """Write beside, then link: a link never replaces a file that somebody else put there first."""
    make_private_directory(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{new_secret()[:8]}")
    write_private(draft, f"{text}\n".encode())
    try:
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    except OSError as error:
        raise PathNotUsable(f"cannot write {path}: {error.strerror}") from error
    finally:
        os.unlink(draft)
