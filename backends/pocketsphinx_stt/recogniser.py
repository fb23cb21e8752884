"""PocketSphinx in a process of its own, the child of `backend.py`: it holds Python's lock for seconds while it listens.

Of each request the first line on standard input is JSON, `bytes`; so many bytes of samples follow: mono, 16 bits,
16,000 a second. Answers are lines of JSON on standard output: `ready` once at the start, then `segment` for every
utterance and `end` at the end of each request. The process ends with its standard input, and soon after its parent.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pocketsphinx import Decoder, Endpointer, get_model_path

RATE: Final = 16_000
_SAMPLE_BYTES: Final = 2
_SILENCE_SECONDS: Final = 0.5
"""Added on both sides: the recogniser expects a sentence to begin and end in silence."""
_UTTERANCE_SECONDS: Final = 20
"""Longer speech without a pause is split here, so that a client that leaves is noticed soon."""
_FRAMES_A_SECOND: Final = 100
_NO_WORD: Final = re.compile(r"<.*>|\[.*\]|\+\+.*\+\+")
_PRONUNCIATION: Final = re.compile(r"\(\d+\)$")


class Utterance(NamedTuple):
    start: float
    samples: bytes


def main() -> None:
    parent = os.getppid()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the library prints belongs to the log
    decoder = _decoder()
    _say(answers, {"ready": True})
    while line := sys.stdin.buffer.readline():
        sound = sys.stdin.buffer.read(json.loads(line)["bytes"])
        for utterance in utterances(sound):
            if os.getppid() != parent:
                os._exit(1)
            if words := hear(decoder, utterance):
                _say(answers, {"segment": words})
        _say(answers, {"end": True})


def _decoder() -> Any:
    model = get_model_path("en-us")
    return Decoder(
        hmm=f"{model}/en-us",
        lm=f"{model}/en-us.lm.bin",
        dict=f"{model}/cmudict-en-us.dict",
        samprate=RATE,
        loglevel="ERROR",
    )


def _say(answers: Any, word: dict[str, Any]) -> None:
    print(json.dumps(word), file=answers, flush=True)


def utterances(sound: bytes) -> Iterator[Utterance]:
    """Speech between pauses."""
    silence = bytes(int(_SILENCE_SECONDS * RATE) * _SAMPLE_BYTES)
    endpointer = Endpointer(sample_rate=RATE)
    heard, start = b"", 0.0
    for speech, begins in _spoken(endpointer, silence + sound + silence):
        start = begins if not heard else start
        heard += speech
        if not endpointer.in_speech or len(heard) >= _UTTERANCE_SECONDS * RATE * _SAMPLE_BYTES:
            yield Utterance(start, heard)
            heard = b""
    if heard:
        yield Utterance(start, heard)


def _spoken(endpointer: Any, sound: bytes) -> Iterator[tuple[bytes, float]]:
    """What the endpointer takes for speech, part by part, and when the speech began."""
    size = endpointer.frame_bytes
    for position in range(0, len(sound), size):
        frame = sound[position : position + size]
        was_in_speech = endpointer.in_speech
        speech = endpointer.process(frame) if len(frame) == size else endpointer.end_stream(frame)
        if speech is not None:
            here = position / _SAMPLE_BYTES / RATE
            began = here if was_in_speech else endpointer.speech_start
            yield speech, max(0.0, began - _SILENCE_SECONDS)


def hear(decoder: Any, utterance: Utterance) -> list[dict[str, Any]]:
    """The words, and when each was said. As a whole, so that what was heard before has no influence."""
    decoder.start_utt()
    decoder.process_raw(utterance.samples, full_utt=True)
    decoder.end_utt()
    if decoder.hyp() is None:
        return []
    return [
        {
            "text": _PRONUNCIATION.sub("", found.word),
            "start": utterance.start + found.start_frame / _FRAMES_A_SECOND,
            "end": utterance.start + (found.end_frame + 1) / _FRAMES_A_SECOND,
        }
        for found in decoder.seg()
        if not _NO_WORD.fullmatch(found.word)
    ]


if __name__ == "__main__":
    main()
