"""The traps of a real transport, each sprung on purpose, on the real reactor.

The server runs inside the test, so that a handler, a transport or a script can
be made to misbehave; the client is a thread with a plain socket.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from inference_lab.faults.player import Player
from inference_lab.faults.steps import End, Pause, Send, Step
from inference_lab.web.site import LabSite
from inference_lab.web.wire import Wire
from tests.live import Exchange, RawClient

reactor: Any = _reactor
Handler = Callable[[Any], Any]


class Handled(Resource):
    """One resource whose behaviour a test chooses."""

    isLeaf = True

    def __init__(self, handler: Handler) -> None:
        super().__init__()
        self._handler = handler

    def render(self, request: Any) -> Any:
        """Let the test's handler do it."""
        self._handler(request)
        return NOT_DONE_YET


@pytest.fixture
def listen() -> Iterator[Callable[[Handler], tuple[str, int]]]:
    """Serve a handler on a free loopback port."""
    ports: list[Any] = []

    def start(handler: Handler) -> tuple[str, int]:
        port = reactor.listenTCP(0, LabSite(Handled(handler), reactor), interface="127.0.0.1")
        ports.append(port)
        return ("127.0.0.1", port.getHost().port)

    yield start
    for port in ports:
        pytest_twisted.blockon(port.stopListening())


def fetch(address: tuple[str, int], version: str = "1.1", **options: Any) -> Deferred[Exchange]:
    """GET / in a thread."""

    def run() -> Exchange:
        with RawClient(address, **options) as client:
            return client.ask("/", version=version)

    return deferToThread(run)


def playing(steps: Callable[[], Iterator[Step]]) -> Handler:
    """A handler that plays ``steps`` on a wire."""

    def handle(request: Any) -> None:
        wire = Wire(request, reactor, 10.0)
        # A real handler parks on `gone`; here nothing waits for it but twisted.web.
        wire.gone.addCallback(lambda _: request.finish() if wire_is_open(request) else None)
        wire.open()
        wire.play(Player(steps(), wire, reactor))

    return handle


def wire_is_open(request: Any) -> bool:
    """Whether the client is still there."""
    return getattr(request, "channel", None) is not None


FRAMES = [b"data: %d\n\n" % i for i in range(5)]


def frames_then(end: End) -> Iterator[Step]:
    """Five frames, a turn between any two, then the end."""
    for frame in FRAMES:
        yield Send(frame)
        yield Pause(0)
    yield end


@pytest_twisted.inlineCallbacks
def test_naive_linger_and_lose_is_a_fin(listen: Any) -> Any:
    """Why RST is not `SO_LINGER` plus `loseConnection`: Twisted shuts down first."""

    def handle(request: Any) -> None:
        request.write(FRAMES[0])
        linger = struct.pack("ii", 1, 0)
        reactor.callLater(0.05, lose, request.channel.transport, linger)

    def lose(transport: Any, linger: bytes) -> None:
        transport.getHandle().setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.loseConnection()

    seen: Exchange = yield fetch(listen(handle))
    assert seen.end == "FIN"


@pytest_twisted.inlineCallbacks
def test_our_reset_is_a_reset(listen: Any) -> Any:
    """The same frames through the wire end in a RST, with every byte before it."""
    seen: Exchange = yield fetch(listen(playing(lambda: frames_then(End.RST))))
    assert (seen.end, seen.terminated, list(seen.chunks)) == ("RST", False, FRAMES)


@pytest_twisted.inlineCallbacks
def test_naive_abort_loses_what_is_buffered(listen: Any) -> Any:
    """Why the wire drains: an abort in the tick of the write delivers nothing."""

    def handle(request: Any) -> None:
        request.write(b"")
        reactor.callLater(0.05, abort, request)

    def abort(request: Any) -> None:
        request.write(FRAMES[0])
        request.channel.transport.abortConnection()

    seen: Exchange = yield fetch(listen(handle))
    assert (seen.end, seen.body) == ("RST", b"")


@pytest_twisted.inlineCallbacks
def test_our_reset_in_the_tick_of_the_last_write_loses_nothing(listen: Any) -> Any:
    """A megabyte written in one go arrives before the RST that follows at once."""
    burst = [b"data: " + b"x" * 1000 + b"\n\n"] * 1000

    def steps() -> Iterator[Step]:
        yield from map(Send, burst)
        yield End.RST

    seen: Exchange = yield fetch(listen(playing(steps)))
    assert (seen.end, seen.body) == ("RST", b"".join(burst))


@pytest_twisted.inlineCallbacks
def test_a_returning_handler_would_terminate_the_body(listen: Any) -> Any:
    """Why handlers park: finishing after `loseConnection` still sends the terminator."""

    def handle(request: Any) -> None:
        request.write(FRAMES[0])
        request.channel.loseConnection()
        request.finish()

    seen: Exchange = yield fetch(listen(handle))
    assert seen.terminated


@pytest_twisted.inlineCallbacks
def test_our_fin_has_no_terminator(listen: Any) -> Any:
    """The parked handler leaves the body torn."""
    seen: Exchange = yield fetch(listen(playing(lambda: frames_then(End.FIN))))
    assert (seen.end, seen.terminated, list(seen.chunks)) == ("FIN", False, FRAMES)


@pytest_twisted.inlineCallbacks
def test_an_exception_in_mid_stream_is_no_clean_end(listen: Any) -> Any:
    """A broken script closes without a terminator and without an HTML page."""

    def steps() -> Iterator[Step]:
        yield Send(FRAMES[0])
        yield Pause(0)
        raise RuntimeError("a script with a defect")

    seen: Exchange = yield fetch(listen(playing(steps)))
    assert (seen.end, seen.terminated, list(seen.chunks)) == ("FIN", False, FRAMES[:1])


@pytest_twisted.inlineCallbacks
def test_under_http_1_0_a_fin_is_a_clean_end(listen: Any) -> Any:
    """No chunks there: FIN is the only end of a body; RST stays RST."""
    address = listen(playing(lambda: frames_then(End.FIN)))
    seen: Exchange = yield fetch(address, version="1.0")
    assert (seen.end, seen.body) == ("FIN", b"".join(FRAMES))
    address = listen(playing(lambda: frames_then(End.RST)))
    seen = yield fetch(address, version="1.0")
    assert (seen.end, seen.body) == ("RST", b"".join(FRAMES))
