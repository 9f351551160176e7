"""Log probabilities that are valid and always the same.

The token that comes is the likeliest one, with a probability from 1/2 to 1; what remains is shared
among the alternatives, each having half of what the ones before it left.  Alternatives to a token
are the tokens of other seeds at its position, so they are different tokens, with ids, of which
each could have come.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from inference_lab.content.text import WORDS, token

__all__ = ["MOST_ALTERNATIVES", "Logprob", "alternatives", "logprob", "piece_alternatives"]

MOST_ALTERNATIVES: Final = len(WORDS)
"""The most entries that a position has, the token itself included."""

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = 2**64 - 1

_Text: TypeAlias = Callable[[int], str]


class Logprob(NamedTuple):
    """A token and how likely it was."""

    text: str
    logprob: float
    """The natural logarithm of its probability: below 0."""
    rotation: int
    """The rotation whose token it is, for `inference_lab.content.text.token_id`."""

    @property
    def bytes(self) -> list[int]:
        """The token's text in UTF-8."""
        return list(self.text.encode("utf-8", "replace"))


def logprob(position: int, rotation: int = 0) -> float:
    """The logarithm of the probability of token ``position``, from -0.7 to 0."""
    return _round(math.log(_probability(position, rotation)))


def alternatives(position: int, rotation: int, n: int) -> list[Logprob]:
    """The ``n`` likeliest tokens at ``position`` (at most 32), likeliest first.

    The first is the token that comes.
    """
    return _shared(_probability(position, rotation), n, rotation, lambda r: token(position, r))


def piece_alternatives(index: int, text: str, n: int) -> list[Logprob]:
    """As `alternatives`, for piece ``index`` of a scripted answer or a document."""
    first = _probability(index, len(text) % len(WORDS))
    words = [text, *(word for word in WORDS if word != text)]
    return _shared(first, min(n, len(WORDS)), 0, words.__getitem__)


def _shared(first: float, n: int, rotation: int, text_of: _Text) -> list[Logprob]:
    """The likeliest and its followers, each the token of the next rotation."""
    found = []
    probability, left = first, 1 - first
    for offset in range(min(n, len(WORDS))):
        turned = (rotation + offset) % len(WORDS)
        found.append(Logprob(text_of(turned), _round(math.log(probability)), turned))
        probability = left = left / 2
    return found


def _probability(position: int, rotation: int) -> float:
    """From 1/2 to less than 1; neighbours have nothing in common."""
    # Fibonacci hashing (Knuth, volume 3, 6.4) of what names the token, twice for good measure.
    mixed = (position * len(WORDS) + rotation + 1) * _GOLDEN & _MASK
    mixed = (mixed ^ mixed >> 32) * _GOLDEN & _MASK
    return 0.5 + (mixed >> 12) / 2**53


def _round(value: float) -> float:
    # The last bits of a logarithm differ between C libraries.
    return min(round(value, 6), -1e-6)
