"""Plays a stream's steps on a clock.

Strategy: one loop pulls steps until it must wait, for time, for a token or for
a reader that is behind, and remembers only what it waits for. Whatever is sent
between two waits leaves as one write. There is at most one timer, and `stop`
leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Protocol, assert_never, cast

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from inference_lab.faults.steps import (
    AwaitToken,
    End,
    Head,
    Hold,
    Pause,
    Raw,
    Send,
    Step,
    Terminate,
)

LONGEST_TIMER = 3600.0
"""Seconds. Longer waits go in hops: an event loop's poll takes no larger ones."""

SENDS_PER_TURN = 256
"""Frames played in one reactor turn before others get theirs."""

FLUSH_BYTES = 65536
"""Joined bytes that are written out even though no wait came yet."""


class Outlet(Protocol):
    """Where a player's bytes and its stream's end go."""

    def write(self, data: bytes) -> None:
        """Send part of the body."""

    def end(self, how: End) -> None:
        """Stop the response. Nothing is written after it."""


class Stage(Outlet, Protocol):
    """An outlet that can do more than a body: what a script of its own head needs."""

    def head(self, head: Head) -> None:
        """Send a status line and headers."""

    def raw(self, raw: Raw) -> None:
        """Send bytes outside of the body's framing."""

    def terminate(self, data: bytes) -> None:
        """End the body with these bytes in place of the framing's own."""

    def hold(self) -> None:
        """What follows only keeps the connection alive."""


class Tokens(Protocol):
    """Where a player learns that the engine generated something."""

    def take(self) -> bool:
        """Use up one generated token, if there is one."""


class NoTokens:
    """For scripts on a clock: there is no engine behind them."""

    def take(self) -> bool:
        """Never has any."""
        return False


class Player:
    """Drives ``steps`` into ``outlet``.

    `pause` and `resume` are the reader's back-pressure, `wake` says that tokens
    have come, `stop` ends the play early (the client left). A step iterator that
    raises ends the stream without a terminator: a broken script must never look
    like a finished answer.

    :ivar frames: how many frames were sent.
    :ivar tokens: how many tokens of the answer were said with them.
    """

    _log = Logger()

    def __init__(
        self,
        steps: Iterator[Step],
        outlet: Outlet | Stage,
        clock: IReactorTime,
        tokens: Tokens | None = None,
    ) -> None:
        self._steps = steps
        self._outlet = outlet
        self._clock = clock
        self._tokens: Tokens = NoTokens() if tokens is None else tokens
        self._due = 0.0
        self._timer: IDelayedCall | None = None
        self._awaiting: AwaitToken | None = None
        self._paused = False
        self._held = False
        self.frames = 0
        self.tokens = 0
        self._over = False
        self._joined: list[bytes] = []
        self._joined_bytes = 0

    def start(self) -> None:
        """Play from now: the first step is due at once."""
        self._due = self._clock.seconds()
        self._run()

    def pause(self) -> None:
        """The reader is behind: write nothing until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """The reader caught up. What fell due meanwhile is played now."""
        self._paused = False
        if self._held:
            self._held = False
            self._run()

    def wake(self) -> None:
        """Tokens have come for a stream that may be waiting for one."""
        if self._awaiting is not None and self._tokens.take():
            self._awaiting = None
            self._disarm()
            self._due = self._clock.seconds()
            self._run()

    def stop(self) -> None:
        """End the play where it is. Idempotent."""
        self._over = True
        self._awaiting = None
        self._held = False
        self._joined.clear()
        self._disarm()
        if isinstance(self._steps, Generator):
            self._steps.close()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        try:
            self._play()
        except Exception:
            self._log.failure("A stream's script failed; closing without a terminator")
            self._end(End.FIN)

    def _play(self) -> None:
        sends = 0
        while not self._over:
            if self._paused:
                self._held = True
                break
            match next(self._steps, End.CLEAN):
                case Send() as send:
                    self.frames += send.frames
                    self.tokens += send.tokens
                    self._join(send.data)
                    sends += 1
                    if sends >= SENDS_PER_TURN:
                        self._sleep(0.0)
                        break
                case Pause(seconds):
                    self._sleep(seconds)
                    break
                case AwaitToken() as awaited:
                    if not self._tokens.take():
                        self._await(awaited)
                        break
                case Head() | Raw() | Terminate() | Hold() as act:
                    self._flush()
                    self._act(act)
                    sends += 1
                    if sends >= SENDS_PER_TURN:
                        self._sleep(0.0)
                        break
                case End() as how:
                    self._end(how)
                case unknown:
                    assert_never(unknown)
        self._flush()

    def _act(self, act: Head | Raw | Terminate | Hold) -> None:
        stage = cast(Stage, self._outlet)
        match act:
            case Head():
                stage.head(act)
            case Raw():
                stage.raw(act)
            case Terminate(data):
                stage.terminate(data)
            case Hold():
                stage.hold()

    def _await(self, awaited: AwaitToken) -> None:
        self._awaiting = awaited
        if awaited.meanwhile:
            self._due = self._clock.seconds() + awaited.every
            self._arm()

    def _join(self, data: bytes) -> None:
        self._joined.append(data)
        self._joined_bytes += len(data)
        if self._joined_bytes >= FLUSH_BYTES:
            self._flush()

    def _sleep(self, seconds: float) -> None:
        self._due += seconds
        self._arm()

    def _arm(self) -> None:
        wait = max(0.0, self._due - self._clock.seconds())
        self._timer = self._clock.callLater(min(wait, LONGEST_TIMER), self._fired)

    def _fired(self) -> None:
        self._timer = None
        if self._due - self._clock.seconds() > 1e-9:
            self._arm()
        elif self._awaiting is not None:
            # A reader that is behind has enough to read already.
            if not self._paused:
                self.frames += 1
                self._outlet.write(self._awaiting.meanwhile)
            if self._awaiting is not None:
                self._await(self._awaiting)
        else:
            self._run()

    def _flush(self) -> None:
        if self._joined:
            data = b"".join(self._joined)
            self._joined.clear()
            self._joined_bytes = 0
            self._outlet.write(data)

    def _end(self, how: End) -> None:
        self._flush()
        self.stop()
        self._outlet.end(how)
