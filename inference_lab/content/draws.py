"""Chance that comes out alike everywhere.

Whatever looks random in an answer is a function of what the request says, so that the same request
gets the same bytes from any process.  Of `random.Random`, only ``random()`` is promised to stay the
same over Python's versions; nothing else of it is used here.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final, TypeVar

__all__ = ["Draws"]

T = TypeVar("T")

_NORMAL: Final = NormalDist()


class Draws:
    """A sequence of draws that depends on ``parts`` and nothing else.

    :param parts: text, numbers or None; each counts with its type, so 1 and "1" differ.
    """

    def __init__(self, *parts: str | int | float | None) -> None:
        digest = hashlib.sha256()
        for part in parts:
            coded = f"{type(part).__name__}:{part}".encode("utf-8", "surrogatepass")
            digest.update(len(coded).to_bytes(8, "big") + coded)
        self._random = random.Random(int.from_bytes(digest.digest(), "big"))

    def uniform(self) -> float:
        """A number from 0 (included) to 1 (excluded)."""
        return self._random.random()

    def between(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included.

        Not every integer can come up in a range of more than 2**53.
        """
        return low + min(int(self._random.random() * (high - low + 1)), high - low)

    def choice(self, values: Sequence[T]) -> T:
        """One of ``values``."""
        return values[self.between(0, len(values) - 1)]

    def normal(self) -> float:
        """A standard normal variate, by the inverse of its distribution function."""
        # 0 has no inverse; half a step of random() above it is as good.
        return _NORMAL.inv_cdf(self._random.random() or 2**-54)
