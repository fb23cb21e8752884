"""`questions`: fifty ordinary questions to the model that comes along, under its own settings and under others.

Right means that the answer has the expected word. A small model is often wrong; what its settings can do is to keep it
from repeating itself for ever. Each setting takes minutes on one core.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from bench.report import Row, Table
from corral.processes.first_model import configuration
from tests.kit.models import chat_model

_ENGINE: Final = Path(__file__).parents[1] / "backends" / "llama_cpp" / "engine.py"
_MOST_TOKENS: Final = 512
AS_IT_COMES: Final = "as it comes along"
_BRIEF: Final = "You are a helpful assistant. Answer in one or two short sentences."
OTHER_SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "temperature 0.2": {"temperature": 0.2},
    "temperature 0.2, penalty 1.1": {"temperature": 0.2, "repeat_penalty": 1.1},
    "temperature 0, penalty 1.1": {"temperature": 0.0, "repeat_penalty": 1.1},
    "temperature 0, penalty 1.1, told to be brief": {"temperature": 0.0, "repeat_penalty": 1.1, "system": _BRIEF},
}
QUESTIONS: Final[Mapping[str, str]] = {
    "What is the capital of France?": "paris",
    "What is the capital of Japan?": "tokyo",
    "What is the capital of Italy?": "rome",
    "What is the capital of Germany?": "berlin",
    "What is the largest ocean?": "pacific",
    "What is the largest planet of the solar system?": "jupiter",
    "Which planet is closest to the sun?": "mercury",
    "How many days are in a week?": "seven|7",
    "How many months are in a year?": "twelve|12",
    "How many hours are in a day?": "24|twenty.four",
    "What is 2 + 2?": r"\b4\b|four",
    "What is 7 times 6?": "42|forty",
    "What is 10 minus 3?": r"\b7\b|seven",
    "What color is the sky?": "blue",
    "What color is grass?": "green",
    "What is the opposite of hot?": "cold",
    "What is the opposite of big?": "small|little",
    "What do bees make?": "honey",
    "What do cows drink?": "water",
    "What animal says meow?": "cat",
    "What is frozen water called?": "ice",
    "What is the boiling point of water in Celsius?": "100",
    "Who wrote Romeo and Juliet?": "shakespeare",
    "Who painted the Mona Lisa?": "da vinci|leonardo",
    "Who was the first president of the United States?": "washington",
    "In which year did World War II end?": "1945",
    "What language is spoken in Brazil?": "portuguese",
    "What is the currency of Japan?": "yen",
    "On which continent is Egypt?": "africa",
    "What is H2O?": "water",
    "What gas do plants take in?": "carbon dioxide|co2",
    "What is the fastest land animal?": "cheetah",
    "How many legs does a spider have?": "eight|8",
    "How many sides does a triangle have?": "three|3",
    "What is the name of our galaxy?": "milky way",
    "What is the tallest mountain on Earth?": "everest",
    "Which organ pumps blood?": "heart",
    "What do you call a baby dog?": "pup",
    "What is Python?": "programming|language|snake",
    "What is a computer?": ".",
    "What is machine learning?": ".",
    "Write a haiku about the sea.": ".",
    "Tell me a joke.": ".",
    "Write a short poem about a cat.": "cat",
    "Give me three tips for better sleep.": "sleep|bed",
    "How do I make a cup of tea?": "water|tea",
    "Hello!": ".",
    "Who are you?": ".",
    'Translate "good morning" into French.': "bonjour",
    "Say hi in one word.": "hi|hello",
}


async def questions(_: float | None) -> list[Table]:
    return [await asyncio.to_thread(ask, QUESTIONS, {AS_IT_COMES: own_settings(), **OTHER_SETTINGS})]


def own_settings() -> dict[str, Any]:
    """What requests get of the model that comes along, where they say nothing."""
    parameters = dict(yaml.safe_load(configuration())["parameters"])
    del parameters["model"]
    return parameters


def ask(questions: Mapping[str, str], settings: Mapping[str, Mapping[str, Any]]) -> Table:
    """Ask all questions under each of the settings. `questions` maps to what is expected. Blocking."""
    with _engine() as url:
        rows = [_measured(url, questions, name, given) for name, given in settings.items()]
    return Table(title=f"{len(questions)} ordinary questions to {chat_model().name}", rows=rows)


def _measured(url: str, questions: Mapping[str, str], name: str, settings: Mapping[str, Any]) -> Row:
    began = time.monotonic()
    answers = [(expected, _asked(url, question, settings)) for question, expected in questions.items()]
    texts = [(expected, answer["choices"][0]["message"]["content"]) for expected, answer in answers]
    return {
        "settings": name,
        "right": sum(bool(re.search(expected, text.lower())) for expected, text in texts),
        "cut at the limit": sum(answer["choices"][0]["finish_reason"] == "length" for _, answer in answers),
        "repeats itself": sum(repeats_itself(text) for _, text in texts),
        "tokens": round(sum(answer["usage"]["completion_tokens"] for _, answer in answers) / len(answers)),
        "seconds": round(time.monotonic() - began),
    }


def _asked(url: str, question: str, settings: Mapping[str, Any]) -> Any:
    given = dict(settings)
    system = given.pop("system", "")
    messages = [{"role": "system", "content": system}] if system else []
    body = {"max_tokens": _MOST_TOKENS, "seed": 1, **given}
    body["messages"] = [*messages, {"role": "user", "content": question}]
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def repeats_itself(text: str) -> bool:
    """Whether some three words in a row are there four times."""
    words = text.lower().split()
    runs = [tuple(words[start : start + 3]) for start in range(len(words) - 2)]
    return any(runs.count(run) >= 4 for run in set(runs))


@contextmanager
def _engine() -> Iterator[str]:
    """llama.cpp's server with the model, on one thread; its URL."""
    wanted = {"model_alias": "questions", "model.path": str(chat_model()), "port": 0, "n_ctx": 2048, "verbosity": 1}
    wanted |= {"cpuparams.n_threads": 1, "ui": False}
    words = [sys.executable, str(_ENGINE)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as engine:
        if engine.stdin is None or engine.stdout is None:
            raise RuntimeError("the engine was started without pipes")
        engine.stdin.write(json.dumps(wanted) + "\n")
        engine.stdin.flush()
        try:
            yield json.loads(engine.stdout.readline())["address"]
        finally:
            engine.stdin.close()  # it ends with its input
