"""The parts of the SDK that are plain functions."""

import importlib
import json
from typing import Any

import pytest


def module(name: str) -> Any:
    return importlib.import_module(f"corral_backend_sdk.{name}")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2s", 2.0),
        ("1m30s", 90.0),
        ("500ms", 0.5),
        ("3", 3.0),
        ("0.5", 0.5),
        ("", 2.0),
        ("soon", 2.0),
        ("-1s", 2.0),
        ("0", 2.0),
    ],
)
def test_the_watch_interval_is_gos_duration_or_seconds(text: str, seconds: float) -> None:
    assert module("parent_watch").seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("rpc", "name"),
    [
        ("Predict", "predict"),
        ("PredictStream", "predict_stream"),
        ("TTS", "tts"),
        ("TTSStream", "tts_stream"),
        ("VAD", "vad"),
        ("AudioToAudioStream", "audio_to_audio_stream"),
        ("Generate3D", "generate3_d"),
    ],
)
def test_a_method_is_found_by_its_name_in_snake_case(rpc: str, name: str) -> None:
    assert module("server").method_name(rpc) == name


def test_options_are_pairs_or_bare_names() -> None:
    values = module("backend").option_values(["parallel:4", "path:a:b", "flag", " x : 1 "])
    assert values == {"parallel": "4", "path": "a:b", "flag": "true", "x": "1"}


def test_a_stream_is_joined_to_one_reply() -> None:
    messages = module("messages")
    call = messages.ToolCallDelta
    parts = [
        messages.Reply(message=b"a", tokens=1, prompt_tokens=4, chat_deltas=[messages.ChatDelta(content="a")]),
        messages.Reply(message=b"b", tokens=2, chat_deltas=[messages.ChatDelta(content="b")]),
        messages.Reply(chat_deltas=[messages.ChatDelta(tool_calls=[call(index=0, id="c", name="f", arguments="{")])]),
        messages.Reply(chat_deltas=[messages.ChatDelta(tool_calls=[call(index=0, arguments="}")])]),
    ]
    whole = module("server").join_replies(parts)
    assert (whole.message, whole.tokens, whole.prompt_tokens) == (b"ab", 2, 4)
    assert whole.chat_deltas[0].content == "ab"
    assert whole.chat_deltas[0].tool_calls[0].arguments == "{}"


def test_the_likelihoods_of_a_stream_are_those_of_all_its_tokens() -> None:
    messages, join = module("messages"), module("server").join_replies
    parts = [messages.Reply(logprobs=b'{"content": [{"token": "%d"}]}' % number) for number in range(2)]
    assert json.loads(join([*parts, messages.Reply()]).logprobs) == {"content": [{"token": "0"}, {"token": "1"}]}
    assert join([*parts, messages.Reply(logprobs=b"{}")]).logprobs == b"{}"
    assert join([messages.Reply()]).logprobs == b""


def test_the_launch_takes_no_secret_from_the_arguments() -> None:
    launch = module("process").read_launch(
        ["--addr", "127.0.0.1:1", "--http-addr", "127.0.0.1:2", "--model-name", "m"], {"CORRAL_HTTP_KEY": "k"}
    )
    assert (launch.address, launch.http_address, launch.model_name, launch.http_key) == (
        "127.0.0.1:1",
        "127.0.0.1:2",
        "m",
        "k",
    )
    assert "k" not in repr(launch).replace("key", "").replace("Launch", "")
