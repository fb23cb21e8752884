"""Usage is read from the end of an answer, or unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.gateway.usage import TAIL, AnswerTail, Usage, read_usage

OPENAI = b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":10,"total_tokens":15}}'
LLAMA = b'data: {"choices":[],"timings":{"cache_n":2,"prompt_n":3,"prompt_ms":1.5,"predicted_n":7}}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (OPENAI, Usage(5, 10)),
        (LLAMA, Usage(5, 7)),
        (b'"usage":{"completion_tokens":1,"prompt_tokens":2,"prompt_tokens_details":{"cached_tokens":9}}', Usage(2, 1)),
        (b'"usage": {"prompt_tokens": 4, "total_tokens": 4}', Usage(4, 0)),
        (b'"usage":null} ... ' + OPENAI, Usage(5, 10)),
        (OPENAI + OPENAI.replace(b"10", b"11"), Usage(5, 11)),
        (b'"usage":{"prompt_tokens":1\r\n5\r\n2,"completion_tokens":3}', None),
        (b'"usage":{"prompt_tokens":12,"comple\r\n5\r\ntion_tokens":3}', None),
        (b'"usage":{"prompt_tokens":12,"completion_tokens":3', None),
        (b'{"content":"\\"usage\\":{\\"prompt_tokens\\":1,\\"completion_tokens\\":2}"}', None),
        (b'"usage":{}', None),
        (b'{"done":true,"prompt_eval_count":5,"eval_count":7}\n', Usage(5, 7)),
        (b'{"embeddings": [], "prompt_eval_count": 5}', Usage(5, 0)),
        (b'{"response":"\\"prompt_eval_count\\":1,\\"eval_count\\":2}"}', None),
        (b"", None),
    ],
)
def test_what_is_told_in_full_is_known(tail: bytes, expected: Usage | None) -> None:
    assert read_usage(tail) == expected


USUAL = [
    OPENAI,
    b'{"usage":{"completion_tokens":10,"prompt_tokens":5,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":9}}}',
    b'{"usage":{"prompt_tokens_details":{"a":1},"prompt_tokens":5,"completion_tokens_details":{},"completion_tokens":10}}',
]


@pytest.mark.parametrize("answer", USUAL)
def test_where_a_chunk_ends_in_it_usage_is_known_or_unknown_and_never_another(answer: bytes) -> None:
    assert read_usage(answer) == Usage(5, 10)
    for at in range(len(answer)):
        assert read_usage(answer[:at] + b"\r\n5\r\n" + answer[at:]) in (Usage(5, 10), None)
        assert read_usage(answer[:at]) in (Usage(5, 10), None)


@pytest.mark.parametrize("number", ["-5", "5.5", '"5"', "null", "true", "1" + "0" * 12])
def test_what_is_no_number_of_tokens_is_not_reported(number: str) -> None:
    assert read_usage(b'{"usage":{"prompt_tokens":%b,"completion_tokens":1}}' % number.encode()) is None


@given(st.lists(st.binary(max_size=6000), max_size=8))
def test_a_tail_is_the_end_of_what_passed_and_is_bounded(pieces: list[bytes]) -> None:
    tail = AnswerTail()
    for piece in pieces:
        tail.add(piece)
    kept, whole = b"".join(tail.pieces), b"".join(pieces)
    assert whole.endswith(kept)
    assert len(kept) >= min(TAIL, len(whole))
    assert len(kept) < 2 * TAIL


def test_a_tail_keeps_references_of_small_pieces() -> None:
    tail, piece = AnswerTail(), bytes(100)
    tail.add(piece)
    assert tail.pieces[0] is piece


def test_answers_of_messages_and_responses_are_counted() -> None:
    whole = b'{"type":"message","usage":{"cache_read_input_tokens":30,"input_tokens":1,"output_tokens":3}}'
    assert read_usage(whole) == Usage(31, 3)
    response = b'{"usage":{"input_tokens":31,"output_tokens":3,"input_tokens_details":{"cached_tokens":30}}}'
    assert read_usage(response) == Usage(31, 3)


@pytest.mark.parametrize("numbers", [3, 30_000])
def test_embeddings_may_tell_it_before_the_vectors(numbers: int) -> None:
    tail = AnswerTail()
    tail.add(b'{"model":"m","object":"list","usage":{"prompt_tokens":7,"total_tokens":7},"data":[{"embedding":[')
    for _ in range(numbers):
        tail.add(b"0.25,")
    tail.add(b"0.5]}]}")
    assert tail.usage() == Usage(7, 0)


@pytest.mark.parametrize("events", [3, 3000])
def test_a_stream_of_messages_tells_the_prompt_first_and_the_answer_last(events: int) -> None:
    tail = AnswerTail()
    start = (
        b'{"type":"message_start","message":{"usage":{"input_tokens":5,"cache_read_input_tokens":2,"output_tokens":0}}}'
    )
    tail.add(b"event: message_start\ndata: " + start + b"\n\n")
    for _ in range(events):
        tail.add(b'event: content_block_delta\ndata: {"delta":{"text":"usage: input_tokens"}}\n\n')
    tail.add(b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":44}}\n\n')
    tail.add(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')

    assert tail.usage() == Usage(7, 44)


def test_a_stream_of_messages_without_its_beginning_is_not_guessed() -> None:
    assert read_usage(b'data: {"type":"message_delta","usage":{"output_tokens":44}}\n\n') is None


def test_a_stream_of_messages_that_begins_with_an_empty_prompt_did_not_know_it() -> None:
    start = b'data: {"type":"message_start","message":{"usage":{"input_tokens":0,"output_tokens":0}}}\n\n'
    end = b'data: {"type":"message_delta","usage":{"output_tokens":44}}\n\n'

    assert read_usage(start + end, first=start) is None
