"""The only module that puts a stream on a transport, and the one that kills it.

Strategy: the handler parks on `Wire.gone`, so that Klein never finishes a
response behind our back; a clean end lets it go, an abrupt one closes the
connection and lets the loss of it cancel the handler. Before an abrupt end the
wire waits until every byte has arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from inference_lab.faults.player import Player
from inference_lab.faults.steps import End
from inference_lab.web import drain

GRACE = 0.025
"""Seconds between the last byte and an abrupt end, at the least."""

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


@implementer(IPushProducer)
class Wire:
    """One streamed response on one ``twisted.web`` request.

    :ivar undelivered: whether a death did not wait for a reader any longer.
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
        self.undelivered = False
        self.gone: Deferred[None] = Deferred(self._cancelled)
        request.notifyFinish().addErrback(self._lost)

    # -- opening -----------------------------------------------------------

    def open(self) -> None:
        """Send the status line and headers of an event stream, and nothing else."""
        self._request.setResponseCode(200)
        self._request.setHeader("content-type", "text/event-stream; charset=utf-8")
        self._request.setHeader("cache-control", "no-cache")
        self._request.write(b"")

    def play(self, player: Player) -> None:
        """Let ``player`` speak, at the reader's pace."""
        self._player = player
        self._request.registerProducer(self, True)
        player.start()

    # -- the player's outlet -----------------------------------------------

    def write(self, data: bytes) -> None:
        """Send a piece of the body; under HTTP/1.1 it is one chunk."""
        if not self._closed:
            self._request.write(data)

    def end(self, how: End) -> None:
        """Stop the response."""
        if self._closed or self._ending is not None:
            return
        self._ending = how
        match how:
            case End.CLEAN:
                self._request.unregisterProducer()
                self._close()
                self.gone.callback(None)
            case End.HOLD:
                pass
            case End.FIN | End.RST:
                self._timer = self._clock.callLater(
                    GRACE, self._drain, self._unsent(), self._clock.seconds()
                )

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
        """The transport is closing; `_lost` follows."""
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
        self._kill(self._ending, stuck=bool(left))

    def _kill(self, how: End, stuck: bool = False) -> None:
        self._close()
        # A handler driven without a server has no channel.
        channel = getattr(self._request, "channel", None)
        reset = how is End.RST and channel is not None and drain.can_reset(channel.transport)
        # An orderly close would wait for a stuck reader for ever. Twisted's
        # abort is SO_LINGER(1, 0) and close: RST and nothing else.
        if channel is not None and (stuck or reset):
            channel.transport.abortConnection()
            return
        if how is End.RST:
            self._log.warn("No TCP socket here to reset: closing instead")
        self._request.loseConnection()
        if channel is not None:
            # TLS would hold the connection until the peer returns its goodbye.
            drain.close(channel.transport)

    def _close(self) -> None:
        """Stop everything of ours, once."""
        if self._closed:
            return
        self._closed = True
        self._player.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._on_gone(self._ending)

    def _lost(self, reason: object) -> None:
        if not self._closed:
            if self._ending is not End.HOLD:
                self._ending = None
            self._close()

    def _cancelled(self, gone: Deferred[None]) -> None:
        # Klein cancels when the connection is lost; `_lost` does the work.
        gone.callback(None)
