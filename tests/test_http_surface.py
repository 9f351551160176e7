"""Endpoints, refusals and CORS, over a real socket."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import (
    CHAT,
    COMPLETIONS,
    FAULT,
    MODEL,
    Exchange,
    RawClient,
    Server,
    ask,
    chat_body,
    completions_body,
    encode,
    request_bytes,
    serve,
    streaming_body,
)

ENDPOINTS = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


def refused(seen: Exchange, status: int) -> dict[str, Any]:
    """The error object of a refusal in the OpenAI shape."""
    assert seen.status == status, seen.body
    assert seen.headers["content-type"] == "application/json"
    assert int(seen.headers["content-length"]) == len(seen.body)
    assert set(seen.json) == {"error"}
    error: dict[str, Any] = seen.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert isinstance(error["code"], str)
    return error


# -- small routes ----------------------------------------------------------


def test_health(server: Server) -> None:
    seen = ask(server, "/health")
    assert (seen.status, seen.json) == (200, {"status": "ok"})


def test_models(server: Server) -> None:
    """Every model once, the same on each call."""
    seen = ask(server, "/v1/models").json
    assert seen["object"] == "list"
    ids = [model["id"] for model in seen["data"]]
    assert MODEL in ids
    assert len(ids) == len(set(ids))
    assert ask(server, "/v1/models").json == seen
    one = next(model for model in seen["data"] if model["id"] == MODEL)
    assert one["object"] == "model"
    assert one["max_model_len"] == 1_048_576
    assert ask(server, f"/v1/models/{MODEL}").json == one


def test_an_unknown_model_names_the_known_ones(server: Server) -> None:
    for seen in (
        ask(server, "/v1/models/gpt-9"),
        ask(server, CHAT, chat_body(model="gpt-9")),
        ask(server, COMPLETIONS, completions_body(model="gpt-9", stream=False)),
    ):
        error = refused(seen, 404)
        assert error["code"] == "model_not_found"
        assert "gpt-9" in error["message"]
        assert MODEL in error["message"]


def test_unknown_path(server: Server) -> None:
    error = refused(ask(server, "/v1/embeddings", {}), 404)
    assert "/v1/embeddings" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, {"POST", "OPTIONS"}),
        ("DELETE", COMPLETIONS, {"POST", "OPTIONS"}),
        ("POST", "/v1/models", {"GET", "HEAD", "OPTIONS"}),
        ("PUT", "/health", {"GET", "HEAD", "OPTIONS"}),
    ],
)
def test_wrong_method(server: Server, method: str, path: str, allowed: set[str]) -> None:
    seen = ask(server, path, b"", method=method)
    error = refused(seen, 405)
    assert method in error["message"]
    assert set(seen.headers["allow"].split(", ")) == allowed


def test_head(server: Server) -> None:
    """A HEAD has the headers of the GET and no body."""
    with RawClient(server.address) as client:
        client.send(request_bytes("/health", method="HEAD") + request_bytes("/health"))
        data = b""
        while data.count(b"HTTP/1.1") < 2 or not data.endswith(b"}"):
            data += client.receive()
    first, _, second = data.partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 200")
    assert b"content-length" in first.lower()
    assert second.startswith(b"HTTP/1.1 200")


# -- CORS ------------------------------------------------------------------


@ENDPOINTS
def test_preflight(server: Server, path: str) -> None:
    """A browser may send our headers from any origin."""
    seen = ask(
        server,
        path,
        method="OPTIONS",
        headers={
            "origin": "https://app.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": f"{FAULT}, x-stainless-os",
        },
    )
    assert seen.status == 204
    assert seen.headers["access-control-allow-origin"] == "*"
    assert "POST" in seen.headers["access-control-allow-methods"]
    allowed = seen.headers["access-control-allow-headers"].replace(" ", "").split(",")
    assert {FAULT, "x-stainless-os", "content-type", "authorization"} <= set(allowed)


@pytest.mark.parametrize("fault", ["none_such", "no_done", None])
def test_every_answer_is_readable_from_any_origin(server: Server, fault: str | None) -> None:
    headers = {} if fault is None else {FAULT: fault}
    seen = ask(server, CHAT, chat_body(), {"origin": "https://app.example", **headers})
    assert seen.headers["access-control-allow-origin"] == "*"
    assert "x-inference-lab-fault-applied" in seen.headers["access-control-expose-headers"]


# -- healthy answers -------------------------------------------------------


@ENDPOINTS
def test_a_healthy_stream(server: Server, path: str) -> None:
    """Role, tokens, finish, usage, [DONE], a clean end, and the connection goes on."""
    with RawClient(server.address) as client:
        seen = client.ask(path, streaming_body(path, max_tokens=5))
        assert (seen.status, seen.terminated, seen.end) == (200, True, "reusable")
        again = client.ask(path, streaming_body(path, max_tokens=5))
    *events, usage, done = seen.events
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    if path == CHAT:
        assert events.pop(0)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    finish = events.pop()
    assert finish["choices"][0]["finish_reason"] == "length"
    assert len({event["id"] for event in [*events, finish, usage]}) == 1
    assert text_of(path, events) == "amber0. birch1. cedar2. delta3. ebony4."
    assert text_of(path, again.events[:-3]) == text_of(path, events)


def text_of(path: str, events: list[Any]) -> str:
    """The joined text of content events."""
    choices = [event["choices"][0] for event in events]
    if path == CHAT:
        return "".join(choice["delta"].get("content", "") for choice in choices)
    return "".join(choice["text"] for choice in choices)


@ENDPOINTS
def test_without_usage_requested(server: Server, path: str) -> None:
    seen = ask(server, path, streaming_body(path, stream_options=None, max_tokens=2))
    assert seen.events[-1] == "[DONE]"
    assert seen.events[-2]["choices"][0]["finish_reason"] == "length"


@ENDPOINTS
def test_not_streamed(server: Server, path: str) -> None:
    """The text of the joined deltas, in one JSON body."""
    streamed = ask(server, path, streaming_body(path, max_tokens=7))
    seen = ask(server, path, streaming_body(path, max_tokens=7, stream=False, stream_options=None))
    assert seen.status == 200
    assert int(seen.headers["content-length"]) == len(seen.body)
    choice = seen.json["choices"][0]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    content = streamed.events[1:-3] if path == CHAT else streamed.events[:-3]
    assert text == text_of(path, content)
    assert choice["finish_reason"] == "length"
    assert seen.json["usage"] == streamed.events[-2]["usage"]


@pytest.mark.parametrize(
    ("path", "tokens", "reason"), [(CHAT, 256, "stop"), (COMPLETIONS, 16, "length")]
)
def test_without_max_tokens(server: Server, path: str, tokens: int, reason: str) -> None:
    body = streaming_body(path, stream=False, stream_options=None, max_tokens=None)
    seen = ask(server, path, body).json
    assert seen["usage"]["completion_tokens"] == tokens
    assert seen["choices"][0]["finish_reason"] == reason


def test_default_output_tokens() -> None:
    """The operator may set the length of a chat answer without a limit."""
    with serve("--hardware", "b200", "--default-output-tokens", "3") as server:
        seen = ask(server, CHAT, chat_body(max_tokens=None, stream=False)).json
        assert seen["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [([5, 6, 7], 3), ([[5, 6]], 2), ([1] * 1000, 1000), ([[0]], 1)],
)
def test_id_prompts_are_counted(server: Server, prompt: Any, tokens: int) -> None:
    seen = ask(server, COMPLETIONS, completions_body(prompt=prompt, stream=False)).json
    assert seen["usage"]["prompt_tokens"] == tokens


@pytest.mark.parametrize("prompt", ["say", ["say"], [1], [[1, 2]]])
def test_prompts_taken(server: Server, prompt: Any) -> None:
    assert ask(server, COMPLETIONS, completions_body(prompt=prompt, stream=False)).status == 200


@pytest.mark.parametrize(
    "prompt",
    [[], [[]], ["a", "b"], [[1], [2]], [1, "a"], [1, [2]], [["a"]], {"a": 1}, 5, True, [1.5]],
)
def test_prompts_refused(server: Server, prompt: Any) -> None:
    error = refused(ask(server, COMPLETIONS, completions_body(prompt=prompt)), 400)
    assert (error["code"], error["param"]) == ("invalid_prompt", "prompt")


@pytest.mark.parametrize(
    "content",
    [
        {"content": "text"},
        {"content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"u": 1}}]},
        {"content": None},
        {},
        {"content": []},
        {"content": "é\U0001f600", "name": "x", "unknown": {"deep": [1]}},
    ],
)
def test_message_contents_taken(server: Server, content: dict[str, Any]) -> None:
    body = chat_body(messages=[{"role": "user", **content}], stream=False, max_tokens=1)
    assert ask(server, CHAT, body).status == 200


def test_null_counts_as_absent(server: Server) -> None:
    body = chat_body(
        stream=None, stream_options=None, max_tokens=None, max_completion_tokens=2, unknown=None
    )
    seen = ask(server, CHAT, body)
    assert seen.json["usage"]["completion_tokens"] == 2


# -- refusals --------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "change", "param"),
    [
        (CHAT, {"max_tokens": "5"}, "max_tokens"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"max_tokens": -1}, "max_tokens"),
        (CHAT, {"max_tokens": 1.5}, "max_tokens"),
        (CHAT, {"stream": "yes"}, "stream"),
        (CHAT, {"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        (CHAT, {"stream_options": []}, "stream_options"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": "hi"}, "messages"),
        (CHAT, {"messages": [{"content": "x"}]}, "messages[0].role"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (CHAT, {"model": None}, "model"),
        (COMPLETIONS, {"model": 5}, "model"),
        (COMPLETIONS, {"max_tokens": []}, "max_tokens"),
    ],
)
def test_wrong_fields_are_named(
    server: Server, path: str, change: dict[str, Any], param: str
) -> None:
    error = refused(ask(server, path, streaming_body(path, **change)), 400)
    assert error["param"] == param
    assert param in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("field", ["model", "messages"])
def test_missing_fields_are_named(server: Server, field: str) -> None:
    body = chat_body()
    del body[field]
    error = refused(ask(server, CHAT, body), 400)
    assert error["param"] == field


@ENDPOINTS
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"12",
        b"\xff\xfe{}",
        b'{"model": "\xff"}',
        b'{"model": "\\ud800"}',
        b'{"model": NaN}',
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"model":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x":' + b"[" * 500_000 + b"]" * 500_000 + b"}",
        b'{"max_tokens": 1e999, "model": "x"}',
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
        b"\0",
        b"{} {}",
    ],
)
def test_hostile_bodies(server: Server, path: str, body: bytes) -> None:
    """Never a 500, never a traceback, and the server lives."""
    refused(ask(server, path, body, method="POST"), 400)
    assert ask(server, "/health").status == 200


@ENDPOINTS
def test_lone_surrogates_in_text(server: Server, path: str) -> None:
    """An escape that is half a character is a clear 400 or plain text, not a 500."""
    text = (
        b'{"model":"%b","max_tokens":1,"prompt":"\\ud83d",'
        b'"messages":[{"role":"user","content":"\\ud83d"}]}'
    )
    seen = ask(server, path, text % MODEL.encode(), method="POST")
    assert seen.status in (200, 400)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/x"])
def test_other_content_types(server: Server, kind: str) -> None:
    error = refused(ask(server, CHAT, chat_body(), {"content-type": kind}), 415)
    assert "application/json" in error["message"]


def test_content_type_with_charset(server: Server) -> None:
    seen = ask(server, CHAT, chat_body(), {"content-type": "Application/JSON; charset=utf-8"})
    assert seen.status == 200


def test_a_body_over_the_limit(server: Server) -> None:
    """32 MiB and a bit: 413, and the connection is not torn while it is sent."""
    body = b'{"model":"' + b"x" * (32 << 20) + b'"}'
    error = refused(ask(server, CHAT, body), 413)
    assert "33554432" in error["message"]


def test_a_body_at_the_limit(server: Server) -> None:
    body = encode(chat_body(max_tokens=1, stream=False))
    padded = body[:-1] + b',"pad":"' + b"x" * ((32 << 20) - len(body) - 9) + b'"}'
    assert len(padded) == 32 << 20 or len(padded) == (32 << 20) - 1
    assert ask(server, CHAT, padded).status == 200


def test_a_chunked_request(server: Server) -> None:
    """A body in chunks counts like any other."""
    body = encode(chat_body(max_tokens=1, stream=False))
    head = request_bytes(CHAT, b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
    head = head.replace(b"GET", b"POST")
    with RawClient(server.address) as client:
        client.send(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert client.read().status == 200


# -- the fault header's refusals -------------------------------------------


@ENDPOINTS
@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("explode", "explode"),
        ("", "mode"),
        ("Reset", "Reset"),
        ("reset;after_chunks=x", "after_chunks"),
        ("reset;after_chunks=+1", "after_chunks"),
        ("reset;after_chunks=1_0", "after_chunks"),
        ("reset;after_chunks=4294967296", "after_chunks"),
        ("reset;delay_ms=18446744073709551616", "delay_ms"),
        ("reset;delay_ms=1e3", "delay_ms"),
        ("reset;delay_ms", "delay_ms"),
        ("reset;After_chunks=1", "After_chunks"),
        ("reset;utf8=true", "utf8"),
        ("cut_mid_frame;utf8=True", "utf8"),
        ("reset;after_chunks=1;after_chunks=1", "after_chunks"),
        ("reset;color=red", "color"),
    ],
)
def test_a_wrong_fault(server: Server, path: str, header: str, part: str) -> None:
    error = refused(ask(server, path, streaming_body(path), {FAULT: header}), 400)
    assert error["code"] == "invalid_fault_directive"
    assert error["type"] == "invalid_request_error"
    assert error["param"] == FAULT
    assert part in error["message"]
    assert "cut_between_frames" in error["message"]


def test_the_header_twice(server: Server) -> None:
    request = request_bytes(CHAT, chat_body(), {FAULT: "reset", FAULT.title(): "reset"})
    with RawClient(server.address) as client:
        client.send(request)
        error = refused(client.read(), 400)
    assert error["code"] == "invalid_fault_directive"
    assert "cut_between_frames" in error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat_body(stream=False)),
        (COMPLETIONS, completions_body(stream=None)),
        ("/v1/models", None),
        ("/v1/embeddings", {}),
        (CHAT, None),
    ],
)
def test_a_fault_that_cannot_be_honoured(server: Server, path: str, body: Any) -> None:
    """Not streamed, not a POST, not there: never silently ignored."""
    error = refused(ask(server, path, body, {FAULT: "reset"}), 400)
    assert error["code"] == "invalid_fault_directive"
    assert "cut_between_frames" in error["message"]


@ENDPOINTS
def test_without_the_flag(path: str) -> None:
    with serve("--hardware", "b200") as plain:
        error = refused(ask(plain, path, streaming_body(path), {FAULT: "reset"}), 400)
        assert error["code"] == "invalid_fault_directive"
        assert "--enable-directives" in error["message"]
        assert ask(plain, path, streaming_body(path, max_tokens=1)).terminated


def test_the_order_of_refusals(server: Server) -> None:
    """Body, then fault, then model."""
    wrong = {FAULT: "explode"}
    body = chat_body(model="gpt-9", max_tokens="x")
    assert refused(ask(server, CHAT, body, wrong), 400)["param"] == "max_tokens"
    body = chat_body(model="gpt-9")
    assert refused(ask(server, CHAT, body, wrong), 400)["code"] == "invalid_fault_directive"
    assert refused(ask(server, CHAT, body, {FAULT: "reset"}), 404)["code"] == "model_not_found"
