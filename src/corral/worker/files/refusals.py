"""Why a request about a file is refused. Status and text are part of LocalAI's protocol, so they are raised where the
reason is found."""

from collections.abc import Mapping

from corral.base.errors import CorralError


class FileRefused(CorralError):
    """The request about a file was refused."""

    code = "file_refused"

    def __init__(self, status: int, text: str, *, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.text = text
        self.headers = dict(headers or {})
        super().__init__(text, status=status)


def bad_request(text: str) -> FileRefused:
    return FileRefused(400, text)


def outside(path: object) -> FileRefused:
    return bad_request(f'path "{path}" is outside allowed directory')


def is_directory() -> FileRefused:
    return bad_request("destination is a directory")


def failed(doing: str, error: OSError) -> FileRefused:
    return FileRefused(500, f"{doing}: {error.strerror or error}")


def no_room(needed: int, free: int) -> FileRefused:
    return FileRefused(507, f"not enough disk space: {needed} bytes are needed and {free} are free")


def disk_full(error: OSError) -> FileRefused:
    return FileRefused(507, f"writing file: {error.strerror or error}")


def wrong_hash(expected: str, got: str) -> FileRefused:
    return bad_request(f"sha256 mismatch: expected {expected} got {got}")


def other_upload(was: str, now: str) -> FileRefused:
    text = f"X-Content-SHA256 mismatch with in-progress upload (was {was}, now {now}); restart from byte 0"
    return FileRefused(409, text)


def elsewhere(start: int, size: int, total: int) -> FileRefused:
    return _try_again(f"Content-Range start {start} does not match current file size {size}", size, total)


def busy(size: int, total: int) -> FileRefused:
    """Another client is sending this file. LocalAI's frontends take 416 as "look again and continue"."""
    return _try_again("another upload of this file is under way", size, total)


def busy_whole() -> FileRefused:
    """Another client is sending this file, and an upload in one piece cannot be resumed."""
    return FileRefused(409, "another upload of this file is under way")


def _try_again(text: str, size: int, total: int) -> FileRefused:
    return FileRefused(416, text, headers={"Content-Range": f"bytes */{total}", "X-File-Size": str(size)})
