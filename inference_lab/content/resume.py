"""Recognise a prompt that already carries the beginning of its answer.

A middleware whose stream died sends the prompt again with what was delivered behind it, and the
answer has to go on there.  What is recognised, and why:

- **The last whole word decides**, whatever stands before it.  A model goes on from what it sees;
  were a gap earlier in the text mended here, a middleware that drops a token would pass.  It also
  lets an assistant turn begin at token *k*, as content does after a reasoning phase.
- **A partial word** after it must be the beginning of the token that is due; the answer goes on
  with its remainder.
- **The words must have the rotation of the request's seed.**  Those of another seed are not part
  of this answer, so a middleware that loses the seed starts over, and is seen to.
- **Anything else** is not ours: the answer starts at token 0.

Ids and text are read alike: ids are decoded and their end is read as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from inference_lab.content.text import (
    Resume,
    answer,
    from_id,
    last_word,
    rotation,
    tail,
)
from inference_lab.content.tokens import Tokenizer

__all__ = ["Resume", "resume_ids", "resume_text", "strip_ids", "strip_text"]

# More than the characters of any two tokens.
_TAIL_IDS: Final = 64
_LONGEST_STRETCH: Final = 4096


def resume_text(text: str, seed: int | None = None, *, opening: bool = False) -> Resume | None:
    """Read the end of a prompt, or of the assistant turn to be continued.

    :param seed: the request's seed.
    :param opening: ``text`` is an assistant turn and nothing else, so that ``amb`` can be read as
        the beginning of ``amber0.``.  In a completion's prompt, where it might be the end of any
        word, a beginning of token 0 only counts from ``amber0`` on.
    :return: None if ``text`` does not end in this seed's answer.
    """
    return tail(text, rotation(seed), opening)


def resume_ids(ids: Sequence[int], tokenizer: Tokenizer, seed: int | None = None) -> Resume | None:
    """As `resume_text`, for a prompt of token ids."""
    return resume_text(tokenizer.decode(ids[-_TAIL_IDS:]), seed)


def strip_text(text: str, seed: int | None = None, *, opening: bool = False) -> str:
    """``text`` without the part of the answer at its end.

    All legs of one answer give the same text here, so what is derived from it (the length of the
    answer, say) is the same on every leg.  All the answer's words at the end go, consecutive or
    not.
    """
    found = resume_text(text, seed, opening=opening)
    if found is None:
        return text
    end = len(text) - len(found.partial)
    stretch = 1
    while (last := last_word(text, end)) and last[0].rotation == found.rotation:
        i = last[0].i
        # Words mostly follow each other: compare whole stretches while that goes well.
        before = answer(max(0, i + 1 - stretch), i + 1, found.rotation)
        fits = text.endswith(before, 0, end)
        end = end - len(before) if fits else last[1]
        stretch = min(stretch * 4, _LONGEST_STRETCH) if fits else 1
    return text[:end]


def strip_ids(ids: Sequence[int], tokenizer: Tokenizer, seed: int | None = None) -> list[int]:
    """As `strip_text`, for a prompt of token ids."""
    found = resume_ids(ids, tokenizer, seed)
    if found is None:
        return list(ids)
    left = _without(list(ids), len(found.partial), tokenizer)
    first = found.position
    while True:
        position = from_id(left[-1], tokenizer.base) if left else None
        if position is not None and position.rotation == found.rotation:
            first = position.i
            left.pop()
            continue
        # A word may also be spelt in other ids, by a client that has a tokenizer of its own.
        text = tokenizer.decode(left[-_TAIL_IDS:])
        last = last_word(text, len(text))
        if last is None or last[0].rotation != found.rotation:
            # The id that finished a partial word is that of the whole word.
            begun = resume_ids(left, tokenizer, seed)
            if begun is None or not begun.partial or begun.position != first:
                return left
            left = _without(left, len(begun.partial), tokenizer)
            continue
        first = last[0].i
        left = _without(left, len(text) - last[1], tokenizer)


def _without(ids: list[int], characters: int, tokenizer: Tokenizer) -> list[int]:
    """``ids`` without the last characters of their text."""
    start = len(ids)
    decoded = ""
    while len(decoded) < characters:
        start -= 1
        decoded = tokenizer.decode(ids[start:])
    return ids[:start] + tokenizer.encode(decoded[: len(decoded) - characters])
