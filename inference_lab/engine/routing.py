"""Which replica, or rank of a data-parallel group, gets a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inference_lab.configuration.schema import KvAware, LeastLoaded, PrefixAffinity, Router


class Target(Protocol):
    """What a router knows of one place a request could go to."""

    @property
    def requests(self) -> int:
        """Requests that run or wait there."""

    @property
    def queued_prefill_tokens(self) -> int:
        """Prompt tokens still to be computed there."""

    def cached_tokens(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        """How much of a prompt its prefix cache holds."""


class Routing:
    """A routing policy and its memory."""

    def __init__(self, policy: Router) -> None:
        self._policy = policy
        self._turn = 0

    def choose(self, targets: Sequence[Target], hashes: Sequence[int], prompt_tokens: int) -> int:
        """Index of the target for a prompt with these block hashes.

        Ties that a policy leaves open go to the lowest index.
        """
        if len(targets) == 1:
            return 0
        match self._policy:
            case LeastLoaded():
                return _least_loaded(targets)
            case PrefixAffinity(max_load_ratio=ratio):
                return _prefix_affinity(targets, hashes, prompt_tokens, ratio)
            case KvAware(load_weight=weight):
                costs = [
                    prompt_tokens
                    - target.cached_tokens(hashes, prompt_tokens)
                    + weight * target.queued_prefill_tokens
                    for target in targets
                ]
                return costs.index(min(costs))
            case _:
                chosen = self._turn % len(targets)
                self._turn = chosen + 1
                return chosen


def _load(target: Target) -> tuple[int, int]:
    return target.requests, target.queued_prefill_tokens


def _least_loaded(targets: Sequence[Target]) -> int:
    return min(range(len(targets)), key=lambda index: _load(targets[index]))


def _prefix_affinity(
    targets: Sequence[Target], hashes: Sequence[int], prompt_tokens: int, ratio: float | None
) -> int:
    """The holder of the longest prefix, unless it is overloaded or there is none."""
    cached = [target.cached_tokens(hashes, prompt_tokens) for target in targets]
    holder = min(range(len(targets)), key=lambda i: (-cached[i], _load(targets[i])))
    if not cached[holder]:
        return _least_loaded(targets)
    mean = sum(target.requests for target in targets) / len(targets)
    if ratio is not None and targets[holder].requests > ratio * mean:
        return _least_loaded(targets)
    return holder
