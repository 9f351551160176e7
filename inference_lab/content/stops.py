"""Where a stop string cuts an answer, known before the first token.

The rules are vLLM's.  Stop strings are looked for after each token, in the order of the request;
the text ends before the one found, and the token that completed it has been generated and is
counted.  Only generated text counts: what the prompt already carries of the answer, a partial word
included, cannot be part of a stop string, and neither can a match end within the first
``min_tokens`` tokens.

What cannot occur costs nothing: another alphabet or another order of words, digits and dots never
comes up; without digits, the first 32 words say all; a whole number between word and dot names its
token.  Only a stop string that ends or begins within a number (``1000.`` first comes up at token
1000) is searched for, in pieces, as far as the answer goes.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from inference_lab.content.text import WORDS, answer, length

__all__ = ["Cut", "cut_in", "first_cut"]

# Any stretch of "word, digits, dot, space" over and over.
_SHAPE: Final = re.compile(
    r"[0-9]+|[0-9]*\.|(?:[0-9]*\. | )?(?:[a-z]+[0-9]+\. )*(?:[a-z]+(?:[0-9]+\.?)?)?"
)
_NUMBER: Final = re.compile(r"[0-9]+")
_WHOLE_NUMBER: Final = re.compile(r"[a-z]([0-9]+)\.")
_ROUND: Final = len(WORDS)
_FIRST_PIECE: Final = 256
_LARGEST_PIECE: Final = 65_536


class Cut(NamedTuple):
    """Where a stop string ended an answer."""

    tokens: int
    """Tokens generated, the one that completed the stop string included."""
    characters: int
    """Characters of the generated text that are sent: those before the stop string."""
    whole: int
    """Tokens that lie before the stop string entirely.

    Who sends no more than these before the finish, and the rest of the ``characters`` with it, can
    be cut off anywhere: the next leg then finds the same stop string at the same place.
    """
    stop: str
    """The stop string, for ``stop_reason``."""


def first_cut(
    start: int,
    count: int,
    rotation: int,
    stops: Sequence[str],
    *,
    partial: str = "",
    min_tokens: int = 0,
) -> Cut | None:
    """The first cut in the ``count`` tokens from token ``start`` on.

    :param rotation: the answer's rotation (see `inference_lab.content.text.rotation`).
    :param partial: what the prompt has of token ``start``; the generated text begins after it.
    :param min_tokens: tokens during which stop strings are not looked for.
    :return: None if no stop string comes up.
    :raises ValueError: for an empty stop string.
    """
    if not all(stops):
        raise ValueError("a stop string cannot be empty")
    span = _Span(start, count, rotation, len(partial), min_tokens)
    found = span.find(stops)
    if not found:
        return None

    def cut(stop: str, at: int) -> Cut:
        tokens = span.token_before(at + len(stop)) - start
        return Cut(tokens, at - span.begin, span.token_at(at) - start, stop)

    # Of several that one token completes, the first in the request wins.
    cuts = [cut(stop, found[stop]) for stop in stops if stop in found]
    return min(cuts, key=lambda one: one.tokens)


def cut_in(pieces: Sequence[str], stops: Sequence[str], *, min_tokens: int = 0) -> Cut | None:
    """As `first_cut`, for an answer that is a list of pieces, one token each."""
    text = "".join(pieces)
    ends = [*accumulate(map(len, pieces))]
    after = ends[min(min_tokens, len(ends)) - 1] if min_tokens and ends else 0
    best: Cut | None = None
    for stop in stops:
        if not stop:
            raise ValueError("a stop string cannot be empty")
        at = text.find(stop, max(0, after - len(stop) + 1))
        if at < 0:
            continue
        cut = Cut(bisect_left(ends, at + len(stop)) + 1, at, bisect_right(ends, at), stop)
        if best is None or cut.tokens < best.tokens:
            best = cut
    return best


class _Span:
    """A stretch of an answer; characters are counted from the answer's first."""

    def __init__(
        self, start: int, count: int, rotation: int, partial: int, min_tokens: int
    ) -> None:
        self._last = start + count
        self._rotation = rotation
        self.begin = length(start, rotation) + partial
        self._after = length(start + min_tokens, rotation) if min_tokens else self.begin

    def find(self, stops: Sequence[str]) -> dict[str, int]:
        """The character at which each stop string starts that may come up first.

        Those that have to be looked for far and wide are looked for together: the
        text is written once, and only as far as the first of them.
        """
        found: dict[str, int] = {}
        wide: list[str] = []
        for stop in stops:
            reach = self._reach(stop)
            if reach is None:
                continue
            first, last = reach
            if last - first > _FIRST_PIECE:
                wide.append(stop)
            else:
                found |= self._search([stop], first, last)
        if wide:
            first = min(self.token_at(self._low(stop)) for stop in wide)
            found |= self._search(wide, first, self._last)
        return found

    def _low(self, stop: str) -> int:
        """The first character at which a match may start."""
        return max(self.begin, self._after - len(stop) + 1)

    def _reach(self, stop: str) -> tuple[int, int] | None:
        """The tokens among which the first match must lie; None if there can be none."""
        if not _SHAPE.fullmatch(stop):
            return None
        if max(map(len, _NUMBER.findall(stop)), default=0) > len(str(self._last)):
            return None
        first, last = self.token_at(self._low(stop)), self._last
        whole = _WHOLE_NUMBER.search(stop)
        if whole is not None:
            dots = stop.count(".")
            named = int(whole[1])
            return max(first, named - dots), min(last, named + dots + 2)
        if not any(character.isdigit() for character in stop):
            return first, min(last, first + _ROUND + 2)
        return first, last

    def _search(self, stops: Sequence[str], first: int, last: int) -> dict[str, int]:
        """All that come up in the first piece of text in which any does."""
        size = _FIRST_PIECE
        carry = ""
        # What a match may need of the piece before.
        overlap = max(map(len, stops)) - 1
        while first < last:
            base = length(first, self._rotation) - len(carry)
            text = carry + answer(first, min(first + size, last), self._rotation)
            found = {}
            for stop in stops:
                at = text.find(stop, max(0, self._low(stop) - base))
                if at >= 0:
                    found[stop] = base + at
            if found:
                return found
            carry = text[len(text) - overlap :] if overlap else ""
            first += size
            size = min(size * 4, _LARGEST_PIECE)
        return {}

    def token_at(self, character: int) -> int:
        """The token that holds ``character``."""
        return self.token_before(character + 1) - 1

    def token_before(self, end: int) -> int:
        """How many tokens of the answer it takes to have its first ``end`` characters."""
        # A token has at least five characters, so there are no more tokens than characters.
        return bisect_left(range(end + 1), end, key=lambda count: length(count, self._rotation))
