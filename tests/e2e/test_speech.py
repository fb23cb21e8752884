"""A fleet that writes, speaks, listens, finds speech and embeds, asked with the official `openai` package.

Its backends are installed on demand, from the images that the set-up of the checkout made.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.kit.images import own_gallery
from tests.kit.models import QUESTION, write_model
from tests.kit.speech import HEADER_BYTES, SENTENCE, UNDERSTOOD, rate_of, samples_of

NO_FILE = {"parameters": {"model": "none"}}
"""The packages of these backends have their models."""


@pytest.fixture(scope="module")
def speaking_up(module_folder: Path, run_up: Any) -> Iterator[Any]:
    folder = module_folder
    models = folder / "models"
    write_model(models, "voice", backend="espeak-tts", **NO_FILE, options=["voice:en-us"])
    write_model(models, "ears", backend="pocketsphinx-stt", **NO_FILE)
    write_model(models, "attention", backend="silero-vad", **NO_FILE)
    write_model(models, "meaning", backend="minilm-embeddings", **NO_FILE)
    write_model(models, "chat")
    settings = {
        "CORRAL_MODELS_PATH": str(models),
        "CORRAL_LOAD_WAIT": "80s",
        "CORRAL_BUILTIN_GALLERY": str(own_gallery()),
    }
    with run_up(folder, "--workers", "1", **settings) as running:
        running.until_ready()
        yield running


@pytest.fixture
def client(speaking_up: Any) -> Iterator[openai.OpenAI]:
    """Without its own retries: a first failure is a failure."""
    state = speaking_up.state()
    with openai.OpenAI(
        base_url=state["url"] + "/v1", api_key=state["keys"]["admin"], max_retries=0, timeout=100
    ) as connected:
        yield connected


def test_text_is_written_by_an_installed_image(speaking_up: Any, client: openai.OpenAI) -> None:
    asked: Any = [{"role": "user", "content": QUESTION}]
    answer = client.chat.completions.create(model="chat", messages=asked, temperature=0)
    assert "Paris" in (answer.choices[0].message.content or "")

    (installed,) = Path(speaking_up.data).glob("workers/*/backends/cpu-llama-cpp/metadata.json")
    assert json.loads(installed.read_text())["digest"].startswith("sha256:")


def test_what_one_model_says_another_understands_and_a_third_hears_begin(client: openai.OpenAI) -> None:
    said = client.audio.speech.create(model="voice", voice="nova", input=SENTENCE).read()
    assert (said[:4], rate_of(said)) == (b"RIFF", 22050)

    heard = client.audio.transcriptions.create(model="ears", file=("said.wav", said), language="en")
    assert UNDERSTOOD in heard.text

    sound = [0.0] * 16_000 + samples_of(said)[::2]  # at 11,025 a second, which is as good as fast speech
    found: Any = client.post("/vad", body={"model": "attention", "audio": sound}, cast_to=object)
    assert found["segments"][0]["start"] == pytest.approx(1, abs=0.5)


def test_a_streamed_speech_and_a_streamed_transcript_arrive_in_parts(client: openai.OpenAI) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="voice", voice="nova", input=SENTENCE, extra_body={"stream": True}
    ) as answer:
        said = b"".join(answer.iter_bytes())
    assert said.startswith(b"RIFF\xff\xff\xff\xff")
    assert len(said) > HEADER_BYTES + 22050

    with client.audio.transcriptions.create(model="ears", file=("said.wav", said), stream=True) as events:
        told = list(events)
    assert [event.type for event in told] == ["transcript.text.delta", "transcript.text.done"]
    assert told[-1].type == "transcript.text.done"
    assert UNDERSTOOD in told[-1].text


def test_sentences_are_embedded_and_counted(client: openai.OpenAI) -> None:
    texts = ["A man is eating food.", "Someone is having a meal.", "The stock market fell sharply today."]
    answer = client.embeddings.create(model="meaning", input=texts)
    eating, meal, market = (one.embedding for one in answer.data)
    assert {len(vector) for vector in (eating, meal, market)} == {384}
    assert nearness(eating, meal) > 0.6 > 0.2 > nearness(eating, market)
    assert answer.usage.prompt_tokens == 25
    asked = {"model": "meaning", "content": "Hello world!"}
    assert client.post("/tokenize", body=asked, cast_to=object) == {"tokens": [7592, 2088, 999]}


def nearness(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_mistakes_come_as_the_packages_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="the voice darth is not known: there are alloy"):
        client.audio.speech.create(model="voice", voice="darth", input="x")
    with pytest.raises(openai.BadRequestError, match="is not a WAV file"):
        client.audio.transcriptions.create(model="ears", file=("x.wav", b"hello"))
    with pytest.raises(openai.BadRequestError, match="mp3 is not offered, but wav"):
        client.audio.speech.create(model="voice", voice="nova", input="x", response_format="mp3")
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.audio.transcriptions.create(model="nobody", file=("x.wav", b"hello"))
    with pytest.raises(openai.BadRequestError) as refused:
        client.audio.transcriptions.create(model="voice", file=("x.wav", b"hello"))
    assert (refused.value.type, refused.value.param) == ("invalid_request_error", "model")
