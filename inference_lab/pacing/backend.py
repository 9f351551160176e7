"""What stands behind a healthy answer: something that generates tokens over time."""

from __future__ import annotations

from typing import Protocol

from attrs import frozen


@frozen
class Job:
    """One answer to be generated, in tokens.

    ``target`` is how many it will have, never more than ``max_tokens``.
    ``streaming`` says whether anyone wants to hear of tokens before the last.
    """

    prompt_tokens: int
    max_tokens: int
    target: int
    streaming: bool


class Listener(Protocol):
    """Who waits for a job."""

    def generated(self, count: int) -> None:
        """``count`` more tokens exist; only called for a streaming job."""

    def completed(self) -> None:
        """The last token exists."""


class Ticket(Protocol):
    """A job in the works."""

    def abort(self) -> None:
        """Forget the job; nobody is told anything more. Idempotent."""


class Backend(Protocol):
    """Generates the answers of one model."""

    def submit(self, job: Job, listener: Listener) -> Ticket:
        """Queue ``job``."""
