"""Refusals of HTTP requests. Status and text are part of LocalAI's protocol, so they are raised where the reason is."""

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


def check_method(method: str, *allowed: str) -> None:
    if method not in allowed:
        raise FileRefused(405, "method not allowed")


def bad_request(text: str) -> FileRefused:
    return FileRefused(400, text)


def outside(path: object) -> FileRefused:
    return bad_request(f'path "{path}" is outside allowed directory')


def failed(doing: str, error: OSError) -> FileRefused:
    return FileRefused(500, f"{doing}: {error.strerror or error}")


def disk_full(error: OSError) -> FileRefused:
    return FileRefused(507, f"writing file: {error.strerror or error}")


def try_again(text: str, size: int, total: int) -> FileRefused:
    """LocalAI's frontends take 416 as "look again where the file ends, and continue there"."""
    return FileRefused(416, text, headers={"Content-Range": f"bytes */{total}", "X-File-Size": str(size)})
