"""The text of every answer, as a function of position and seed.

Token *i* of an answer is a word, its position and a dot, with a space before every token but the
first: ``amber0. birch1. cedar2.``  The request's seed rotates the word list.  No state is kept
anywhere, so a stream that died can be taken up at any token by any process, and what a client
has stitched together can be checked byte for byte.

Both directions are cheap: `token` and `token_id` write, `from_id` and `tail` read.  No word is a
suffix of another, so an answer glued to a prompt (``helloamber0.``) still reads in one way only.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Final, NamedTuple

__all__ = [
    "ID_BASE",
    "MAX_POSITION",
    "TOKEN_PATTERN",
    "WORDS",
    "Position",
    "Resume",
    "answer",
    "from_id",
    "last_word",
    "length",
    "rotation",
    "tail",
    "token",
    "token_id",
    "word_position",
]

_WORD_LIST: Final = (
    "amber birch cedar delta ebony fjord grove heron iris jade kelp lotus maple nectar onyx pearl "
    "quartz reed slate tundra umbra violet willow xenon yarrow zinc acorn basil coral dune elm "
    "flint"
)

WORDS: Final = tuple(_WORD_LIST.split())
"""32 words, none a suffix or a prefix of another."""

MAX_POSITION: Final = 2**26
"""The last position that has an id.  Text exists beyond it."""

ID_BASE: Final = 1_000_000
"""The id of token 0 without a seed, for our own tokenizer."""

_ANY_WORD: Final = "|".join(WORDS)

TOKEN_PATTERN: Final = rf"(?: (?:{_ANY_WORD})[1-9][0-9]{{0,7}}|(?:{_ANY_WORD})0)\."
"""A regular expression (no groups) for one whole token: only token 0 lacks the space."""

_COUNT: Final = len(WORDS)
# The letters of the first n words, over two rounds.
_LETTERS: Final = tuple(accumulate((len(word) for word in WORDS * 2), initial=0))
_INDEX: Final = {word: index for index, word in enumerate(WORDS)}
# Longer than any token with a position below 10**20.
_LONGEST: Final = 32
_LAST_WORD: Final = re.compile(rf"({_ANY_WORD})(0|[1-9][0-9]*)\.\Z")
_OPENING_WORD: Final = re.compile(rf"({_ANY_WORD})0\Z")


class Position(NamedTuple):
    """Where a token stands, from 0, and the rotation that its seed gave."""

    i: int
    rotation: int


class Resume(NamedTuple):
    """Where an answer that broke off goes on."""

    position: int
    """The index of the token to go on with; the value of ``x-inference-lab-resume``."""
    rotation: int
    """The rotation of the words read."""
    partial: str
    """What is already there of token ``position``; empty between tokens."""

    @property
    def remainder(self) -> str:
        """What is left to say of token ``position``."""
        return token(self.position, self.rotation)[len(self.partial) :]


def rotation(seed: int | None) -> int:
    """How far a request's ``seed`` (any integer, negative too) turns the word list: 0 to 31."""
    return 0 if seed is None else seed % _COUNT


def token(index: int, rotation: int = 0) -> str:
    """The text of token ``index`` (from 0) of an answer, leading space included."""
    word = f"{WORDS[(index + rotation) % _COUNT]}{index}."
    return f" {word}" if index else word


def answer(start: int, stop: int, rotation: int = 0) -> str:
    """The joined text of tokens ``start`` to ``stop - 1``."""
    return "".join([token(index, rotation) for index in range(start, stop)])


def length(count: int, rotation: int = 0) -> int:
    """The characters of the first ``count`` tokens of an answer, without writing them."""
    rounds, rest = divmod(count, _COUNT)
    letters = rounds * _LETTERS[_COUNT] + _LETTERS[rotation + rest] - _LETTERS[rotation]
    digits, power = count, 10
    while power < count:
        digits += count - power
        power *= 10
    # A dot each, and a space before each but the first.
    return letters + digits + 2 * count - (count > 0)


def token_id(index: int, rotation: int = 0, base: int = ID_BASE) -> int:
    """The id of token ``index``.

    ``base`` is the first id above the prompt tokenizer's vocabulary.  Raises `ValueError` for a
    position outside 0 to `MAX_POSITION`.
    """
    if not 0 <= index <= MAX_POSITION:
        raise ValueError(f"token {index} has no id: positions run from 0 to {MAX_POSITION}")
    return base + _COUNT * index + rotation


def from_id(id: int, base: int = ID_BASE) -> Position | None:
    """The position that an answer's id names, or None for any other id."""
    index, rotation = divmod(id - base, _COUNT)
    return Position(index, rotation) if 0 <= index <= MAX_POSITION else None


def word_position(word: str, digits: str) -> Position:
    """The position that one whole word names: ``cedar``, ``2`` is token 2, rotation 0."""
    index = int(digits)
    return Position(index, (_INDEX[word] - index) % _COUNT)


def tail(text: str, rotation: int | None = None, opening: bool = False) -> Resume | None:
    """Read the end of ``text`` as an answer that broke off there.

    The last whole word alone decides, as it does for a real model, which goes on from what it
    sees and mends no earlier gap.  After it may come the beginning of the token that is due next
    (a space, part of a word, part of a position); anything else there is not ours.

    A beginning of token 0 has no word before it to vouch for it.  It counts if only the dot is
    missing (``amber0``), or if ``opening`` says that ``text`` is nothing but the answer and
    ``rotation`` which word is due; elsewhere ``a lamb`` would be a broken ``amber0.``.

    :param rotation: the rotation that the words must have; None takes any.
    :return: None if the text does not end in an answer (of that rotation).
    """
    dot = text.rfind(".", max(0, len(text) - _LONGEST)) + 1
    partial = text[max(dot, len(text) - _LONGEST) :]
    last = last_word(text, dot)
    if last is not None:
        found = last[0]
        if rotation is not None and found.rotation != rotation:
            return None
        due = token(found.i + 1, found.rotation)
        if due.startswith(partial):
            return Resume(found.i + 1, found.rotation, partial)
    match = _OPENING_WORD.search(partial)
    if match is not None:
        turned = _INDEX[match[1]]
        return Resume(0, turned, match[0]) if rotation in (None, turned) else None
    if opening and text and rotation is not None and token(0, rotation).startswith(text):
        return Resume(0, rotation, text)
    return None


def last_word(text: str, end: int) -> tuple[Position, int] | None:
    """The whole word that ends at ``end``, and where its token starts.

    A token starts with its space.  Token 0 has none and may be glued to anything; any other word
    without its space has to start on a boundary: chat templates trim what a turn begins with.
    """
    match = _LAST_WORD.search(text, max(0, end - _LONGEST), end)
    if match is None:
        return None
    found = word_position(match[1], match[2])
    start = match.start()
    if found.i and start:
        before = text[start - 1]
        if before == " ":
            start -= 1
        elif before.isalnum():
            return None
    return found, start
