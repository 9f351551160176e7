"""The journal: one record of each exchange, which tells what happened on its wire.

Strategy: an entry asks its stream for figures for as long as that lives, and keeps
the last ones when it is over. Whoever waits for an end is looked at again whenever
an exchange of theirs has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from typing import Any

import msgspec
from attrs import Factory, asdict, define, field, fields, frozen
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

MOST = 10_000
"""Records that are kept; the oldest goes first."""

OPEN = "open"
ENDS = (OPEN, "clean", "fin", "rst", "held", "client_left")
"""What ``end`` can be. ``held`` is over, too: nothing more will come."""

ENGINE_STATES = ("none", "waiting", "prefill", "decode")


@frozen
class Facts:
    """What is known of an exchange when it begins.

    ``fault`` is the directive that was applied, spelt in full, or ``none``.
    ``resume_position`` is the token at which the answer goes on, None for a new one.
    """

    id: str
    session: str | None
    attempt: int | None
    endpoint: str
    model: str
    fault: str
    prompt_tokens: int
    resume_position: int | None


@frozen
class Figures:
    """What has happened so far.

    Bytes and frames are those that reached the client, ``wire_bytes`` with head and
    framing. ``ttfb_ms`` are milliseconds from the request to the first byte.
    ``left_after_bytes`` are the ``wire_bytes`` of a client that left before the server
    had ended. ``engine_state`` is where the engine has, or had in the end, its part.
    """

    completion_tokens: int = 0
    frames: int = 0
    body_bytes: int = 0
    wire_bytes: int = 0
    ttfb_ms: float | None = None
    end: str = OPEN
    left_after_bytes: int | None = None
    engine_state: str = "none"


ORDER = (
    "id",
    "session",
    "attempt",
    "endpoint",
    "model",
    "fault",
    "prompt_tokens",
    "completion_tokens",
    "resume_position",
    "frames",
    "body_bytes",
    "wire_bytes",
    "ttfb_ms",
    "end",
    "left_after_bytes",
    "engine_state",
)
"""A record's fields, as they are told."""

Record = dict[str, Any]


@define(eq=False)
class Entry:
    """One exchange in the journal."""

    facts: Facts
    _now: Callable[[], Figures]
    _changed: Callable[[Entry], None]
    _write: Callable[[Record], None]
    _last: Figures | None = None

    @property
    def record(self) -> Record:
        """All that is known."""
        figures = self._now() if self._last is None else self._last
        known = asdict(self.facts) | asdict(figures)
        return {name: known[name] for name in ORDER}

    def held(self) -> None:
        """The stream has come to where nothing more will follow."""
        self._changed(self)

    def ended(self) -> None:
        """It is over: these are the last figures. Again, if they turn out to be others."""
        self._last = self._now()
        self._write(self.record)
        self._changed(self)


@frozen
class Query:
    """Which records: those with all of these values, the last ``limit`` of them.

    A ``fault`` may be a mode's name alone.
    """

    wanted: Mapping[str, str | int | None] = Factory(dict)
    limit: int | None = None

    def last(self, records: list[Record]) -> list[Record]:
        """As many of ``records`` as are wanted."""
        return records if self.limit is None else records[max(0, len(records) - self.limit) :]

    def may_match(self, facts: Facts) -> bool:
        """Whether an exchange's facts are those wanted, whatever its figures."""
        return all(
            getattr(facts, name) == value
            or (name == "fault" and facts.fault.partition(";")[0] == value)
            for name, value in self.wanted.items()
            if name in _FACTS
        )

    def matches(self, record: Record) -> bool:
        """Whether its figures are, too."""
        return all(
            record[name] == value for name, value in self.wanted.items() if name not in _FACTS
        )


_FACTS = {attribute.name for attribute in fields(Facts)}


@define(eq=False)
class _Waiter:
    query: Query
    told: Deferred[tuple[list[Record], bool]]
    timer: IDelayedCall


@define
class Journal:
    """The records of one server, oldest first; ``file`` gets those that are complete."""

    clock: IReactorTime
    most: int = MOST
    file: JournalFile | None = None
    _entries: deque[Entry] = field(factory=deque)
    _waiters: list[_Waiter] = field(factory=list)

    def begin(self, facts: Facts, now: Callable[[], Figures]) -> Entry:
        """A new exchange, whose figures ``now`` tells."""
        entry = Entry(facts, now, self._changed, self._write)
        self._entries.append(entry)
        if len(self._entries) > self.most:
            self._entries.popleft()
        return entry

    def find(self, query: Query) -> list[Record]:
        """The records that match, in the order in which they began."""
        return query.last(list(self._matching(query)))

    def wait(self, query: Query, seconds: float) -> Deferred[tuple[list[Record], bool]]:
        """What `find` says once some records match and all of those have ended.

        The flag says that ``seconds`` were not enough. Cancelling forgets the wait.
        """

        def forget(told: Deferred[Any]) -> None:
            timer.cancel()
            self._waiters.remove(waiter)

        def late() -> None:
            self._waiters.remove(waiter)
            told.callback((self.find(query), True))

        told: Deferred[tuple[list[Record], bool]] = Deferred(forget)
        timer = self.clock.callLater(seconds, late)
        waiter = _Waiter(query, told, timer)
        self._waiters.append(waiter)
        self._look(waiter)
        return told

    def clear(self, session: str | None = None) -> int:
        """Forget all records, or those of a session, open ones, too; says how many."""
        kept = [e for e in self._entries if session is not None and e.facts.session != session]
        gone = len(self._entries) - len(kept)
        self._entries = deque(kept)
        for waiter in tuple(self._waiters):
            self._look(waiter)
        return gone

    def close(self) -> None:
        """Let nobody wait any longer, and close the file."""
        for waiter in tuple(self._waiters):
            waiter.told.cancel()
        if self.file is not None:
            self.file.close()

    def _matching(self, query: Query) -> Iterator[Record]:
        for entry in self._entries:
            if query.may_match(entry.facts):
                record = entry.record
                if query.matches(record):
                    yield record

    def _changed(self, entry: Entry) -> None:
        for waiter in tuple(self._waiters):
            if waiter.query.may_match(entry.facts):
                self._look(waiter)

    def _look(self, waiter: _Waiter) -> None:
        if waiter.told.called:
            return
        records = list(self._matching(waiter.query))
        if records and all(record["end"] != OPEN for record in records):
            waiter.timer.cancel()
            self._waiters.remove(waiter)
            waiter.told.callback((waiter.query.last(records), False))

    def _write(self, record: Record) -> None:
        if self.file is not None:
            self.file.write(record)


class JournalFile:
    """Records as JSON lines, appended to a file.

    :raises OSError: if it cannot be opened.
    """

    _log = Logger()

    def __init__(self, path: str) -> None:
        # Unbuffered: a line is there as soon as it is true.
        self._file: FileIO = open(path, "ab", buffering=0)  # noqa: SIM115
        self._failed = False

    def write(self, record: Record) -> None:
        """One line. A full disk ends no stream: it is logged, once."""
        if self._file.closed:
            return
        try:
            self._file.write(msgspec.json.encode(record) + b"\n")
        except OSError:
            if not self._failed:
                self._log.failure("The journal's file cannot be written")
            self._failed = True

    def close(self) -> None:
        """No more lines."""
        self._file.close()
