"""Errors of engines in OpenAI's words. The messages are those that llama.cpp and vLLM were seen to answer."""

import json
from typing import Any

import pytest

from corral.adapter.dialects.engine_errors import openai_error


def llama(code: int, message: str, type: str = "server_error", **more: Any) -> bytes:
    return json.dumps({"error": {"code": code, "message": message, "type": type, **more}}).encode()


TOO_LONG = "request (2031 tokens) exceeds the available context size (512 tokens), try increasing it"
REFUSED = "invalid_request_error"


@pytest.mark.parametrize(
    ("status", "body", "code", "param"),
    [
        (400, llama(400, TOO_LONG, "exceed_context_size_error"), "context_length_exceeded", "messages"),
        (
            500,
            llama(500, "input (2001 tokens) is too large to process. increase the physical batch size"),
            "context_length_exceeded",
            "messages",
        ),
        (500, llama(500, "image input is not supported - hint: if …"), "unsupported_content", "messages"),
        (500, llama(500, "audio input is not supported - hint: if …"), "unsupported_content", "messages"),
        (500, llama(500, "Failed to parse tools: Missing tool type: 1; tools = [1]"), "invalid_value", "tools"),
        (500, llama(500, "Failed to parse messages: Missing 'role' in message: {}"), "invalid_value", "messages"),
        (500, llama(500, "'messages' is required"), "invalid_value", "messages"),
        (400, llama(400, "Expected 'messages' to be an array", REFUSED), "invalid_value", "messages"),
        (400, llama(400, "Field 'n': Value must be between 1 <= value <= 1, but got 2", REFUSED), "invalid_value", "n"),
        (400, llama(400, "Invalid tool_choice: sometimes", REFUSED), "invalid_value", "tool_choice"),
        (400, llama(400, "unsupported content[].type", REFUSED), "invalid_value", "messages"),
        (500, llama(500, "Unknown reasoning format: foo"), "invalid_value", "reasoning_format"),
        (
            400,
            llama(400, "The format to return the embeddings in. Can be either float or base64", REFUSED),
            "invalid_value",
            "encoding_format",
        ),
        (400, llama(400, '"documents" must be a non-empty string array', REFUSED), "invalid_value", "documents"),
        (400, llama(400, '"query" must be a string', REFUSED), "invalid_value", "query"),
        (
            400,
            llama(400, "Field 'include_usage': type must be boolean, but is string", REFUSED),
            "invalid_value",
            "stream_options",
        ),
        (400, llama(400, "something else", REFUSED), "invalid_value", None),
        (
            501,
            llama(501, "This server does not support embeddings. Start it with …"),
            "unsupported_by_model",
            "model",
        ),
        (404, llama(404, "File Not Found", "not_found_error"), "unsupported_by_model", "model"),
        (422, b'{"detail": [{"loc": ["body", "input"], "msg": "Field required"}]}', "invalid_value", "input"),
        (
            400,
            b'{"object": "error", "message": "This model\'s maximum context length is 512 tokens.", "code": 400}',
            "context_length_exceeded",
            "messages",
        ),
    ],
)
def test_what_the_client_got_wrong_is_a_bad_request_that_names_the_field(
    status: int, body: bytes, code: str, param: str | None
) -> None:
    translated = openai_error(status, body)
    assert translated is not None
    told = json.loads(translated[1])["error"]
    assert (translated[0], told["type"], told["code"], told["param"]) == (400, REFUSED, code, param)
    assert told["message"]


@pytest.mark.parametrize(
    ("message", "about", "param"),
    [
        ("Input content cannot be empty", "input", "input"),
        ("Failed to parse messages: Missing 'role' in message: {}", "input", "input"),
        (
            '"prompt" elements must be a string, a list of tokens, or a list of mixed strings & tokens.',
            "input",
            "input",
        ),
        ("Prompt contains invalid tokens", "prompt", "prompt"),
        ("Prompt contains invalid tokens", "input", "input"),
        ("unsupported content[].type", "messages", "messages"),
        ("llama.cpp does not support 'previous_response_id'.", "input", "previous_response_id"),
    ],
)
def test_what_llama_cpp_calls_the_prompt_is_named_as_the_client_wrote_it(message: str, about: str, param: str) -> None:
    translated = openai_error(400, llama(400, message, REFUSED), about=about)
    assert translated is not None
    assert json.loads(translated[1])["error"]["param"] == param


def test_the_words_of_a_json_library_are_left_out() -> None:
    body = llama(400, "Field 'seed': [json.exception.type_error.302] type must be number, but is string", REFUSED)
    translated = openai_error(400, body)
    assert translated is not None
    told = json.loads(translated[1])["error"]
    assert (told["message"], told["param"]) == ("Field 'seed': type must be number, but is string", "seed")


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (500, llama(500, "out of memory"), "engine_error"),
        (503, llama(503, "Loading model", "unavailable_error"), "engine_unavailable"),
        (502, b"<html>bad gateway</html>", "engine_error"),
        (500, b"", "engine_error"),
    ],
)
def test_what_the_engine_got_wrong_keeps_its_status(status: int, body: bytes, code: str) -> None:
    translated = openai_error(status, body)
    assert translated is not None
    told = json.loads(translated[1])["error"]
    assert (translated[0], told["type"], told["code"]) == (status, "server_error", code)


def test_what_an_engine_tells_beside_is_kept() -> None:
    translated = openai_error(400, llama(400, TOO_LONG, n_prompt_tokens=2031, n_ctx=512))
    assert translated is not None
    told = json.loads(translated[1])["error"]
    assert (told["n_prompt_tokens"], told["n_ctx"]) == (2031, 512)


def test_an_error_in_openais_words_stays_as_it_is() -> None:
    assert openai_error(400, b'{"error": {"message": "m", "type": "invalid_request_error", "code": "word"}}') is None


def test_the_field_is_that_of_the_route() -> None:
    translated = openai_error(400, llama(400, TOO_LONG), about="prompt")
    assert translated is not None
    assert json.loads(translated[1])["error"]["param"] == "prompt"
