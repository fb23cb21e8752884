"""Speech, transcripts and voice activity between OpenAI's words and the contract's."""

import json
import struct
from typing import Any

import pytest

from corral.adapter.dialects.localai import VoiceActivityRequest, voice_activity_answer, voice_activity_options
from corral.adapter.dialects.requests import parse
from corral.adapter.dialects.sound import (
    SpeechParts,
    SpeechRequest,
    speech_options,
    transcription_answer,
    transcription_event,
    transcription_options,
    transcription_wish,
)
from corral.base.errors import InvalidInput
from corral.rpc._generated.backend_pb2 import TranscriptWord, VADSegment
from corral.rpc.messages import Reply, TranscriptResult, TranscriptSegment, TranscriptStreamResponse, VADResponse
from corral.wire.adapter import AdapterModel, RequestDefaults

MODEL = AdapterModel(name="m", identity="m.bin", defaults=RequestDefaults(threads=3))
SECOND = 1_000_000_000
HEARD = TranscriptResult(
    text="hello there",
    language="en",
    duration=3.25,
    segments=[
        TranscriptSegment(
            id=0,
            start=SECOND // 2,
            end=SECOND,
            text=" hello",
            tokens=[7],
            words=[TranscriptWord(text="hello", start=SECOND // 2, end=SECOND)],
        ),
        TranscriptSegment(id=1, start=3661 * SECOND + 7_000_000, end=3662 * SECOND, text="there", speaker="anna"),
    ],
)


def speech(**body: Any) -> SpeechRequest:
    request = parse(json.dumps({"input": "hi", **body}).encode(), SpeechRequest)
    request.check()
    return request


def test_a_text_to_speak_says_only_what_was_said() -> None:
    plain = speech_options(speech(), MODEL, file="/x/y.wav")
    assert (plain.text, plain.dst, plain.voice, plain.language, dict(plain.params)) == ("hi", "/x/y.wav", "", "", {})
    assert (plain.model, plain.ModelIdentity, plain.HasField("instructions")) == ("m.bin", "m.bin", False)
    own = AdapterModel(name="m", identity="m.onnx", file="/models/m.onnx", voice="anna")
    assert [speech_options(speech(**said), own).voice for said in ({}, {"voice": "nova"})] == ["anna", "nova"]
    assert (speech_options(speech(), own).model, speech_options(speech(), own).ModelIdentity) == (
        "/models/m.onnx",
        "m.onnx",
    )
    rich = speech_options(speech(voice="nova", speed=1.5, language="de", instructions="softly"), MODEL)
    assert (rich.voice, rich.language, rich.instructions, dict(rich.params)) == (
        "nova",
        "de",
        "softly",
        {"speed": "1.5"},
    )


def rate_and_rest(sound: bytes) -> tuple[int, bytes]:
    return struct.unpack_from("<I", sound, 24)[0], sound[44:]


def test_both_kinds_of_streams_become_a_wave_file() -> None:
    bare = SpeechParts()
    assert bare.part(Reply(message=b'{"sample_rate": 8000}')) == b""
    first = bare.part(Reply(audio=b"ab"))
    assert (first[:8], rate_and_rest(first)) == (b"RIFF\xff\xff\xff\xff", (8000, b"ab"))
    assert bare.part(Reply(audio=b"RIFF")) == b"RIFF", "samples may look like anything"

    own = SpeechParts()
    assert own.part(Reply(audio=b"RIFF rest")) == b"RIFF rest"
    assert own.part(Reply(audio=b"more")) == b"more"


@pytest.mark.parametrize("message", [b"", b"{", b"[1]", b'{"sample_rate": "fast"}', b'{"sample_rate": 0}'])
def test_a_stream_that_tells_no_rate_has_the_contracts(message: bytes) -> None:
    parts = SpeechParts()
    parts.part(Reply(message=message))
    assert rate_and_rest(parts.part(Reply(audio=b"ab"))) == (16_000, b"ab")


def test_voice_activity_is_told_in_seconds() -> None:
    request = parse(b'{"audio": [0, 0.5, -1], "model": "x"}', VoiceActivityRequest)
    assert list(voice_activity_options(request, MODEL).audio) == [0, 0.5, -1]
    found = VADResponse(segments=[VADSegment(start=0.962, end=3.0061)])
    assert json.loads(voice_activity_answer(found)) == {"segments": [{"start": 0.962, "end": 3.006}]}
    with pytest.raises(InvalidInput, match="audio"):
        voice_activity_options(VoiceActivityRequest(audio=[]), MODEL)


def test_a_form_becomes_a_request() -> None:
    fields = {
        "language": ["de", "en"],
        "temperature": ["0.5"],
        "timestamp_granularities[]": ["word", "segment"],
        "stream": ["True"],
        "unknown": ["x"],
    }
    options = transcription_options(transcription_wish(fields), MODEL, file="/x/sound.wav")
    assert (options.dst, options.language, options.temperature, options.threads) == ("/x/sound.wav", "en", 0.5, 3)
    assert (list(options.timestamp_granularities), options.stream) == (["word", "segment"], True)
    assert transcription_wish({}).response_format == "json"


def test_the_model_says_which_language_is_spoken_where_the_request_does_not() -> None:
    model = AdapterModel(name="m", defaults=RequestDefaults(language="de", translate=True))
    for given, expected in (({}, "de"), ({"language": ["fr"]}, "fr")):
        options = transcription_options(transcription_wish(given), model, file="/x/sound.wav")
        assert (options.language, options.translate) == (expected, True)


def answered(response_format: str, **fields: list[str]) -> str:
    body, _ = transcription_answer(HEARD, transcription_wish({"response_format": [response_format], **fields}))
    return body.decode()


def test_what_was_heard_is_told_in_every_form() -> None:
    assert json.loads(answered("json")) == {"text": "hello there"}
    assert answered("text") == "hello there\n"
    assert answered("srt") == ("1\n00:00:00,500 --> 00:00:01,000\nhello\n\n2\n01:01:01,007 --> 01:01:02,000\nthere\n")
    assert answered("vtt") == (
        "WEBVTT\n\n00:00:00.500 --> 00:00:01.000\nhello\n\n01:01:01.007 --> 01:01:02.000\nthere\n"
    )
    verbose = json.loads(answered("verbose_json"))
    assert (verbose["duration"], verbose["language"], "words" in verbose) == (3.25, "en", False)
    assert verbose["segments"][0] == {"id": 0, "start": 0.5, "end": 1.0, "text": " hello", "tokens": [7]}
    assert verbose["segments"][1]["speaker"] == "anna"
    words = json.loads(answered("verbose_json", timestamp_granularities=["word"]))
    assert (words["words"], "segments" in words) == ([{"word": "hello", "start": 0.5, "end": 1.0}], False)


def test_nothing_heard_is_an_answer_too() -> None:
    for response_format in ("json", "text", "srt", "verbose_json", "vtt"):
        wish = transcription_wish({"response_format": [response_format]})
        assert transcription_answer(TranscriptResult(), wish)[1]


def test_a_stream_has_openais_events() -> None:
    assert transcription_event(TranscriptStreamResponse()) == b""
    delta = transcription_event(TranscriptStreamResponse(delta="hello"))
    assert delta == b'data: {"type":"transcript.text.delta","delta":"hello"}\n\n'
    done = transcription_event(TranscriptStreamResponse(final_result=HEARD))
    assert done == b'data: {"type":"transcript.text.done","text":"hello there"}\n\n'
