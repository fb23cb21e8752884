"""How LocalAI's frontends say no."""

import msgspec


class RefusalDetail(msgspec.Struct, kw_only=True):
    code: int | str = 0
    """The HTTP status, or a word where an inference client shall tell reasons apart."""
    message: str = ""
    type: str = ""


class Refusal(msgspec.Struct, kw_only=True):
    """Body of an error. Whoever presents no valid token gets a mere text."""

    error: RefusalDetail | str = ""


class Acknowledged(msgspec.Struct, kw_only=True):
    """Body of an answer that has nothing else to say."""

    message: str = ""
