"""llama.cpp with a real model, over gRPC and over its own HTTP port."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil
import pytest

from corral.adapter.dialects.json_grammar import json_grammar
from corral.base.processes import ChildProcess
from corral.rpc import errors
from corral.rpc.messages import Message, ModelOptions, PredictOptions, RerankRequest, StatusResponse
from corral.wire.adapter import AdapterModel, AdapterReplica
from tests.kit.adapters import running_adapter
from tests.kit.backends import BACKENDS, KEY, SOON, TOKEN, RunningBackend, running_backend
from tests.kit.gbnf import read_grammar
from tests.kit.json_schemas import fits
from tests.kit.models import QUESTION
from tests.kit.waiting import wait_until

ASKED = PredictOptions(
    UseTokenizerTemplate=True, Messages=[Message(role="user", content=QUESTION)], Tokens=24, ModelIdentity="smol"
)


def options(file: Path, **more: Any) -> ModelOptions:
    return ModelOptions(Model="smol", ModelFile=str(file), ContextSize=512, Threads=1, MMap=True, **more)


@asynccontextmanager
async def loaded(file: Path, **more: Any) -> AsyncIterator[RunningBackend]:
    async with running_backend("llama_cpp") as backend:
        await backend.client.load(options(file, **more), timeout=SOON)
        yield backend


def url_of(backend: RunningBackend, path: str) -> str:
    """Where gateways send requests: those in Ollama's form go to the front, as the engine has none of these routes."""
    return (backend.front_url if path.startswith("/api/") else backend.http_url) + path


async def post(backend: RunningBackend, path: str, body: dict[str, Any], *, key: str = KEY) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url_of(backend, path), json=body, headers=headers) as r,
    ):
        return r.status, await r.text()


async def test_it_knows_the_capital_of_france_both_ways(chat_model_file: Path) -> None:
    async with loaded(chat_model_file) as backend:
        reply = await backend.client.predict(ASKED)
        assert "Paris" in reply.message.decode()
        assert reply.tokens > 0
        assert reply.prompt_tokens > 20
        parts = [part async for batch in backend.client.predict_stream(ASKED) for part in batch]
        assert "Paris" in b"".join(part.message for part in parts).decode()
        assert parts[-1].tokens == reply.tokens

        body = {"model": "the-model", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
        status, text = await post(backend, "/v1/chat/completions", body)
        answer = json.loads(text)
        assert (status, answer["model"]) == (200, "the-model")
        assert "Paris" in answer["choices"][0]["message"]["content"]
        status, text = await post(backend, "/v1/chat/completions", body | {"stream": True})
        assert status == 200
        assert text.endswith("data: [DONE]\n\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has filters of system calls")
async def test_the_engine_fetches_nothing_that_a_request_names(chat_model_file: Path) -> None:
    async with loaded(chat_model_file) as backend:
        (engine,) = psutil.Process(backend.process.pid).children()
        status = (await asyncio.to_thread(Path(f"/proc/{engine.pid}/status").read_text)).split()
        assert status[status.index("Seccomp:") + 1] == "2"


async def test_every_route_that_it_declares_is_there(chat_model_file: Path) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "max_output_tokens": 1}
    async with loaded(chat_model_file) as backend:
        manifest = json.loads((BACKENDS / "llama_cpp" / "corral.json").read_text())
        for route in manifest["http"]["routes"]:
            status, text = await post(backend, route, body | {"options": {"num_predict": 1}})
            assert status != 404, (route, text)


async def test_it_answers_messages_and_responses(chat_model_file: Path) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    async with loaded(chat_model_file) as backend:
        status, text = await post(backend, "/v1/messages", {"messages": messages, "max_tokens": 24, "temperature": 0})
        assert (status, json.loads(text)["type"]) == (200, "message")
        assert "Paris" in json.loads(text)["content"][0]["text"]
        status, text = await post(backend, "/v1/messages/count_tokens", {"messages": messages})
        assert (status, json.loads(text)["input_tokens"] > 20) == (200, True)
        asked = {"input": QUESTION, "max_output_tokens": 24, "temperature": 0}
        status, text = await post(backend, "/v1/responses", asked)
        assert (status, json.loads(text)["object"]) == (200, "response")
        status, text = await post(backend, "/v1/responses", asked | {"stream": True})
        assert (status, "response.completed" in text) == (200, True)


async def test_its_http_port_wants_the_key(chat_model_file: Path) -> None:
    async with loaded(chat_model_file) as backend:
        status, text = await post(backend, "/v1/completions", {"prompt": "x"}, key="wrong")
        assert (status, "error" in json.loads(text)) == (401, True)


async def test_it_counts_tokens_and_refuses_what_does_not_fit(chat_model_file: Path) -> None:
    async with loaded(chat_model_file) as backend:
        assert len(await backend.client.tokenize(PredictOptions(Prompt="hello world"))) == 2
        with pytest.raises(errors.RequestRefused, match="exceeds the available context size"):
            await backend.client.predict(PredictOptions(Prompt="hi " * 2000, Tokens=4))
        with pytest.raises(errors.NotOffered, match="embeddings"):
            await backend.client.embedding(PredictOptions(Embeddings="hello"))


async def test_an_embedding_model_embeds_both_ways(chat_model_file: Path) -> None:
    async with loaded(chat_model_file, Embeddings=True) as backend:
        result = await backend.client.embedding(PredictOptions(Embeddings="hello"))
        assert (result.dim, result.tokens, len(result.embeddings)) == (576, 1, 576)
        status, text = await post(backend, "/v1/embeddings", {"input": "hello", "model": "the-model"})
        assert status == 200
        assert json.loads(text)["data"][0]["embedding"] == pytest.approx(list(result.embeddings), abs=1e-4)


async def test_a_ranking_model_ranks_both_ways_and_others_say_that_they_do_not(chat_model_file: Path) -> None:
    """Also: what its template and its marks are, and that sounds and pictures need a model for them."""
    asked = RerankRequest(query="capital of France", documents=["cheese", "Paris", "tea"], top_n=2)
    async with loaded(chat_model_file) as backend:
        with pytest.raises(errors.NotOffered, match="reranking"):
            await backend.client.rerank(asked)
        with pytest.raises(errors.RequestRefused, match="multimodal"):
            await backend.client.predict(PredictOptions(Prompt="what is <__media__>?", Images=["QUJD"]))
        known = await backend.client.metadata(timeout=SOON)
        assert (known.supports_thinking, known.media_marker[:8]) == (False, "<__media")
        assert "<|im_start|>user\ntest<|im_end|>" in known.rendered_template
        await backend.client.load(options(chat_model_file, Reranking=True), timeout=SOON)
        result = await backend.client.rerank(asked)
        scores = [one.relevance_score for one in result.results]
        assert (len(scores), scores) == (2, sorted(scores, reverse=True))
        assert [one.text for one in result.results] == [asked.documents[one.index] for one in result.results]
        body = {"query": asked.query, "documents": list(asked.documents)}
        status, text = await post(backend, "/v1/rerank", body)
        best = max(json.loads(text)["results"], key=lambda one: float(one["relevance_score"]))
        assert (status, best["index"]) == (200, result.results[0].index)


async def test_tokens_and_texts_turn_into_each_other_both_ways(chat_model_file: Path) -> None:
    async with loaded(chat_model_file) as backend:
        tokens = await backend.client.tokenize(PredictOptions(Prompt="hello wörld"))
        assert await backend.client.detokenize(tokens) == "hello wörld"
        status, text = await post(backend, "/tokenize", {"content": "hello wörld", "model": "the-model"})
        assert (status, json.loads(text)) == (200, {"tokens": tokens})
        status, text = await post(backend, "/detokenize", {"tokens": tokens})
        assert (status, json.loads(text)) == (200, {"content": "hello wörld"})


async def test_grammars_stop_words_and_limits_are_kept_both_ways(chat_model_file: Path) -> None:
    async with loaded(chat_model_file) as backend:
        ways = (in_grpc, in_http)
        for way in ways:
            said = await way(backend, GRAMMAR, Grammar='root ::= "yes" | "no"', Tokens=8)
            assert said.text in ("yes", "no")
            said = await way(backend, QUESTION, StopPrompts=["France"], Tokens=40)
            assert said.text
            assert "France" not in said.text
            assert said.reason in ("stop", "")
            said = await way(backend, QUESTION, IgnoreEOS=True, Tokens=5)
            assert (said.tokens, said.prompt_tokens > 20) == (5, True)
            assert said.reason in ("length", "")
        schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
        wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        said = await in_http(backend, QUESTION, Tokens=40, response_format=wanted)
        assert json.loads(said.text)["city"] in ("Paris", "Rome")


CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d{1,3}$"},
        "founded": {"type": "string", "format": "date"},
        "size": {"type": "integer", "minimum": 10, "maximum": 950},
        "rivers": {"type": "array", "items": {"enum": ["Seine", 'R "x" \\ é']}, "minItems": 1, "maxItems": 2},
        "mayor": {"$ref": "#/$defs/mayor"},
    },
    "required": ["city", "code", "founded", "size", "rivers"],
    "$defs": {"mayor": {"type": ["boolean", "null"]}},
}
TREE = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
OPEN = {
    "type": "object",
    "properties": {"a-[]^": {"type": "null"}, "ab": True},
    "additionalProperties": {"type": "number"},
}
PAIR = {"prefixItems": [{"type": "number", "minimum": 0}, {"format": "uuid"}, {"format": "email"}], "minItems": 2}
"""Between them they have all that a grammar may have."""


@pytest.mark.parametrize("schema", [CITY, OPEN, PAIR], ids=["city", "open", "pair"])
async def test_it_keeps_to_the_grammar_of_a_schema(chat_model_file: Path, schema: Any) -> None:
    grammar = json_grammar(schema, "schema")
    async with loaded(chat_model_file) as backend:
        for way in (in_grpc, in_http):
            said = await way(backend, "Tell me about Paris, in JSON.", Grammar=grammar, Tokens=300)
            is_whole = said.tokens < 300
            assert (is_whole, read_grammar(grammar).matches(said.text)) == (True, True), said.text
            assert fits(json.loads(said.text), schema, schema), said.text


async def test_an_adapter_before_it_answers_in_json(chat_model_file: Path) -> None:
    model = AdapterModel(name="m", identity="smol", use_tokenizer_template=True, takes_grammars=True)
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome", "Paris"]}}, "required": ["city"]}
    form = {"name": "n", "strict": True, "schema": schema}
    asked = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 20}
    async with loaded(chat_model_file) as backend, running_adapter() as adapter:
        await adapter.link.serve(AdapterReplica(key=KEY, address=backend.address, token=TOKEN, model=model))

        async def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {KEY}"}
            async with (
                aiohttp.ClientSession() as session,
                session.post(adapter.url + path, json=body, headers=headers) as r,
            ):
                return r.status, await r.json()

        chat = asked | {"response_format": {"type": "json_schema", "json_schema": form}}
        _, said = await answer("/v1/chat/completions", chat)
        assert set(json.loads(said["choices"][0]["message"]["content"])) == {"city"}
        tree = asked | {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": TREE}}}
        status, said = await answer("/v1/chat/completions", tree)
        assert (status, said["choices"][0]["message"]["content"][:1]) == (200, "{")
        response = {"input": QUESTION, "temperature": 0, "text": {"format": {"type": "json_schema", **form}}}
        _, said = await answer("/v1/responses", response)
        assert set(json.loads(said["output"][0]["content"][0]["text"])) == {"city"}
        assert said["text"]["format"] == {"type": "json_schema", **form}


GRAMMAR = "Is Paris in France? Answer yes or no."


class Said(NamedTuple):
    text: str
    tokens: int
    prompt_tokens: int
    reason: str = ""


async def in_grpc(backend: RunningBackend, question: str, **more: Any) -> Said:
    asked = PredictOptions(UseTokenizerTemplate=True, Messages=[Message(role="user", content=question)], **more)
    reply = await backend.client.predict(asked, timeout=SOON)
    return Said(reply.message.decode(), reply.tokens, reply.prompt_tokens)


async def in_http(backend: RunningBackend, question: str, **more: Any) -> Said:
    """The same, in the words of llama.cpp's own server."""
    names = {"Grammar": "grammar", "StopPrompts": "stop", "Tokens": "max_tokens", "IgnoreEOS": "ignore_eos"}
    body = {
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        **{names.get(name, name): value for name, value in more.items()},
    }
    status, text = await post(backend, "/v1/chat/completions", body)
    assert status == 200, text
    answer = json.loads(text)
    choice, usage = answer["choices"][0], answer["usage"]
    return Said(
        choice["message"]["content"], usage["completion_tokens"], usage["prompt_tokens"], choice["finish_reason"]
    )


async def test_a_client_that_goes_frees_its_slot_both_ways(chat_model_file: Path) -> None:
    """There is one slot, and with a shifting context the stories never end: who comes next would wait for ever."""
    async with loaded(chat_model_file, Options=["context_shift:true", "parallel:1"]) as backend:
        endless = PredictOptions(Prompt="Once upon a time", IgnoreEOS=True)
        async with aclosing(backend.client.predict_stream(endless)) as parts:
            await anext(parts)
        assert "Paris" in (await backend.client.predict(ASKED, timeout=SOON)).message.decode()

        body = {"prompt": "Once upon a time", "ignore_eos": True, "stream": True, "max_tokens": -1}
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                backend.http_url + "/v1/completions", json=body, headers={"Authorization": f"Bearer {KEY}"}
            ) as answer,
        ):
            assert (await answer.content.readline()).startswith(b"data: ")
            answer.close()
        assert "Paris" in (await backend.client.predict(ASKED, timeout=SOON)).message.decode()


async def test_it_is_healthy_while_it_loads(chat_model_file: Path) -> None:
    async with running_backend("llama_cpp") as backend, asyncio.TaskGroup() as group:
        load = group.create_task(backend.client.load(options(chat_model_file), timeout=SOON))
        healthy = 0
        while not load.done():
            await backend.client.health(timeout=timedelta(seconds=10))
            healthy += 1
        assert healthy


async def test_freeing_ends_the_engine_and_closes_its_port(chat_model_file: Path) -> None:
    async with loaded(chat_model_file) as backend:
        (engine,) = psutil.Process(backend.process.pid).children()
        await backend.client.free(timeout=SOON)
        assert not engine.is_running()
        with pytest.raises(aiohttp.ClientConnectorError):
            await post(backend, "/v1/completions", {"prompt": "x"})
        assert (await backend.client.status(timeout=SOON)).state == StatusResponse.UNINITIALIZED
        await backend.client.load(options(chat_model_file), timeout=SOON)


async def test_a_file_that_is_no_model_says_so(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"not a model")
    async with running_backend("llama_cpp") as backend:
        with pytest.raises(errors.LoadFailed, match=r"could not load .*bad\.gguf"):
            await backend.client.load(options(bad), timeout=SOON)
        with pytest.raises(errors.LoadFailed, match="no model file at"):
            await backend.client.load(options(tmp_path / "none.gguf"), timeout=SOON)


async def test_when_the_engine_dies_the_backend_does_too(chat_model_file: Path) -> None:
    async with loaded(chat_model_file) as backend:
        (engine,) = psutil.Process(backend.process.pid).children()
        engine.kill()
        assert await backend.process.wait() == 1
        assert any("ended by itself" in line for line in backend.process.tail)


async def test_when_the_backend_is_killed_the_engine_dies_too(chat_model_file: Path) -> None:
    async with loaded(chat_model_file) as backend:
        (engine,) = psutil.Process(backend.process.pid).children()
        psutil.Process(backend.process.pid).kill()
        await until_dead(backend.process, engine)


async def until_dead(process: ChildProcess, engine: psutil.Process) -> None:
    await process.wait()
    await asyncio.to_thread(wait_until, lambda: not engine.is_running(), "the end of the engine")
