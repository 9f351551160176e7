"""How one stream ended for its client: a raw socket that keeps every byte, and curl."""

from __future__ import annotations

import re
import time

from attrs import evolve, frozen

from inference_lab.render import request_body
from tests.live import CHAT, FAULT, MODEL, PATIENCE, RawClient, curl, request_bytes

WAIT = 4.0
"""Seconds after which a client gives up; twice as long as nginx has patience with the server."""

BODY = request_body("chat", MODEL)


@frozen
class Received:
    """What came over one connection, so far.

    ``status`` is None if no head came. ``payload`` is the body without its framing, that
    of a chunk which was cut off included. ``complete`` says whether the body is whole by
    its own framing, ``beyond`` counts the bytes that came after it nevertheless.
    """

    status: int | None = None
    interim: tuple[int, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    framing: str = ""
    payload: bytes = b""
    complete: bool = False
    beyond: int = 0
    trailers: bool = False

    def header(self, name: str) -> str:
        """The first of that name, or nothing."""
        return next((value for key, value in self.headers if key == name), "")

    @property
    def torn(self) -> int:
        """Bytes behind the last whole frame, if these are readable frames."""
        stream = self.header("content-type").startswith("text/event-stream")
        if not stream or self.header("content-encoding"):
            return 0
        return len(self.payload.rpartition(b"\n\n")[2])


@frozen
class Fate:
    """What a raw client received, what the connection did then, and how curl exited.

    ``end`` is ``FIN``, ``RST``, ``reusable`` (it took another request), ``silence`` (nothing
    more for seconds), or ``alive`` (bytes kept coming).
    """

    received: Received
    end: str
    curl: int


def by_hand(address: tuple[str, int], directive: str) -> tuple[Received, str]:
    """Ask for a chat that dies by ``directive``; what came, and how it ended."""
    with RawClient(address) as client:
        client.send(request_bytes(CHAT, BODY, {FAULT: directive}))
        return listen(client)


def by_curl(url: str, directive: str) -> int:
    """The same with curl: its exit code."""
    return curl(
        *("--max-time", str(WAIT), url + CHAT),
        *("-H", "content-type: application/json", "-H", f"{FAULT}: {directive}"),
        *("-d", BODY.decode()),
    ).code


def listen(client: RawClient) -> tuple[Received, str]:
    """Read until the body is over, or the connection, or the client's patience."""
    data = b""
    now = heard = time.monotonic()
    deadline = now + WAIT
    while now < deadline:
        client.socket.settimeout(deadline - now)
        try:
            piece = client.receive()
        except TimeoutError:
            break
        except ConnectionResetError:
            return parse(data), "RST"
        if not piece:
            return parse(data, over=True), "FIN"
        data += piece
        received = parse(data)
        if received.complete and received.header("connection") != "close":
            return received, after_the_end(client)
        now = heard = time.monotonic()
    return parse(data), "alive" if heard > deadline - WAIT / 2 else "silence"


def after_the_end(client: RawClient) -> str:
    """Whether the connection takes another request."""
    client.socket.settimeout(PATIENCE)
    try:
        client.send(request_bytes("/health"))
        return "reusable" if client.receive() else "FIN"
    except (ConnectionResetError, BrokenPipeError):
        return "RST"


def parse(data: bytes, over: bool = False) -> Received:
    """Understand what came so far; ``over`` says that a FIN followed."""
    interim: list[int] = []
    while True:
        if data and not data.startswith(b"HTTP/1."):
            return Received(payload=data, framing="no head")
        head, blank, rest = data.partition(b"\r\n\r\n")
        if not blank:
            return Received()
        status = int(head.split(b" ", 2)[1])
        if status >= 200:
            break
        interim.append(status)
        data = rest
    lines = [line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:]]
    headers = tuple((name.lower(), value.strip()) for name, _, value in lines)
    received = Received(status, tuple(interim), headers)
    if received.header("transfer-encoding") == "chunked":
        return unchunk(received, rest)
    if length := received.header("content-length"):
        return evolve(
            received,
            framing="content-length",
            payload=rest[: int(length)],
            complete=len(rest) >= int(length),
            beyond=max(0, len(rest) - int(length)),
        )
    return evolve(received, framing="until FIN", payload=rest, complete=over)


def unchunk(received: Received, data: bytes) -> Received:
    """The payload of a chunked body, as far as it goes."""
    payload: list[bytes] = []
    position = 0
    header = re.compile(rb"([0-9a-f]+)\r\n", re.IGNORECASE)
    while (line := header.match(data, position)) is not None:
        size, position = int(line[1], 16), line.end()
        if size == 0:
            # Trailer fields, if any, and a blank line; the last line's end may be its first half.
            fields, blank, beyond = data[position - 2 :].partition(b"\r\n\r\n")
            return evolve(
                received,
                framing="chunked",
                payload=b"".join(payload),
                complete=bool(blank),
                beyond=len(beyond),
                trailers=bool(blank and fields),
            )
        payload.append(data[position : position + size])
        position += size + 2
    return evolve(received, framing="chunked", payload=b"".join(payload))
