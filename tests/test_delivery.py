"""Every byte before an abrupt death arrives: to slow readers, under load, at the same byte."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.live import (
    CHAT,
    COMPLETIONS,
    FAULT,
    Exchange,
    RawClient,
    Server,
    ask,
    request_bytes,
    serve,
    streaming_body,
)

MEBIBYTE = 1 << 20
FRAMES = 6000
"""Of about 200 bytes each: a little more than 1 MiB."""


def read_slowly(server: Server, fault: str, pause: float, size: int) -> tuple[bytes, str]:
    """Read with a tiny receive buffer, resting between reads; all bytes, and the end."""
    with RawClient(server.address, receive_buffer=4096) as client:
        client.send(request_bytes(COMPLETIONS, streaming_body(COMPLETIONS), {FAULT: fault}))
        data = bytearray()
        while True:
            time.sleep(pause)
            try:
                piece = client.socket.recv(size)
            except ConnectionResetError:
                return bytes(data), "RST"
            if not piece:
                return bytes(data), "FIN"
            data += piece


@pytest.mark.parametrize(("mode", "end"), [("reset", "RST"), ("cut_mid_frame", "FIN")])
def test_a_slow_reader_gets_a_mebibyte_before_the_death(
    server: Server, mode: str, end: str
) -> None:
    """Not a byte of the promised frames is lost to the RST behind them."""
    fault = f"{mode};after_chunks={FRAMES};delay_ms=0"
    with RawClient(server.address) as client:
        prompt = client.ask(COMPLETIONS, streaming_body(COMPLETIONS), {FAULT: fault})
    assert len(prompt.body) > MEBIBYTE
    assert len(prompt.chunks) == FRAMES + (1 if mode == "cut_mid_frame" else 0)
    data, how = read_slowly(server, fault, pause=0.002, size=8192)
    head, _, framed = data.partition(b"\r\n\r\n")
    assert b"chunked" in head
    assert framed == b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in prompt.chunks)
    assert how == end


def test_a_stuck_reader_is_given_up() -> None:
    """After the drain timeout without progress the stream dies anyway, and the log says so."""
    with (
        serve("--hardware", "b200", "--enable-directives", "--drain-timeout", "0.3") as impatient,
        RawClient(impatient.address, receive_buffer=4096) as client,
    ):
        fault = "reset;after_chunks=400;delay_ms=0"
        client.send(request_bytes(COMPLETIONS, streaming_body(COMPLETIONS), {FAULT: fault}))
        wait_for(lambda: "dying with" in impatient.log())
        with pytest.raises(ConnectionResetError):
            while client.socket.recv(65536):
                pass


def wait_for(condition: object, patience: float = 20.0) -> None:
    """Poll until ``condition()`` holds."""
    assert callable(condition)
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def test_two_hundred_deaths_at_once(server: Server) -> None:
    """Under load each of 200 concurrent streams has the bytes and the end of a lone one."""
    kinds = [
        (path, f"{mode};after_chunks=20;delay_ms=3")
        for path in (CHAT, COMPLETIONS)
        for mode in ("reset", "cut_between_frames", "cut_mid_frame", "mid_tool_call", "no_usage")
    ]
    alone = {kind: die(server, *kind) for kind in kinds}
    crowd = [kinds[i % len(kinds)] for i in range(200)]
    with ThreadPoolExecutor(200) as threads:
        together = list(threads.map(lambda kind: die(server, *kind), crowd))
    for kind, seen in zip(crowd, together, strict=True):
        assert seen.chunks == alone[kind].chunks
        assert (seen.end, seen.terminated) == (alone[kind].end, alone[kind].terminated)


def die(server: Server, path: str, fault: str) -> Exchange:
    """One faulted stream."""
    return ask(server, path, streaming_body(path), {FAULT: fault})


def test_an_endless_stream_starves_nobody(server: Server) -> None:
    """4 billion frames without a pause to a reader that stopped: others do not notice."""
    with RawClient(server.address) as greedy, RawClient(server.address) as stopped:
        for client in (greedy, stopped):
            fault = "reset;after_chunks=4294967295;delay_ms=0"
            client.send(request_bytes(CHAT, streaming_body(CHAT), {FAULT: fault}))
        total = 0
        while total < MEBIBYTE:
            assert ask(server, "/health").status == 200
            piece = greedy.socket.recv(65536)
            assert piece
            total += len(piece)


def test_the_longest_delay_waits_quietly(server: Server) -> None:
    """A delay of 2^64-1 ms overflows no timer: the first frame, then silence."""
    body = streaming_body(COMPLETIONS)
    fault = "reset;after_chunks=2;delay_ms=18446744073709551615"
    seen = ask(server, COMPLETIONS, body, {FAULT: fault}, silence=0.3)
    assert (len(seen.chunks), seen.end) == (1, "silence")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_the_same_trigger_gives_the_same_bytes_across_restarts(path: str, server: Server) -> None:
    """Whatever the process, the headers around it, and the connection."""
    faults = ("cut_mid_frame;utf8=true", "mid_tool_call", "no_done;after_chunks=2", "reset")
    body = streaming_body(path, seed=7)

    def bodies(one: Server, **headers: str) -> list[tuple[bytes, ...]]:
        return [ask(one, path, body, {FAULT: fault, **headers}).chunks for fault in faults]

    first = bodies(server)
    assert bodies(server, **{"x-attempt": "2", "user-agent": "another"}) == first
    with serve("--hardware", "b200", "--enable-directives") as another:
        assert bodies(another) == first


def test_another_request_or_fault_gives_another_id(server: Server) -> None:
    """The id is a hash of path, raw body and fault."""
    seen = {
        ask(server, path, body, {FAULT: fault}).events[0]["id"]
        for path, body, fault in (
            (CHAT, streaming_body(CHAT), "no_usage"),
            (CHAT, streaming_body(CHAT, user="x"), "no_usage"),
            (CHAT, streaming_body(CHAT), "no_usage;after_chunks=4"),
            (CHAT, streaming_body(CHAT), "no_done"),
            (COMPLETIONS, streaming_body(COMPLETIONS), "no_usage"),
        )
    }
    assert len(seen) == 5


def test_two_spellings_of_one_fault_are_one_fault(server: Server) -> None:
    """Defaults spelt out, blanks and order change nothing."""
    plain = ask(server, CHAT, streaming_body(CHAT), {FAULT: "no_usage"})
    spelt = ask(
        server, CHAT, streaming_body(CHAT), {FAULT: " no_usage ;; delay_ms = 10;after_chunks=3;"}
    )
    assert spelt.chunks == plain.chunks
