"""Which part of a stream had arrived when its client left: a short memory of its writes."""

from __future__ import annotations

from collections import deque

from attrs import Factory, define, frozen

MOST = 16384
"""Writes that are remembered; of a reader that is further behind less is known."""


@frozen
class Totals:
    """What a stream has come to: bytes on the connection, bytes of the body, frames, tokens."""

    wire_bytes: int = 0
    body_bytes: int = 0
    frames: int = 0
    tokens: int = 0


@frozen
class _Write:
    """One write: ``overhead`` bytes of framing, then ``size`` of the body, then the rest."""

    before: Totals
    after: Totals
    overhead: int
    size: int


@define
class Ledger:
    """The writes of a stream that may still be on their way.

    :ivar sent: everything so far.
    """

    sent: Totals = Totals()
    _writes: deque[_Write] = Factory(deque)

    def add(self, after: Totals, overhead: int, size: int) -> None:
        """One more write, which led to ``after``."""
        self._writes.append(_Write(self.sent, after, overhead, size))
        self.sent = after
        if len(self._writes) > MOST:
            self._writes.popleft()

    def forget(self, unsent: int) -> None:
        """All but the last ``unsent`` bytes have arrived."""
        arrived = self.sent.wire_bytes - unsent
        while self._writes and self._writes[0].after.wire_bytes <= arrived:
            self._writes.popleft()

    def arrived(self, lost: int) -> Totals:
        """What had arrived if the last ``lost`` bytes did not.

        Frames and tokens count when the write that completed them has arrived in full.
        """
        arrived = max(0, self.sent.wire_bytes - lost)
        for write in self._writes:
            if write.after.wire_bytes <= arrived:
                continue
            before = write.before
            body = arrived - before.wire_bytes - write.overhead
            return Totals(
                arrived,
                before.body_bytes + min(max(0, body), write.size),
                before.frames,
                before.tokens,
            )
        return self.sent
