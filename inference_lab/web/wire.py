"""The only module that puts a stream on a transport, and the one that kills it.

Strategy: the handler parks on `Wire.gone`, so that Klein never finishes a
response behind our back; a clean end lets it go, an abrupt one closes the
connection and lets the loss of it cancel the handler. Before an abrupt end the
wire waits until every byte has arrived. A stream with the usual head is framed
by Twisted; one with a head of its own is framed here, and Twisted is told that
nothing is left to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime
from twisted.logger import Logger
from twisted.web.http import RESPONSES
from zope.interface import implementer

from inference_lab.faults.player import Player
from inference_lab.faults.steps import End, Head, Raw
from inference_lab.web import drain
from inference_lab.web.ledger import Ledger, Totals

GRACE = 0.025
"""Seconds between the last byte and an abrupt end, at the least."""

TERMINATOR = b"0\r\n\r\n"
"""The chunk that ends a body."""

WRITES_BETWEEN_LOOKS = 256
"""After so many writes those that have arrived are forgotten."""

POLL = 0.005
"""Seconds between two looks at the send queue."""


class _Idle:
    """Stands in before a player is attached."""

    def pause(self) -> None:
        """Nothing plays."""

    def resume(self) -> None:
        """Nothing plays."""

    def stop(self) -> None:
        """Nothing plays."""

    frames = 0
    tokens = 0


@implementer(IPushProducer)
class Wire:
    """One streamed response on one ``twisted.web`` request.

    :ivar undelivered: whether a death did not wait for a reader any longer.
    :ivar sent: what was given to the connection, head and framing included.
    :ivar lost: how many bytes of it had not arrived when the connection was gone.
    :ivar ended: how it ended, None as long as it has not, or if the client left first.
    :ivar left: whether the client went before it had all.
    :ivar on_held: called when nothing but keepalives will follow.
    :ivar on_lost: called when it turns out that a clean end never arrived.
    :ivar first_byte_at: when the head or the first raw byte left (the clock's
        seconds), None before it.
    :ivar gone: fires when a clean end is due or the client left; return it
        from the Klein handler.
    :param drain_timeout: seconds without the peer acknowledging anything after
        which an abrupt end stops waiting.
    :param on_gone: called once with how it ended, `None` meaning that the
        client left first.
    """

    _log = Logger()

    def __init__(
        self,
        request: Any,
        clock: IReactorTime,
        drain_timeout: float,
        on_gone: Callable[[End | None], None] = lambda how: None,
    ) -> None:
        self._request = request
        self._clock = clock
        self._drain_timeout = drain_timeout
        self._on_gone = on_gone
        self._player: Player | _Idle = _Idle()
        self._timer: IDelayedCall | None = None
        self._ending: End | None = None
        self._closed = False
        self._held = False
        self._terminated = False
        self._framing: str | None = None
        self.undelivered = False
        self.lost = 0
        self.left = False
        self.ended: End | None = None
        self.on_held: Callable[[], None] = _nobody
        self.on_lost: Callable[[], None] = _nobody
        self._ledger = Ledger()
        self._writes = 0
        self.first_byte_at: float | None = None
        self.gone: Deferred[None] = Deferred(self._cancelled)
        self._transport = None
        if self._has_channel():
            self._transport = request.channel.transport
            request.channel.afterwards = None
        request.notifyFinish().addErrback(self._left)

    # -- opening -----------------------------------------------------------

    def open(self) -> None:
        """Send the status line and headers of an event stream, and nothing else."""
        self._request.setResponseCode(200)
        self._request.setHeader("content-type", "text/event-stream; charset=utf-8")
        self._request.setHeader("cache-control", "no-cache")
        self._request.write(b"")
        self._count(head_size(self._request))

    def play(self, player: Player) -> None:
        """Let ``player`` speak, at the reader's pace."""
        self._player = player
        self._request.registerProducer(self, True)
        player.start()

    # -- the player's outlet -----------------------------------------------

    def write(self, data: bytes) -> None:
        """Send a piece of the body; in a chunked one it is one chunk."""
        if self._closed or not data:
            return
        chunked = self._framing == "chunked" or (
            self._framing is None and bool(getattr(self._request, "chunked", False))
        )
        framed = _chunk(data) if chunked else data
        overhead = framed.index(b"\n") + 1 if chunked else 0
        if self._framing is None:
            self._request.write(data)
            self._count(len(framed), overhead, len(data))
        else:
            self._put(framed, overhead, len(data))

    def head(self, head: Head) -> None:
        """Send a head of the script's own; the body after it is framed here."""
        if self._closed:
            return
        self._own()
        lines = [_status_line(head)]
        chunked = head.framing == "chunked" and head.status >= 200
        if chunked and self._request.clientproto == b"HTTP/1.0":
            chunked = False
        fields = [(n.encode(), v.encode()) for n, v in head.headers]
        if not head.exact and head.status >= 200:
            fields = [*self._usual(head), *fields]
        lines += [name + b": " + value for name, value in fields]
        if chunked and not any(name.lower() == b"transfer-encoding" for name, _ in fields):
            lines.append(b"transfer-encoding: chunked")
        self._put(b"\r\n".join([*lines, b"", b""]))
        if head.status >= 200:
            self._framing = "close" if head.framing == "chunked" and not chunked else head.framing
            if self._framing == "close":
                self._request.channel.persistent = False

    def raw(self, raw: Raw) -> None:
        """Send bytes that are no part of a framed body: heads, chunk headers, junk."""
        if not self._closed:
            # What has no framing cannot be outside of it.
            bare = self._framing in ("length", "close")
            body = len(raw.data) if bare else raw.body
            self._put(raw.data, len(raw.data) - body, body)

    def terminate(self, data: bytes) -> None:
        """End the body with ``data``: a clean end then adds nothing."""
        if not self._closed:
            self._own()
            self._terminated = True
            self._put(data)

    def hold(self) -> None:
        """From now on a client that leaves ends a stream that was held open."""
        self._held = True
        self.on_held()

    @property
    def ending(self) -> End | None:
        """Which end has begun, or is pretended not to."""
        return End.HOLD if self._held and self._ending is None else self._ending

    @property
    def sent(self) -> Totals:
        """All that was given to the connection."""
        return evolve(self._ledger.sent, frames=self._player.frames, tokens=self._player.tokens)

    @property
    def arrived(self) -> Totals:
        """As much of it as reached the client: all, unless bytes were `lost`."""
        return self._ledger.arrived(self.lost) if self.lost else self.sent

    def _own(self) -> None:
        """Take the head and the terminator from Twisted."""
        if self._framing is None:
            self._framing = "none"
        self._request.startedWriting = 1
        self._request.chunked = 0

    def _usual(self, head: Head) -> list[tuple[bytes, bytes]]:
        """The headers of any response of ours, without those that the script says itself."""
        usual = self._request.responseHeaders
        for name, value in (
            ("content-type", "text/event-stream; charset=utf-8"),
            ("cache-control", "no-cache"),
        ):
            usual.setRawHeaders(name, [value])
        own = {name.lower().encode() for name, _ in head.headers}
        return [
            (name, value)
            for name, values in usual.getAllRawHeaders()
            if name.lower() not in own
            for value in values
        ]

    def _put(self, data: bytes, overhead: int = 0, body: int = 0) -> None:
        if data and self._has_channel():
            self._request.channel.write(data)
            self._count(len(data), overhead, body)

    def _count(self, size: int, overhead: int = 0, body: int = 0) -> None:
        sent = self._ledger.sent
        after = Totals(
            sent.wire_bytes + size,
            sent.body_bytes + body,
            self._player.frames,
            self._player.tokens,
        )
        self._ledger.add(after, overhead, body)
        self._writes += 1
        if self._writes % WRITES_BETWEEN_LOOKS == 0:
            self._ledger.forget(self._unsent() or 0)
        if self.first_byte_at is None:
            self.first_byte_at = self._clock.seconds()

    def end(self, how: End) -> None:
        """Stop the response."""
        if self._closed or self._ending is not None:
            return
        self._ending = how
        match how:
            case End.CLEAN:
                self._request.unregisterProducer()
                self._finish()
                if self._has_channel():
                    self._request.channel.afterwards = self._lost_after
                self._close(how)
                self.gone.callback(None)
            case End.HOLD:
                self.on_held()
            case End.FIN | End.RST:
                self._timer = self._clock.callLater(
                    GRACE, self._drain, self._unsent(), self._clock.seconds()
                )

    def _finish(self) -> None:
        """Write the terminator that Twisted will not write, and count the one it will."""
        if self._framing == "chunked":
            if not self._terminated:
                self._put(TERMINATOR)
        elif not getattr(self._request, "startedWriting", True):
            # Not even a head was wanted, and Twisted would send one.
            self._own()
        elif self._framing is None and getattr(self._request, "chunked", False):
            self._count(len(TERMINATOR))

    def cut(self) -> None:
        """Close at once, without a terminator: the server is going down."""
        if not self._closed:
            self._ending = End.FIN
            self._kill(End.FIN)

    # -- back-pressure (the transport's side) ------------------------------

    def pauseProducing(self) -> None:
        """The send buffer is full."""
        self._player.pause()

    def resumeProducing(self) -> None:
        """The send buffer has room again."""
        self._player.resume()

    def stopProducing(self) -> None:
        """The transport is closing; `_left` follows."""
        self._player.stop()

    # -- dying -------------------------------------------------------------

    def _unsent(self) -> int | None:
        return drain.unsent(self._request.channel.transport) if self._has_channel() else None

    def _has_channel(self) -> bool:
        return getattr(self._request, "channel", None) is not None

    def _drain(self, before: int | None, progressed: float) -> None:
        self._timer = None
        left = self._unsent()
        now = self._clock.seconds()
        if left and before is not None and left < before:
            progressed = now
        if left and now - progressed < self._drain_timeout:
            self._timer = self._clock.callLater(POLL, self._drain, left, progressed)
            return
        assert self._ending is not None
        if left:
            self._log.warn(
                "Reader took nothing for {timeout} s: dying with {left} bytes undelivered",
                timeout=self._drain_timeout,
                left=left,
            )
            self.undelivered = True
            self.lost = left
        self._kill(self._ending, stuck=bool(left))

    def _kill(self, how: End, stuck: bool = False) -> None:
        # A handler driven without a server has no channel.
        channel = getattr(self._request, "channel", None)
        tcp = channel is not None and drain.can_reset(channel.transport)
        # An orderly close would wait for a stuck reader for ever. Twisted's
        # abort is SO_LINGER(1, 0) and close: RST and nothing else.
        if channel is not None and (stuck or (tcp and how is End.RST)):
            self._close(End.RST if tcp else End.FIN)
            channel.transport.abortConnection()
            return
        if how is End.RST:
            self._log.warn("No TCP socket here to reset: closing instead")
        self._close(End.FIN)
        self._request.loseConnection()
        if channel is not None:
            # TLS would hold the connection until the peer returns its goodbye.
            drain.close(channel.transport)

    def _close(self, how: End | None) -> None:
        """Stop everything of ours, once: the stream has ended like this."""
        if self._closed:
            return
        self.ended = how
        self._closed = True
        self._player.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._on_gone(how)

    def _left(self, reason: object) -> None:
        if not self._closed:
            self.lost = drain.lost(self._transport)
            self.left = True
            self._close(End.HOLD if self.ending is End.HOLD else None)

    def _lost_after(self, lost: int) -> None:
        """The client left after a clean end, and before all of it had arrived."""
        self.lost = lost
        self.left = True
        self.ended = None
        self.on_lost()

    def _cancelled(self, gone: Deferred[None]) -> None:
        # Klein cancels when the connection is lost; `_left` does the work.
        gone.callback(None)


def _nobody() -> None:
    """Nobody wants to know."""


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _status_line(head: Head) -> bytes:
    reason = head.reason
    if reason is None:
        reason = RESPONSES.get(head.status, b"").decode("latin-1")
    return f"HTTP/1.1 {head.status} {reason}".encode()


def head_size(request: Any) -> int:
    """The bytes of the head that Twisted wrote; 0 for a request that has none."""
    headers = getattr(request, "responseHeaders", None)
    if headers is None:
        return 0
    line = b"%b %d %b\r\n" % (request.clientproto, request.code, request.code_message)
    fields = [(name, value) for name, values in headers.getAllRawHeaders() for value in values]
    return len(line) + sum(len(name) + len(value) + 4 for name, value in fields) + 2
