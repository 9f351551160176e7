"""The official Python client, sync and async: what it makes of a healthy stream and each death.

It raises where the connection breaks and where a payload holds an ``error`` object. Where it
raises nothing, the tests assert what a careful caller can see instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest
from attrs import evolve, frozen

from tests.live import (
    CHAT,
    COMPLETIONS,
    FAULT,
    MODEL,
    PATIENCE,
    Server,
    chat_body,
    streaming_body,
)
from tests.seen import FAULTS, TOKENS, gather, promised

STALLED = 1.0
"""Seconds that a client waits for a stalled stream's next byte."""


@frozen
class Outcome:
    """What the client handed out, as JSON objects, and what it raised in the end."""

    items: list[dict[str, Any]]
    error: Exception | None


@frozen
class Raised:
    """An error: its class and message, its code, and the class of what caused it."""

    error: type[openai.OpenAIError]
    message: str
    code: str | None = None
    cause: str | None = None


CUT = Raised(openai.APIConnectionError, "Connection error.", cause="RemoteProtocolError")

# None: the client raises nothing.
DEATHS: dict[str, Raised | None] = {
    "cut_between_frames": CUT,
    "cut_mid_frame": CUT,
    "cut_mid_frame;utf8=true": CUT,
    "reset": Raised(openai.APIConnectionError, "Connection error.", cause="ReadError"),
    "stall": Raised(openai.APITimeoutError, "Request timed out.", cause="ReadTimeout"),
    "error_envelope_200": Raised(openai.APIError, "Provider returned error", code="502"),
    "error_400_in_sse": None,
    "no_done": None,
    "no_usage": None,
    "cancelled_499": Raised(openai.APIError, "CancelledError: ", code="499"),
    "mid_reasoning": CUT,
    "mid_tool_call": CUT,
}


def ask_sync(server: Server, path: str, timeout: float, request: dict[str, Any]) -> Outcome:
    """Ask with the blocking client."""
    items: list[dict[str, Any]] = []
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=timeout
    ) as client:
        create: Any = (client.chat.completions if path == CHAT else client.completions).create
        try:
            answer = create(**request)
            for item in answer if request["stream"] else [answer]:
                items.append(item.model_dump(exclude_unset=True))
        except openai.OpenAIError as error:
            return Outcome(items, error)
    return Outcome(items, None)


def ask_async(server: Server, path: str, timeout: float, request: dict[str, Any]) -> Outcome:
    """Ask with the asyncio client, in a loop of its own."""
    return asyncio.run(_ask_async(server, path, timeout, request))


async def _ask_async(server: Server, path: str, timeout: float, request: dict[str, Any]) -> Outcome:
    items: list[dict[str, Any]] = []
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=timeout
    ) as client:
        create: Any = (client.chat.completions if path == CHAT else client.completions).create
        try:
            answer = await create(**request)
            if request["stream"]:
                async for item in answer:
                    items.append(item.model_dump(exclude_unset=True))
            else:
                items.append(answer.model_dump(exclude_unset=True))
        except openai.OpenAIError as error:
            return Outcome(items, error)
    return Outcome(items, None)


Ask = Callable[[Server, str, float, dict[str, Any]], Outcome]

both_clients = pytest.mark.parametrize("ask", [ask_sync, ask_async])
both_endpoints = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


@both_clients
@both_endpoints
def test_healthy_stream(server: Server, path: str, ask: Ask) -> None:
    """Every token, the finish reason and the usage come; joined, they are the whole answer."""
    body = streaming_body(path, max_tokens=8)
    streamed = ask(server, path, PATIENCE, body)
    assert streamed.error is None
    seen = gather(streamed.items)
    assert seen.text == TOKENS[:8]
    assert (seen.finish_reason, seen.counted, seen.strays) == ("length", 8, ())

    del body["stream_options"]
    whole = ask(server, path, PATIENCE, {**body, "stream": False})
    assert whole.error is None
    (answer,) = whole.items
    (choice,) = answer["choices"]
    assert (choice["message"]["content"] if path == CHAT else choice["text"]) == "".join(seen.text)
    assert choice["finish_reason"] == "length"
    assert answer["usage"] == streamed.items[-1]["usage"]
    if path == COMPLETIONS:
        assert answer["usage"]["prompt_tokens"] == 4


@both_clients
@both_endpoints
@pytest.mark.parametrize("fault", FAULTS)
def test_death(server: Server, path: str, fault: str, ask: Ask) -> None:
    """Every promised token is handed out; then comes the error of that death, or an end."""
    timeout = STALLED if fault == "stall" else PATIENCE
    request = {**streaming_body(path), "extra_headers": {FAULT: fault}}
    died = ask(server, path, timeout, request)

    seen = gather(died.items)
    assert evolve(seen, strays=()) == promised(path, fault)
    expected = DEATHS[fault]
    if expected is None:
        assert died.error is None
        check_silent_death(fault, seen.strays)
    else:
        assert seen.strays == ()
        check_error(died.error, expected)


def check_error(error: Exception | None, expected: Raised) -> None:
    """Class, message, code and cause are those expected."""
    assert type(error) is expected.error
    assert isinstance(error, openai.APIError)
    assert (error.message, error.code) == (expected.message, expected.code)
    cause = error.__cause__
    assert (None if cause is None else type(cause).__name__) == expected.cause


def check_silent_death(fault: str, strays: tuple[Any, ...]) -> None:
    """A payload without ``error`` is handed out as a chunk without choices."""
    if fault == "error_400_in_sse":
        # The caller has no finish reason, and this in place of a chunk.
        (stray,) = strays
        assert (stray["object"], stray["code"], stray["type"]) == ("error", 400, "BadRequestError")
    else:
        assert strays == ()


@both_clients
@both_endpoints
def test_unknown_model(server: Server, path: str, ask: Ask) -> None:
    """A 404 is the client's NotFoundError."""
    refused = ask(server, path, PATIENCE, streaming_body(path, model="nonesuch"))
    assert isinstance(refused.error, openai.NotFoundError)
    assert refused.error.code == "model_not_found"
    assert MODEL in refused.error.message


@both_clients
@both_endpoints
@pytest.mark.parametrize(("fault", "stream"), [("nonesuch", True), ("reset", False)])
def test_refused_directive(server: Server, path: str, fault: str, stream: bool, ask: Ask) -> None:
    """A bad header, or a good one where it cannot be honoured, is the BadRequestError."""
    body = streaming_body(path, stream=stream, stream_options=None)
    refused = ask(server, path, PATIENCE, {**body, "extra_headers": {FAULT: fault}})
    assert isinstance(refused.error, openai.BadRequestError)
    assert refused.error.code == "invalid_fault_directive"
    assert refused.error.param == FAULT
    assert refused.error.type == "invalid_request_error"
    assert refused.items == []


def test_models(server: Server) -> None:
    """Both clients list the models that the server announced."""
    announced = server.ready.partition("models=")[2].split()[0].split(",")
    base_url = f"{server.url}/v1"

    async def listed_async() -> list[str]:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            return [model.id async for model in client.models.list()]

    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        listed = [model.id for model in client.models.list()]
    assert sorted(listed) == sorted(announced)
    assert asyncio.run(listed_async()) == listed


def test_no_retry_inside_a_stream(server: Server) -> None:
    """A client that retries does not retry a stream that has begun: the caller has to."""
    request = {**chat_body(), "extra_headers": {FAULT: "reset;after_chunks=1"}}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=2) as client:
        create: Any = client.chat.completions.create
        answer = create(**request)
        assert next(answer).choices[0].delta.role == "assistant"
        assert next(answer).choices[0].delta.content == TOKENS[0]
        with pytest.raises(openai.APIConnectionError):
            next(answer)
