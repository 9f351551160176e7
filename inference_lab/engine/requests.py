"""One request as the scheduler sees it, and why it may be refused."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from attrs import define, field

from inference_lab.engine.kv_cache import Holding


class Refused(Exception):
    """A request the engine will not take. Nothing was queued."""


class ContextTooLong(Refused):
    """The prompt, or prompt and ``max_tokens`` together, pass the context length.

    All figures are in tokens; ``limit`` is the context length. Without chunked prefill a
    prompt must also fit one step's token budget, which is then the limit that is named.
    """

    def __init__(self, prompt_tokens: int, max_tokens: int, limit: int) -> None:
        super().__init__(
            f"{prompt_tokens} prompt tokens and {max_tokens} output tokens do not fit {limit}"
        )
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.limit = limit


class TooLargeForKV(Refused):
    """Even alone, the request would not fit the KV cache. Figures are in blocks."""

    def __init__(self, needed: int, total: int) -> None:
        super().__init__(f"the request needs {needed} KV blocks, the cache has {total}")
        self.needed = needed
        self.total = total


class QueueFull(Refused):
    """As many requests wait already as are allowed to."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} requests are waiting")
        self.limit = limit


class RequestState(Enum):
    """Where a request stands; the values are words fit for a journal."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


class StepCounter(Protocol):
    """What a decoding request's progress is read from."""

    steps: int


@define(eq=False, slots=True)
class Handle:
    """A submitted request.

    Times are simulated seconds, ``None`` until they happen: ``arrival`` as submitted,
    ``scheduled_at`` the start of the first step that worked on it, ``first_token_at`` and
    ``finished_at`` ends of steps (an aborted request has no ``finished_at``). ``target``
    is how many tokens it will produce, at most ``max_tokens``. ``cached_tokens`` prompt
    tokens came from the prefix cache at the first admission. ``replica`` and ``rank``
    are indices: where it was routed to.
    """

    id: str
    prompt_tokens: int
    max_tokens: int
    target: int
    priority: int
    arrival: float
    kv: Holding = field(repr=False)
    replica: int = 0
    rank: int = 0

    state: RequestState = RequestState.WAITING
    scheduled_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    aborted: bool = False

    # For the scheduler only. While in a batch, `computed` and `_produced` stand still:
    # a member's progress is its `base` plus the steps the batch has made.
    computed: int = field(default=0, repr=False)
    prefill_length: int = field(default=0, repr=False)
    admission: int = field(default=0, repr=False)
    place: int = field(default=0, repr=False)
    batch: StepCounter | None = field(default=None, repr=False)
    base: int = field(default=0, repr=False)
    _produced: int = field(default=0, repr=False)

    @property
    def produced(self) -> int:
        """Tokens produced so far. Costs the engine nothing until it is asked for."""
        if self.batch is not None:
            return self.base + self.batch.steps - self.prompt_tokens
        return self._produced

    @produced.setter
    def produced(self, tokens: int) -> None:
        self._produced = tokens

    @property
    def resident(self) -> int:
        """Positions in the KV cache that a next step would build on."""
        if self.batch is not None:
            return self.base + self.batch.steps - 1
        return self.computed

    @property
    def finish_reason(self) -> str:
        """``length`` for an answer that used all of ``max_tokens``, else ``stop``."""
        return "length" if self.target >= self.max_tokens else "stop"

    @property
    def last_context(self) -> int:
        """Positions computed in its whole life; the last token is never fed back."""
        return self.prompt_tokens + self.target - 1
