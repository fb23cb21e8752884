"""WAV files, voices, and where speech begins and ends: what the speech backends decide without their engines."""

import importlib
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.speech import wave_file

BACKENDS = Path(__file__).parents[3] / "backends"


def module(folder: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BACKENDS / folder))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


def parsed(content: bytes) -> Any:
    return importlib.import_module("corral_backend_sdk.wave_files").parse_wave(content)


def test_files_are_told_by_what_is_in_them() -> None:
    sound = parsed(wave_file(bytes(16), rate=8000, channels=2, bits=32, tag=3))
    assert (sound.rate, sound.channels, sound.bits, sound.is_float, len(sound.samples)) == (8000, 2, 32, True, 16)
    assert sound.seconds == 2 / 8000


def test_other_parts_are_skipped_and_half_a_sample_dropped() -> None:
    plain = wave_file(b"\1\2\3\4\5")
    note = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    assert parsed(plain[:12] + note + plain[12:]).samples == b"\1\2\3\4"


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 1000])
def test_a_streamed_file_lasts_to_its_end(size: int) -> None:
    plain = wave_file(b"abcd")
    assert parsed(plain[:40] + struct.pack("<I", size) + plain[44:]).samples == b"abcd"


def test_the_newer_header_is_read_too() -> None:
    form = struct.pack("<HHIIHHHHIH14s", 0xFFFE, 1, 16_000, 48_000, 3, 24, 22, 24, 0, 1, b"")
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", 3) + b"abc"
    assert parsed(b"RIFF\0\0\0\0" + body).bits == 24


def test_what_is_written_can_be_read() -> None:
    files = importlib.import_module("corral_backend_sdk.wave_files")
    assert files.wave_header(22050, 4) + b"abcd" == wave_file(b"abcd", rate=22050)
    streamed = parsed(files.wave_header(22050, None) + b"abcdef")
    assert (streamed.rate, streamed.samples) == (22050, b"abcdef")


class TestVoices:
    @pytest.fixture
    def voices(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        languages = {"en-us": "gmw/en-US", "en": "gmw/en", "german": "gmw/de", "de": "gmw/de"}
        made = module("espeak_tts", "voices", monkeypatch)
        return made.Voices(languages=languages, variants={"f2", "m3"}, default="en-us")

    @pytest.mark.parametrize(
        ("voice", "language", "chosen"),
        [
            ("", "", "gmw/en-US"),
            ("", "de", "gmw/de"),
            ("", "de_AT", "gmw/de"),
            ("nova", "", "gmw/en-US+f2"),
            ("Nova", "de", "gmw/de+f2"),
            ("alloy", "", "gmw/en-US"),
            ("German", "en", "gmw/de"),
            ("en+M3", "", "gmw/en+m3"),
            ("+f2", "", "gmw/en-US+f2"),
        ],
    )
    def test_names_codes_variants_and_openais_voices_are_known(
        self, voices: Any, voice: str, language: str, chosen: str
    ) -> None:
        assert voices.choose(voice, language) == chosen

    @pytest.mark.parametrize(
        ("voice", "language", "words"),
        [
            ("darth", "", "the voice darth is not known: there are alloy, .*a language .de, en, en-us, german"),
            ("", "xx", "the language xx is not known: there are de, en, en-us, german"),
            ("nova", "xx", "the language xx is not known"),
            ("en+x", "", "there is no variant x, but f2, m3"),
            ("onyx", "", "there is no variant m7"),
        ],
    )
    def test_what_is_not_known_is_named_with_what_is(self, voices: Any, voice: str, language: str, words: str) -> None:
        refused = importlib.import_module("corral_backend_sdk").RequestRefused
        with pytest.raises(refused, match=words):
            voices.choose(voice, language)


class TestSegments:
    @pytest.fixture
    def segments(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        return module("silero_vad", "segments", monkeypatch)

    def found(self, segments: Any, pattern: str, **rules: float) -> list[tuple[float, float]]:
        """Each letter is a tenth of a second: `#` speech, `+` nearly, `.` none."""
        likelihoods = [{"#": 0.9, "+": 0.4, ".": 0.1}[letter] for letter in pattern]
        plain = {"min_speech": 0.2, "min_silence": 0.2, "pad": 0.0, **rules}
        told = segments.segments_of(likelihoods, step=0.1, length=len(pattern) / 10, rules=segments.Rules(**plain))
        return [(round(start, 3), round(end, 3)) for start, end in told]

    @pytest.mark.parametrize(
        ("pattern", "times"),
        [
            ("", []),
            (".....", []),
            ("+++++", []),
            ("#####", [(0, 0.5)]),
            ("..####..", [(0.2, 0.6)]),
            ("..##++##..", [(0.2, 0.8)]),
            ("..##.##..", [(0.2, 0.7)]),
            ("..##...##..", [(0.2, 0.4), (0.7, 0.9)]),
            ("..#.....##", [(0.8, 1.0)]),
            ("++##++..", [(0.2, 0.6)]),
        ],
    )
    def test_pauses_part_and_breaths_do_not(
        self, segments: Any, pattern: str, times: list[tuple[float, float]]
    ) -> None:
        assert self.found(segments, pattern) == times

    def test_room_is_added_but_never_a_neighbours(self, segments: Any) -> None:
        assert self.found(segments, "##...##.", pad=0.3) == [(0, 0.35), (0.35, 0.8)]
