"""Admission of a request: its API key, and the model that it names in a JSON body or a multipart form.

Reads the body only as far as routing needs. Everything else in it is passed on as the client wrote it, and the other
parts of a form, such as megabytes of audio, are skipped without a copy.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from hmac import compare_digest
from typing import Final, NamedTuple

import msgspec

from corral.base.clock import Clock
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.gateway.answers import GatewayRefusal
from corral.gateway.head import RequestHead
from corral.gateway.view import Directory
from corral.wire.keys import IMPLIED, LIMITED_INFERENCE, Scope, hash_secret
from corral.wire.sessions import SESSION_EXPIRED, SESSION_EXPIRED_MESSAGE, has_session, hash_token, tokens_in
from corral.wire.view import KeyEntry

_FORM: Final = re.compile(rb"content-type:\s*multipart/form-data\s*;(.*)", re.IGNORECASE | re.DOTALL)
_BOUNDARY: Final = re.compile(rb'(?:^|;)\s*boundary=(?:"([^"]{1,70})"|([^\s";,]{1,70}))', re.IGNORECASE)
_FIELD_NAME: Final = re.compile(
    rb'\r\ncontent-disposition:\s*form-data\s*;(?:[^\r\n]*;)?\s*name="?([^";\r\n]*)', re.IGNORECASE
)
"""Begins with the end of the line before, as every header of a part does: each line is read once."""
_HEAD_BYTES: Final = 16 * 1024
_MOST_PARTS: Final = 256
_MOST_LOOKALIKES: Final = 20_000
"""Maximum number of byte sequences in a form that look like the delimiter. Honest clients choose a boundary without
any."""
_LINE_PADDING: Final = 64
_MAX_KEY: Final = 512
_MAX_NAME: Final = 512
_EMPTY_LIST: Final = re.compile(rb"\[\s*\]")
_LIST: Final = ord("[")
_NOT_FULL: Final = b" \t\r\n]"
"""What follows the bracket where a list may be empty."""
_LONGEST_NUMBER: Final = 1024
_SHOWN: Final = 20
"""How many characters of a number an error message repeats."""
_ABSENT: Final = msgspec.Raw()
_NULL: Final = msgspec.Raw(b"null")
_TRUTHS: Final = (msgspec.Raw(b"true"), msgspec.Raw(b"false"))
_SCHEMA_BEGINNINGS: Final = b"{tf"
"""By which bytes a JSON schema may begin: it is an object, true or false."""
_EMPTY_TEXT: Final = msgspec.Raw(b'""')
_FREE_CHOICES: Final = (msgspec.Raw(b'"auto"'), msgspec.Raw(b'"none"'), _NULL)
"""Values of `tool_choice` that no engine ignores where there are no tools."""
_BLOCKS: Final = re.compile(rb'"content"\s*:\s*[^\s"]')
"""Matches a message whose content is no text."""
_LONGEST_STOPS: Final = 4096
"""Stop sequences of more bytes than this are not checked for being empty."""
_OPENING: Final[dict[Scope, frozenset[str]]] = {
    needed: frozenset(scope.value for scope, implied in IMPLIED.items() if needed in implied) for needed in Scope
}
"""For each scope, the key scopes that grant it."""
_OPENING[Scope.INFERENCE] |= {LIMITED_INFERENCE}
_LISTING: Final = _OPENING[Scope.INFERENCE] | _OPENING[Scope.VIEWER]
_text_decoder: Final = msgspec.json.Decoder(str)
_texts_decoder: Final = msgspec.json.Decoder(str | list[str] | None)


def admit_key(directory: Directory, head: RequestHead, clock: Clock, *, scope: Scope = Scope.INFERENCE) -> KeyEntry:
    """Return the request's key, which is valid now and has this scope. Raise `GatewayRefusal` otherwise.

    Keys are looked up by their hash, so the duration of the lookup reveals nothing about the key.
    """
    if directory.version is None:
        raise _no_view()
    entry = valid_key(directory, head, clock)
    if _OPENING[scope].isdisjoint(entry.scopes):
        raise _missing(scope)
    return entry


def admit_lister(directory: Directory, head: RequestHead, clock: Clock) -> KeyEntry:
    """Return the request's key, which may see the names of models. Raise `GatewayRefusal` otherwise."""
    if directory.version is None:
        raise _no_view()
    entry = valid_key(directory, head, clock)
    if _LISTING.isdisjoint(entry.scopes):
        raise _missing(Scope.INFERENCE)
    return entry


def _no_view() -> GatewayRefusal:
    return GatewayRefusal.busy(503, "the gateway has not heard from control yet", code="no_view")


def _missing(scope: Scope) -> GatewayRefusal:
    return GatewayRefusal(403, f"this API key may not do that; it needs the scope {scope}", code="missing_scope")


def valid_key(directory: Directory, head: RequestHead, clock: Clock) -> KeyEntry:
    """Return the request's key, which is valid now, with any scope. Raise `GatewayRefusal` otherwise."""
    hash = head.key_hash or _hash_of_key(head)
    entry = directory.find_key(hash)
    if entry is None or not compare_digest(entry.hash, hash):
        raise _denied("this API key is not valid", "invalid_api_key")
    if entry.expires_at is not None and clock.now().timestamp() >= entry.expires_at:
        raise _denied("this API key has expired", "expired_api_key")
    return entry


def valid_session(directory: Directory, head: RequestHead, clock: Clock) -> KeyEntry:
    """Return the only valid session among the request's cookies. Raise `GatewayRefusal` otherwise.

    Of two valid ones it is not known who asks, so neither counts. Control decides what a session may do.
    """
    now = clock.now().timestamp()
    hashes = map(hash_token, tokens_in(head.cookie.decode("latin-1")))
    valid = [
        entry
        for hash in hashes
        if (entry := directory.find_key(hash)) is not None
        and compare_digest(entry.hash, hash)
        and (entry.expires_at is None or now < entry.expires_at)
    ]
    if len(valid) != 1:
        raise _denied(SESSION_EXPIRED_MESSAGE, SESSION_EXPIRED)
    return valid[0]


def shows_session(head: RequestHead) -> bool:
    """Whether the request shows a session, be it valid or not, and no key, which would count instead."""
    return bool(head.cookie) and head.key is None and has_session(head.cookie.decode("latin-1"))


def _hash_of_key(head: RequestHead) -> str:
    if not head.key:
        raise _denied("an API key is required: send it as `Authorization: Bearer …`", "missing_api_key")
    if len(head.key) > _MAX_KEY:
        raise _denied("this API key is not valid", "invalid_api_key")
    head.key_hash = hash_secret(head.key)
    return head.key_hash


def _denied(message: str, code: str) -> GatewayRefusal:
    return GatewayRefusal(401, message, code=code, headers={"WWW-Authenticate": "Bearer"})


class RequestFields(msgspec.Struct, gc=False):
    """The fields of a request body that the gateway looks at, undecoded. Those that are absent are empty, and so false.

    Clients decide how large the values are, so nothing else of the body is decoded into objects.
    """

    model: msgspec.Raw = _ABSENT
    messages: msgspec.Raw = _ABSENT
    prompt: msgspec.Raw = _ABSENT
    temperature: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    functions: msgspec.Raw = _ABSENT
    function_call: msgspec.Raw = _ABSENT
    modalities: msgspec.Raw = _ABSENT
    max_tokens: msgspec.Raw = _ABSENT
    max_completion_tokens: msgspec.Raw = _ABSENT
    max_output_tokens: msgspec.Raw = _ABSENT
    n: msgspec.Raw = _ABSENT
    top_p: msgspec.Raw = _ABSENT
    logprobs: msgspec.Raw = _ABSENT
    top_logprobs: msgspec.Raw = _ABSENT
    dimensions: msgspec.Raw = _ABSENT
    echo: msgspec.Raw = _ABSENT
    suffix: msgspec.Raw = _ABSENT
    best_of: msgspec.Raw = _ABSENT
    stop: msgspec.Raw = _ABSENT
    stop_sequences: msgspec.Raw = _ABSENT
    system: msgspec.Raw = _ABSENT
    tool_choice: msgspec.Raw = _ABSENT
    logit_bias: msgspec.Raw = _ABSENT
    stream_options: msgspec.Raw = _ABSENT
    response_format: msgspec.Raw = _ABSENT
    container: msgspec.Raw = _ABSENT
    mcp_servers: msgspec.Raw = _ABSENT
    output_config: msgspec.Raw = _ABSENT
    output_format: msgspec.Raw = _ABSENT
    grammar: msgspec.Raw = _ABSENT
    top_n: msgspec.Raw = _ABSENT
    verbosity: msgspec.Raw = _ABSENT
    web_search_options: msgspec.Raw = _ABSENT

    def named(self) -> str:
        """Return the name of the requested model. Raise `GatewayRefusal` when the body has none."""
        try:
            name = _text_decoder.decode(self.model or _EMPTY_TEXT)
        except msgspec.ValidationError:
            if self.model == _NULL:
                raise _missing_model() from None
            raise GatewayRefusal(400, "`model` must be a string", code="invalid_type", param="model") from None
        except UNREADABLE_JSON as error:
            raise _not_json(error) from None
        if not name:
            raise _missing_model()
        if len(name) > _MAX_NAME:
            raise GatewayRefusal(404, "there is no model with such a long name", code="model_not_found", param="model")
        return name

    def has_options(self) -> bool:
        """Whether the body has any of these fields beside the model and messages. Most have none, and this is much
        quicker than to look at each field."""
        absent = msgspec.structs.astuple(self).count(_ABSENT)
        return absent + bool(self.model) + bool(self.messages) != _FIELD_COUNT

    def needs_care(self) -> bool:
        """Whether the request uses a feature that some engines ignore silently or answer wrongly."""
        return bool(
            self.tools
            or self.functions
            or (self.max_tokens and _number(self.max_tokens) == 0)
            or (self.max_completion_tokens and _number(self.max_completion_tokens) == 0)
            or (self.dimensions and self.dimensions != _NULL)
            or (self.echo and self.echo != _NULL)
            or (self.suffix and self.suffix != _NULL)
            or (self.best_of and self.best_of != _NULL)
            or (self.modalities and self.modalities != _NULL)
            or (self.function_call and self.function_call != _NULL)
            or (self.stop_sequences and self.stop_sequences != _NULL)
            or (self.prompt and memoryview(self.prompt)[0] == _LIST)
            or (self.prompt and self.logprobs and self.logprobs != _NULL)
            or (self.tool_choice and self.tool_choice not in _FREE_CHOICES)
            or self.container
            or self.mcp_servers
            or self.output_config
            or self.output_format
            or self.logit_bias
            or self.verbosity
            or self.web_search_options
            or (self.prompt and self.response_format)
        )

    def has_blocks(self) -> bool:
        """Whether a request in Anthropic's form has lists of blocks, of which some engines drop those that they do not
        know."""
        if self.system and memoryview(self.system)[0] == _LIST:
            return True
        return bool(self.messages) and _BLOCKS.search(self.messages) is not None

    def check_messages(self, *, takes_null: bool = True, takes_empty: bool = False) -> None:
        """Raise `GatewayRefusal` for messages that no model can answer but some engines accept.

        `takes_null` tells whether engines know that `"messages": null` are none; `takes_empty`, whether a chat without
        messages has a meaning.
        """
        messages = self.messages
        if not messages:
            return
        view = memoryview(messages)
        if view[0] == _LIST:
            if view[1] in _NOT_FULL and not takes_empty and _EMPTY_LIST.match(messages):
                raise GatewayRefusal(400, "`messages` must not be empty", code="invalid_value", param="messages")
        elif not takes_null or messages != _NULL:
            raise GatewayRefusal(400, "`messages` must be a list", code="invalid_type", param="messages")

    def check_options(self) -> None:
        """Raise `GatewayRefusal` for values of options that no model can serve but some engines accept."""
        if (
            self.temperature
            or self.max_tokens
            or self.max_completion_tokens
            or self.max_output_tokens
            or self.n
            or self.top_p
            or self.top_logprobs
            or self.top_n
        ):
            self._check_numbers()
        if (
            self.stop
            or self.stop_sequences
            or self.system
            or self.tool_choice
            or self.logit_bias
            or self.stream_options
            or self.response_format
            or self.top_logprobs
            or self.top_n
            or self.grammar
        ):
            self._check_shapes()

    def _check_numbers(self) -> None:
        """Refuse numbers that llama.cpp takes for others: it cuts fractions off, keeps the lowest 32 bits, and reads
        true as 1."""
        for name, limits in _NUMBERS.items():
            value: msgspec.Raw = getattr(self, name)
            number = _number(value) if value else None
            if value in _TRUTHS:
                raise GatewayRefusal(400, f"`{name}` must be a number", code="invalid_type", param=name)
            if number is not None and not limits.allow(number):
                text = f"`{name}` must be {limits}, and is {bytes(value).decode()[:_SHOWN]}"
                raise GatewayRefusal(400, text, code="invalid_value", param=name)

    def _check_stops(self) -> None:
        """Refuse empty stop sequences, which llama.cpp finds before the first word."""
        for name in ("stop", "stop_sequences"):
            value: msgspec.Raw = getattr(self, name)
            if len(value) <= _LONGEST_STOPS and _has_empty_text(value):
                text = f"`{name}` must not have an empty string"
                raise GatewayRefusal(400, text, code="invalid_value", param=name)

    def _check_shapes(self) -> None:
        """Refuse values of a kind that llama.cpp ignores."""
        for name, (first_bytes, kinds) in _SHAPES.items():
            value: msgspec.Raw = getattr(self, name)
            if value and memoryview(value)[0] not in first_bytes and (self.messages or name != "response_format"):
                raise GatewayRefusal(400, f"`{name}` must be {kinds}", code="invalid_type", param=name)
        if self.stop or self.stop_sequences:
            self._check_stops()
        if self.response_format and self.messages:
            self._check_format()

    def _check_format(self) -> None:
        """Refuse the format of a chat's answer that says none: llama.cpp takes it for a text, or for any JSON."""
        try:
            answer_format = _format_decoder.decode(self.response_format)
        except UNREADABLE_JSON:
            text = "`response_format` must have a type, and `json_schema` must be an object"
            raise GatewayRefusal(400, text, code="invalid_type", param="response_format") from None
        if answer_format is None or answer_format.type != "json_schema":
            return
        schema = answer_format.json_schema.schema if answer_format.json_schema else _ABSENT
        if not schema or memoryview(schema)[0] not in _SCHEMA_BEGINNINGS:
            name = "response_format.json_schema.schema"
            raise GatewayRefusal(400, f"`{name}` must be a JSON schema", code="invalid_value", param=name)


_FIELD_COUNT: Final = len(RequestFields.__struct_fields__)


class _SchemaField(msgspec.Struct, gc=False):
    """The part `json_schema` of a format, with the schema undecoded: clients decide how large that is."""

    schema: msgspec.Raw = _ABSENT


class _AnswerFormat(msgspec.Struct, gc=False):
    """The format that a chat's answer shall have."""

    type: str
    json_schema: _SchemaField | None = None


class _Limits(NamedTuple):
    """Which numbers a field may have."""

    least: float
    most: int
    is_whole: bool

    def allow(self, number: float) -> bool:
        return self.least <= number <= self.most and (not self.is_whole or number.is_integer())

    def __str__(self) -> str:
        range = f"between {self.least} and {self.most}" if self.least >= 0 else f"at most {self.most}"
        return f"a whole number, {range}" if self.is_whole else range


_TOKENS: Final = _Limits(-math.inf, 2**31 - 1, is_whole=True)
"""Engines decide what less than one token means: some take -1 for no limit."""
_NUMBERS: Final[Mapping[str, _Limits]] = {
    "temperature": _Limits(0, 2, is_whole=False),  # OpenAI's own limit
    "max_tokens": _TOKENS,
    "max_completion_tokens": _TOKENS,
    "max_output_tokens": _TOKENS,
    "n": _TOKENS,
    "top_p": _Limits(0, 1, is_whole=False),
    "top_logprobs": _Limits(0, 2**31 - 1, is_whole=True),
    "top_n": _Limits(0, 2**31 - 1, is_whole=True),
}

_SHAPES: Final[Mapping[str, tuple[bytes, str]]] = {
    "stop": (b'"[n', "a string or a list of strings"),
    "stop_sequences": (b"[n", "a list of strings"),
    "system": (b'"[n', "a string or a list of blocks"),
    "tool_choice": (b'"{n', "a string or an object"),
    "logit_bias": (b"{[n", "an object"),
    "top_logprobs": (b"-0123456789n", "a whole number"),
    "top_n": (b"-0123456789n", "a whole number"),
    "grammar": (b'"n', "a string"),
    "stream_options": (b"{n", "an object"),
    "response_format": (b"{n", "an object"),  # of a chat: speech and pictures name theirs by a word
}
"""By which bytes a value may begin, and what it is then. `null` means that it is not given."""


def _number(value: msgspec.Raw) -> float | None:
    """Return the number, or None when it is not one or is implausibly long; the engine judges those."""
    if value == _NULL or len(value) > _LONGEST_NUMBER:
        return None
    try:
        return float(bytes(value))
    except ValueError:
        return None


def _has_empty_text(value: msgspec.Raw) -> bool:
    """Whether it is an empty string, or a list of strings with one. The engine judges lists of anything else."""
    if b'""' not in bytes(value):
        return False
    try:
        texts = _texts_decoder.decode(value)
    except UNREADABLE_JSON:
        return False
    return texts == "" or (isinstance(texts, list) and "" in texts)


_decoder: Final = msgspec.json.Decoder(RequestFields)
_format_decoder: Final = msgspec.json.Decoder(_AnswerFormat | None)


def asked_in_json(body: bytes) -> RequestFields:
    """Read the routing fields of a JSON body. Raise `GatewayRefusal` when it cannot be read."""
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError:
        raise GatewayRefusal(400, "the body must be a JSON object", code="invalid_body") from None
    except UNREADABLE_JSON as error:
        raise _not_json(error if body else "it is empty") from None


def _not_json(why: object) -> GatewayRefusal:
    return GatewayRefusal(400, f"the body is not valid JSON: {why}", code="invalid_json")


def asked_in_form(head: RequestHead, body: bytes) -> RequestFields:
    """Read the routing fields of a multipart form body."""
    return RequestFields(model=msgspec.Raw(msgspec.json.encode(model_in_form(head.lines, body))))


def _missing_model() -> GatewayRefusal:
    return GatewayRefusal(400, "`model` is missing: name the model to ask", code="missing_model", param="model")


class _Delimiter(NamedTuple):
    start: int
    end: int
    is_last: bool


def model_in_form(lines: Iterable[bytes], body: bytes) -> str:
    """Return the field `model` of a form, or "" when it is missing. Raise `GatewayRefusal` for other bodies."""
    start, end = next(model_parts(lines, body), (0, 0))
    return body[start : min(end, start + _HEAD_BYTES)].decode(errors="replace")


def form_boundary(lines: Iterable[bytes]) -> bytes:
    """Return what separates the parts of a form. Raise `GatewayRefusal` when these headers announce no form."""
    form = next((match for line in lines if (match := _FORM.fullmatch(line))), None)
    if form is None:
        raise GatewayRefusal(400, "the body must be multipart/form-data", code="invalid_body")
    boundary = _BOUNDARY.search(form[1])
    if boundary is None:
        raise GatewayRefusal(400, "the Content-Type of the form names no boundary", code="invalid_body")
    return boundary[1] or boundary[2]


def model_parts(
    lines: Iterable[bytes], body: bytes, *, field_name: Callable[[bytes], bytes] | None = None
) -> Iterator[tuple[int, int]]:
    """Yield where the values of all fields `model` of a form begin and end. Raise `GatewayRefusal` for other bodies.

    Each search starts where the last one ended, so the body is scanned once. `field_name` reads the name of a field
    from the head of its part; without it, the first name that is found there counts.
    """
    delimiters = _Delimiters(body, form_boundary(lines))
    delimiter = delimiters.first()
    if delimiter is None:
        raise GatewayRefusal(400, "the body is not the form that its Content-Type names", code="invalid_body")
    for _ in range(_MOST_PARTS):
        if delimiter.is_last:
            return
        head_end = body.find(b"\r\n\r\n", delimiter.end, delimiter.end + _HEAD_BYTES)
        following = delimiters.after(head_end) if head_end >= 0 else None
        if following is None:
            raise GatewayRefusal(400, "the form is cut off, or damaged", code="invalid_body")
        part_head = body[delimiter.end : head_end]
        if field_name is not None:
            is_model = field_name(part_head) == b"model"
        else:
            is_model = (name := _FIELD_NAME.search(part_head)) is not None and name[1] == b"model"
        if is_model:
            yield head_end + 4, max(following.start, head_end + 4)
        delimiter = following
    raise GatewayRefusal(400, f"the form has more than {_MOST_PARTS} parts", code="invalid_body")


class _Delimiters:
    """The delimiters of a form, each with the line that it ends."""

    def __init__(self, body: bytes, boundary: bytes) -> None:
        self._body = body
        self._mark = b"--" + boundary
        self._lookalikes = 0

    def first(self) -> _Delimiter | None:
        return self._find(self._mark, 0) if self._body.startswith(self._mark) else self.after(0)

    def after(self, start: int) -> _Delimiter | None:
        return self._find(b"\r\n" + self._mark, start)

    def _find(self, mark: bytes, start: int) -> _Delimiter | None:
        """Find the next delimiter from `start`. A delimiter ends with its line; anything longer is content of the
        part."""
        body = self._body
        while (start := body.find(mark, start)) >= 0:
            end = start + len(mark)
            if body.startswith(b"--", end):
                return _Delimiter(start, end, is_last=True)
            line_end = body.find(b"\r\n", end, end + _LINE_PADDING)
            if line_end >= 0 and not body[end:line_end].strip(b" \t"):
                return _Delimiter(start, line_end, is_last=False)
            start = end
            self._lookalikes += 1
            if self._lookalikes >= _MOST_LOOKALIKES:
                raise GatewayRefusal(400, "the form's boundary occurs in its content", code="invalid_body")
        return None
