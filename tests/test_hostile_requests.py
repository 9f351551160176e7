"""Requests that cost a lot to understand: nobody else waits for them, and memory holds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest

from tests.live import (
    CHAT,
    COMPLETIONS,
    RawClient,
    Server,
    ask,
    chat_body,
    completions_body,
    request_bytes,
    serve,
)

PATIENCE = 3.0
"""Seconds that a stranger's request may take meanwhile. One of these took minutes."""

DEEP = b'{"model":' + b"[" * 1_000_000
STOPS = [f"{number}." for number in range(999_990, 1_000_000)]
MANY = [f"{number}." for number in range(2000)]
HOSTILE = {
    "stop strings that never come up": (
        COMPLETIONS,
        completions_body(max_tokens=1_000_000, stop=STOPS, stream=True),
        200,
    ),
    "too many stop strings": (COMPLETIONS, completions_body(stop=MANY), 400),
    "an endless stop string": (COMPLETIONS, completions_body(stop="amber0." * 1000), 400),
    "ten megabytes of prompt": (
        COMPLETIONS,
        completions_body(prompt="x y z " * 1_700_000, max_tokens=1),
        400,
    ),
    "directives that never close": (
        CHAT,
        chat_body(messages=[{"role": "user", "content": "<<respond:{" * 300_000}], max_tokens=1),
        400,
    ),
    "more than memory should hold": (
        COMPLETIONS,
        completions_body(max_tokens=1_000_000, logprobs=20, stream=False, stream_options=None),
        400,
    ),
    "a schema that never ends": (
        CHAT,
        chat_body(
            response_format={"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}
        ),
        400,
    ),
    "a nesting bomb": (CHAT, DEEP, 400),
}


@pytest.fixture(scope="module")
def unhurried() -> Iterator[Server]:
    """A server that computes as fast as it can."""
    with serve("--hardware", "b200", "--enable-directives", "--speed", "0") as server:
        yield server


@pytest.mark.parametrize("case", HOSTILE)
def test_nobody_else_waits(unhurried: Server, case: str) -> None:
    """While it is understood, refused or streamed, others are answered."""
    path, body, status = HOSTILE[case]
    seen: list[int] = []

    def hostile() -> None:
        with RawClient(unhurried.address) as client:
            client.send(request_bytes(path, body))
            seen.append(int(client.receive().split(b" ", 2)[1]))

    thread = Thread(target=hostile)
    thread.start()
    while thread.is_alive():
        started = time.monotonic()
        assert ask(unhurried, "/health").status == 200
        assert time.monotonic() - started < PATIENCE
        thread.join(0.01)
    assert seen == [status]


def test_a_long_answer_in_one_piece(unhurried: Server) -> None:
    """Written aside, it is what the stream says."""
    body: dict[str, Any] = completions_body(max_tokens=30_000)
    streamed = ask(unhurried, COMPLETIONS, body)
    whole = ask(unhurried, COMPLETIONS, body | {"stream": False, "stream_options": None}).json
    said = "".join(event["choices"][0]["text"] for event in streamed.events[:-2])
    assert whole["choices"][0]["text"] == said
    assert whole["usage"] == streamed.events[-2]["usage"]


def test_a_long_chat_is_tokenized_aside(unhurried: Server) -> None:
    """The same ids as a short one's, for each of its parts."""
    short = ask(unhurried, "/tokenize", {"prompt": "abc"}).json["tokens"]
    long = ask(unhurried, "/tokenize", {"prompt": "abc" * 200_000}).json
    assert long["tokens"] == short * 200_000


def test_leaving_while_it_is_read(unhurried: Server) -> None:
    """Twenty clients send a long prompt and leave; the next is answered, and nothing is logged."""
    request = request_bytes(COMPLETIONS, completions_body(prompt="x y z " * 200_000))
    for _ in range(20):
        with RawClient(unhurried.address) as client:
            client.send(request)
    assert ask(unhurried, COMPLETIONS, completions_body(prompt="z" * 300_000)).status == 200
    assert "Traceback" not in unhurried.log()
    assert "failed" not in unhurried.log()
