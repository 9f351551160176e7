"""Every mode, on both endpoints, as raw bytes on a real socket and as curl's exit code."""

from __future__ import annotations

import re
from typing import Any

import msgspec
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
    curl_post,
    encode,
    request_bytes,
    streaming_body,
)

# mode: what the connection does, and how curl exits.
ENDS = {
    "cut_between_frames": ("FIN", 18),
    "cut_mid_frame": ("FIN", 18),
    "cut_mid_frame;utf8=true": ("FIN", 18),
    "reset": ("RST", 56),
    "stall": ("silence", 28),
    "error_envelope_200": ("reusable", 0),
    "error_400_in_sse": ("reusable", 0),
    "no_done": ("reusable", 0),
    "no_usage": ("reusable", 0),
    "cancelled_499": ("reusable", 0),
    "mid_reasoning": ("FIN", 18),
    "mid_tool_call": ("FIN", 18),
}
SILENCE = 0.4
"""Seconds without a byte after which a stall is taken for one."""

WORDS = ["amber", "birch", "cedar", "delta", "ebony", "fjord", "grove", "heron", "iris", "jade"]
TOKENS = [("" if i == 0 else " ") + f"{word}{i}." for i, word in enumerate(WORDS)]


def test_the_table_covers_every_mode(server: Server) -> None:
    """All of the specified modes are there; test_catalogue has the others."""
    refused = ask(server, CHAT, streaming_body(CHAT), {FAULT: "nonesuch"})
    listed = re.search(r"Valid modes: ([a-z0-9_, ]+)", refused.json["error"]["message"])
    assert listed is not None
    assert set(listed[1].split(", ")) >= {key.partition(";")[0] for key in ENDS}


@pytest.mark.parametrize("after_chunks", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("fault", ENDS)
def test_on_the_wire(server: Server, path: str, fault: str, after_chunks: int) -> None:
    """The specified frames, each a chunk of its own; then the specified end."""
    header = {FAULT: f"{fault};after_chunks={after_chunks};delay_ms=1"}
    mode = fault.partition(";")[0]
    end, _ = ENDS[fault]
    died = ask(
        server, path, streaming_body(path), header, silence=SILENCE if mode == "stall" else None
    )

    assert died.status == 200
    assert died.headers["content-type"].startswith("text/event-stream")
    assert died.end == end
    assert died.torn == b""
    assert died.terminated is (end == "reusable")
    before, after = split_frames(died, path, after_chunks)
    check_content(path, mode, before)
    check_death(path, fault, after, after_chunks)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("fault", ENDS)
def test_curl(server: Server, path: str, fault: str) -> None:
    """Real curl prints the same body and exits as the specification says."""
    _, code = ENDS[fault]
    body = streaming_body(path)
    seen = ask(server, path, body, {FAULT: fault}, silence=SILENCE if code == 28 else None)
    limit = ["--max-time", "1"] if code == 28 else []
    said = curl_post(server, path, body, fault, *limit)
    assert (said.code, said.out) == (code, seen.body)
    if code == 18:
        assert "outstanding read data remaining" in said.err
    if code == 56:
        assert "reset by peer" in said.err


def split_frames(died: Exchange, path: str, after_chunks: int) -> tuple[list[bytes], list[bytes]]:
    """The role and content frames, and what follows; every chunk is one frame."""
    leading = after_chunks + (1 if path == CHAT else 0)
    frames = list(died.chunks)
    for frame in frames[:leading]:
        assert frame.startswith(b"data: ")
        assert frame.endswith(b"\n\n")
        assert frame.count(b"\n") == 2
    assert len(frames) >= leading
    return frames[:leading], frames[leading:]


def payload(frame: bytes) -> Any:
    """A frame's JSON."""
    assert frame.startswith(b"data: {")
    assert frame.endswith(b"}\n\n")
    return msgspec.json.decode(frame[6:-2])


def check_content(path: str, mode: str, frames: list[bytes]) -> None:
    """What comes before the death: the role frame in chat, then the answer's tokens."""
    payloads = [payload(frame) for frame in frames]
    if path == CHAT:
        role, *payloads = payloads
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    for each in payloads:
        expected = "chat.completion.chunk" if path == CHAT else "text_completion"
        assert each["object"] == expected
        assert each["model"] == MODEL
        assert each["created"] == 1_700_000_000
        assert each["choices"][0]["finish_reason"] is None
    said = [each["choices"][0] for each in payloads]
    if path == COMPLETIONS:
        texts = [choice["text"] for choice in said]
        if mode == "mid_reasoning":
            assert texts == ["<think>" + TOKENS[0], *TOKENS[1:]][: len(texts)]
        elif mode == "mid_tool_call":
            check_unfinished_call("".join(texts), len(texts))
        else:
            assert texts == TOKENS[: len(texts)]
        return
    deltas = [choice["delta"] for choice in said]
    if mode == "mid_reasoning":
        assert deltas == [{"reasoning_content": token} for token in TOKENS[: len(deltas)]]
    elif mode == "mid_tool_call":
        check_tool_deltas(deltas)
    else:
        assert deltas == [{"content": token} for token in TOKENS[: len(deltas)]]


def check_tool_deltas(deltas: list[Any]) -> None:
    """Frame 1 gives id and name; later ones fragments that never make JSON."""
    calls = [delta["tool_calls"][0] for delta in deltas]
    if not calls:
        return
    opening, *fragments = calls
    assert opening["index"] == 0
    assert opening["type"] == "function"
    assert opening["id"].startswith("call_")
    assert opening["function"]["name"]
    assert opening["function"]["arguments"] == ""
    assert all(set(call) == {"index", "function"} for call in fragments)
    arguments = "".join(call["function"]["arguments"] for call in fragments)
    check_open_json(arguments, len(fragments))


def check_unfinished_call(text: str, frames: int) -> None:
    """A JSON call in raw text, whose opening is in the first frame already."""
    if frames:
        assert re.match(r'\{"name":"\w+","arguments":\{', text)
    check_open_json(text, frames)


def check_open_json(text: str, frames: int) -> None:
    """Begins an object, every frame adds to it, and it never ends."""
    assert "}" not in text
    assert text.count("{") >= (1 if frames else 0)
    assert text.count(".") == frames


def check_death(path: str, fault: str, frames: list[bytes], after_chunks: int) -> None:
    """What comes at the death itself."""
    mode = fault.partition(";")[0]
    match mode:
        case "cut_between_frames" | "reset" | "stall" | "mid_reasoning" | "mid_tool_call":
            assert frames == []
        case "cut_mid_frame":
            check_torn(path, fault, frames, after_chunks)
        case "error_envelope_200":
            envelope, done = frames
            error = payload(envelope)["error"]
            assert set(error) == {"message", "code", "metadata"}
            assert error["code"] == 502
            assert done == b"data: [DONE]\n\n"
        case "error_400_in_sse":
            (frame,) = frames
            error = payload(frame)
            assert (error["object"], error["code"]) == ("error", 400)
            assert {"message", "type", "param"} < set(error)
        case "cancelled_499":
            assert frames == [
                b'data: {"error":{"code":499,"message":"CancelledError: ",'
                b'"type":"request_cancelled"}}\n\n'
            ]
        case "no_done":
            finish, usage = frames
            check_finish(finish)
            counted = payload(usage)
            assert counted["choices"] == []
            assert counted["usage"]["completion_tokens"] == after_chunks
            if path == COMPLETIONS:
                assert counted["usage"]["prompt_tokens"] == 4
        case "no_usage":
            finish, done = frames
            check_finish(finish)
            assert done == b"data: [DONE]\n\n"
        case _:
            raise AssertionError(mode)


def check_finish(frame: bytes) -> None:
    """The finish frame of a fault says ``stop`` and nothing else."""
    choice = payload(frame)["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice.get("delta", {}) == {}
    assert choice.get("text", "") == ""


def check_torn(path: str, fault: str, frames: list[bytes], after_chunks: int) -> None:
    """Half of the next frame in one chunk; with utf8, up to one byte into the é."""
    (torn,) = frames
    text = TOKENS[after_chunks]
    if "utf8" in fault:
        said = f'"content":"{text}é' if path == CHAT else f'"text":"{text}é'
        assert torn.endswith(said.encode()[:-1])
        return
    assert b"\n" not in torn
    whole = whole_frame(path, torn, text)
    assert torn == whole[: len(whole) // 2]


def whole_frame(path: str, torn: bytes, text: str) -> bytes:
    """The frame that ``torn`` is the beginning of, written out."""
    found = re.match(rb'data: \{"id":"([^"]+)', torn)
    assert found is not None
    said: dict[str, Any] = {"delta": {"content": text}} if path == CHAT else {"text": text}
    return (
        b"data: "
        + encode(
            {
                "id": found[1].decode(),
                "object": "chat.completion.chunk" if path == CHAT else "text_completion",
                "created": 1_700_000_000,
                "model": MODEL,
                "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": None}],
            }
        )
        + b"\n\n"
    )


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_no_done_without_usage_requested(server: Server, path: str) -> None:
    """The usage frame comes only if it was asked for."""
    body = streaming_body(path, stream_options=None)
    died = ask(server, path, body, {FAULT: "no_done;after_chunks=1"})
    check_finish(died.chunks[-1])


def test_limits_do_not_reach_a_fault(server: Server) -> None:
    """``max_tokens`` and ``stop`` leave a faulted stream as it is."""
    body = streaming_body(COMPLETIONS, max_tokens=1, stop=["birch"])
    died = ask(server, COMPLETIONS, body, {FAULT: "no_usage;after_chunks=4"})
    texts = [event["choices"][0]["text"] for event in died.events[:4]]
    assert texts == TOKENS[:4]
    check_finish(died.chunks[4])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("fault", ["cut_between_frames", "reset"])
def test_death_after_keep_alive_reuse(server: Server, path: str, fault: str) -> None:
    """A connection that has served two healthy answers dies like a fresh one."""
    with RawClient(server.address) as client:
        assert client.ask("/health").end == "reusable"
        clean = client.ask(path, streaming_body(path), {FAULT: "no_usage;delay_ms=0"})
        assert (clean.terminated, clean.end) == (True, "reusable")
        died = client.ask(path, streaming_body(path), {FAULT: f"{fault};delay_ms=0"})
    assert (died.terminated, died.end) == (False, ENDS[fault][0])
    assert died.chunks[: len(died.chunks)] == clean_prefix(server, path, fault, len(died.chunks))


def clean_prefix(server: Server, path: str, fault: str, count: int) -> tuple[bytes, ...]:
    """The frames of the same death on a connection of its own."""
    return ask(server, path, streaming_body(path), {FAULT: f"{fault};delay_ms=0"}).chunks[:count]


def test_a_pipelined_request_is_not_answered_after_a_death(server: Server) -> None:
    """What was sent behind the request that died is lost with its connection."""
    with RawClient(server.address) as client:
        doomed = request_bytes(CHAT, streaming_body(CHAT), {FAULT: "cut_between_frames"})
        client.send(doomed + request_bytes("/health"))
        died = client.read()
        assert (died.terminated, died.end) == (False, "FIN")
        assert client.socket.recv(1) == b""


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("fault", ["reset", "cut_between_frames", "cut_mid_frame"])
def test_the_whole_request_is_read_before_a_death(server: Server, path: str, fault: str) -> None:
    """A body still in flight is not answered with the RST that unread bytes would cause."""
    body = streaming_body(path, padding="x" * 300_000)
    request = request_bytes(path, body, {FAULT: f"{fault};after_chunks=0;delay_ms=0"})
    with RawClient(server.address) as client:
        client.send(request[:100_000])
        client.send(request[100_000:])
        died = client.read()
    assert (died.status, died.end) == (200, ENDS[fault][0])
