"""What stands behind a healthy answer: something that generates tokens over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import frozen


@frozen
class Job:
    """One answer to be generated. Lengths are in tokens.

    ``target`` is how many it will have, never more than ``max_tokens``.
    ``finish_reason`` is what the answer will end with.
    ``streaming`` says whether anyone wants to hear of tokens before the last.
    Lower ``priority`` goes first, where the scheduler honours it.
    ``block_hashes`` name the full KV blocks of the prompt.
    ``asked_at`` is when the request came, on the reactor's clock; by default now.
    """

    prompt_tokens: int
    max_tokens: int
    target: int
    streaming: bool
    finish_reason: str = "length"
    priority: int = 0
    block_hashes: Sequence[int] = ()
    id: str = ""
    asked_at: float | None = None


class Listener(Protocol):
    """Who waits for a job."""

    def generated(self, count: int) -> None:
        """``count`` more tokens exist; only called for a streaming job."""

    def completed(self) -> None:
        """The last token exists."""


class Ticket(Protocol):
    """A job in the works."""

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache; 0 until the job is scheduled."""

    @property
    def state(self) -> str:
        """``waiting``, ``prefill``, ``decode`` or ``finished``."""

    def abort(self) -> None:
        """Forget the job; nobody is told anything more. Idempotent."""


class Backend(Protocol):
    """Generates the answers of one model."""

    def submit(self, job: Job, listener: Listener) -> Ticket:
        """Queue ``job``.

        :raises inference_lab.engine.requests.Refused: when it is not taken.
        """
