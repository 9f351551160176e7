"""How long answers are, by a workload's distribution.

A length is a function of the workload's seed, the request's seed and its prompt without any part of
the answer (`inference_lab.content.prompt.Prompt.key`).  So it is the length of the whole answer,
and each leg of one that broke off comes to the same.
"""

from __future__ import annotations

import math
from typing import Final

from attrs import frozen

from inference_lab.content.draws import Draws
from inference_lab.content.workload import (
    Fixed,
    LengthDistribution,
    LogNormal,
    Normal,
    Uniform,
    Workload,
)

__all__ = ["OutputLengths", "draw_length"]

_LONGEST: Final = 2**26


@frozen
class OutputLengths:
    """The lengths of answers under one workload."""

    distribution: LengthDistribution
    seed: int
    """The workload's seed."""

    @classmethod
    def of(cls, workload: Workload) -> OutputLengths:
        """The lengths that ``workload`` asks for."""
        return cls(workload.output_len_dist, workload.seed)

    def length(self, key: str, seed: int | None = None) -> int:
        """The tokens of the whole answer, at least 1.

        :param key: the prompt without any part of the answer.
        :param seed: the request's seed.
        """
        return draw_length(self.distribution, Draws("length", self.seed, seed, key))


def draw_length(distribution: LengthDistribution, draws: Draws) -> int:
    """A length in tokens, from 1 to 2**26; fractions of a token are dropped."""
    match distribution:
        case Fixed():
            length: float = distribution.value
        case Uniform():
            length = draws.between(distribution.min, distribution.max)
        case Normal():
            length = distribution.mean + distribution.std_dev * draws.normal()
        case LogNormal():
            exponent = distribution.mean + distribution.std_dev * draws.normal()
            length = math.exp(min(exponent, math.log(_LONGEST)))
    return int(min(max(length, 1), _LONGEST))
