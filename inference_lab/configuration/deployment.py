"""What the rest of the house gets from an operator's files: one model on one GPU group."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from inference_lab.configuration.schema import (
    Hardware,
    Model,
    RoundRobin,
    Router,
    Scheduler,
    TimeCorrection,
)


@frozen
class Deployment:
    """One model served on one hardware entry, resolved and validated.

    ``name`` is the id the API serves; ``aliases`` are further ids that reach
    it. ``source`` is the file it came from and ``entry`` the hardware entry of
    that file. ``tensor_parallel`` GPUs form a replica, of which there are
    ``replicas``; with ``dp_attention`` each GPU of the group is a rank that
    schedules its own requests. ``fault`` is the file's ``[fault]`` table as
    written: the faults room reads it.
    """

    name: str
    source: str
    entry: str
    model: Model
    hardware: Hardware
    scheduler: Scheduler
    aliases: tuple[str, ...] = ()
    tensor_parallel: int = 1
    expert_parallel: int = 1
    dp_attention: bool = False
    replicas: int = 1
    router: Router = field(factory=RoundRobin)
    time_correction: TimeCorrection = field(factory=TimeCorrection)
    fault: dict[str, Any] | None = None

    @property
    def max_model_len(self) -> int:
        """Context length in tokens: the scheduler's limit, else the model's."""
        limit = self.scheduler.max_model_len or self.model.max_seq_len
        return min(limit, self.model.max_seq_len)
