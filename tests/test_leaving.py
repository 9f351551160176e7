"""A client that leaves, in every state: no timer, no socket, no engine work, no log noise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as _reactor
from twisted.internet.defer import inlineCallbacks
from twisted.internet.task import deferLater
from twisted.internet.tcp import Connection
from twisted.internet.threads import deferToThread
from twisted.logger import ILogObserver, LogLevel, globalLogPublisher
from zope.interface import implementer

from inference_lab.options import Options
from inference_lab.service import LabService, build
from tests.live import (
    CHAT,
    COMPLETIONS,
    FAULT,
    RawClient,
    chat_body,
    completions_body,
    encode,
    request_bytes,
)

reactor: Any = _reactor


@implementer(ILogObserver)
class Watched:
    """The whole service inside the test, and everything that could leak."""

    def __init__(self) -> None:
        options = Options()
        flags = ["--port", "0", "--hardware", "b200", "--enable-directives"]
        options.parseOptions([*flags, "--drain-timeout", "60"])
        self.service: LabService = build(options, reactor)
        self.noise: list[Any] = []
        globalLogPublisher.addObserver(self)
        self.address = ("127.0.0.1", int(self.service.url().rpartition(":")[2]))

    def __call__(self, event: Any) -> None:
        if event.get("log_level", LogLevel.info) >= LogLevel.warn or event.get("isError"):
            self.noise.append(event)

    def timers(self) -> list[Any]:
        """What is due, but for the site's own clock and this test's waiting."""
        others = ("_updateLogDateTime", "deferLater")
        return [c for c in reactor.getDelayedCalls() if not any(name in str(c) for name in others)]

    def connections(self) -> list[Any]:
        """Server sides of connections that are still there."""
        port = self.service.url().rpartition(":")[2]
        return [
            reader
            for reader in reactor.getReaders()
            if isinstance(reader, Connection) and str(reader.getHost().port) == port
        ]

    def left(self) -> str:
        """What has not gone yet; empty when everything has."""
        remains = {
            "timers": self.timers(),
            "wires": list(self.service.lab.open),
            "connections": self.connections(),
        }
        return "".join(f"{name}: {what}\n" for name, what in remains.items() if what)

    def stop(self) -> Any:
        globalLogPublisher.removeObserver(self)
        return self.service.stopService()


@pytest.fixture
def watched() -> Iterator[Watched]:
    """A fresh service whose leftovers are visible."""
    one = Watched()
    yield one
    pytest_twisted.blockon(one.stop())


LONG = 60_000


def fault(directive: str, **extra: Any) -> bytes:
    """A faulted chat stream."""
    return request_bytes(CHAT, chat_body(**extra), {FAULT: directive})


# What the client has sent, how much it reads first, and where that leaves the server.
STATES = {
    "half a request head": (b"POST /v1/chat/completions HTT", 0),
    "half a request body": (fault("reset", padding="x" * 1000)[:-500], 0),
    "waiting for the next frame": (fault(f"reset;after_chunks=2;delay_ms={LONG}"), 1),
    "waiting for a month": (fault("reset;after_chunks=2;delay_ms=18446744073709551615"), 1),
    "streaming without a pause": (fault("reset;after_chunks=4294967295;delay_ms=0"), 100_000),
    "held up by a reader that stopped": (fault("reset;after_chunks=4294967295;delay_ms=0"), 1),
    "draining before a death": (fault("reset;after_chunks=20000;delay_ms=0"), 1),
    "stalled": (fault("stall;after_chunks=2;delay_ms=0"), 400),
    "stalled, and sent far ahead": (fault("stall;after_chunks=2;delay_ms=0") + b"z" * 200_000, 400),
    "stalled at once": (fault("stall;after_chunks=0"), 1),
    "a healthy stream": (request_bytes(CHAT, chat_body(max_tokens=100_000)), 1000),
    "a healthy completion": (
        request_bytes(COMPLETIONS, completions_body(max_tokens=100_000)),
        1000,
    ),
    "waiting for an answer in one piece": (
        request_bytes(CHAT, chat_body(max_tokens=100_000, stream=False)),
        0,
    ),
    "idle after an answer": (request_bytes("/health"), 10),
    "refused": (request_bytes(CHAT, encode({})), 10),
}


@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize("state", STATES)
@pytest_twisted.inlineCallbacks
def test_leaving(watched: Watched, state: str, how: str) -> Any:
    """Whatever the server was doing for the client is over at once, without a word."""
    sent, read = STATES[state]
    yield deferToThread(visit, watched.address, sent, read, how)
    yield until_nothing_is_left(watched)
    assert watched.noise == []


def visit(address: tuple[str, int], sent: bytes, read: int, how: str) -> None:
    """Send, read a little, leave."""
    small = 4096 if read == 1 else None
    with RawClient(address, receive_buffer=small) as client:
        client.send(sent)
        count = 0
        while count < read:
            count += len(client.receive())
        if how == "RST":
            client.reset()


@inlineCallbacks
def until_nothing_is_left(watched: Watched) -> Any:
    """Wait for the server to notice, a second or two at most."""
    for _ in range(200):
        if not watched.left():
            return
        yield deferLater(reactor, 0.01, lambda: None)
    raise AssertionError(watched.left())


@pytest_twisted.inlineCallbacks
def test_a_stall_holds_no_timer(watched: Watched) -> Any:
    """While it stalls there is a connection and nothing else: no timer, no producer at work."""
    client = RawClient(watched.address)
    yield deferToThread(client.send, fault("stall;after_chunks=1;delay_ms=0"))
    yield deferToThread(lambda: client.read(silence=0.3))
    assert watched.timers() == []
    assert len(watched.service.lab.open) == 1
    client.socket.close()
    yield until_nothing_is_left(watched)
