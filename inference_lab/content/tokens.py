"""Text to token ids and back.

Our own coding needs no file.  It works in one pass, and every id stands for a fixed text, so ids
can be joined, cut and sent back:

- a whole word of an answer is one id, `inference_lab.content.text.ID_BASE` and above;
- runs of printable ASCII, tab and line ends go by threes (the last piece of a run may be
  shorter), which is close to what real vocabularies make of English;
- all else goes byte by byte as UTF-8, ids 0 to 255.

A word counts wherever its exact text stands, prompt or answer, glued to what precedes it or not:
``helloamber0.`` is ``hel``, ``lo`` and token 0.  Words cannot overlap and are cut out before the
rest is coded, so ``encode(a + answer) == encode(a) + answer_ids`` holds for *every* text ``a``.
``birch1.`` without its space is not token 1, since decoding token 1 gives the space back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from os import PathLike, fspath
from typing import TYPE_CHECKING, Final, Protocol

from inference_lab.content.text import (
    ID_BASE,
    MAX_POSITION,
    TOKEN_PATTERN,
    WORDS,
    from_id,
    token,
    token_id,
    word_position,
)

if TYPE_CHECKING:
    import tokenizers

__all__ = ["HuggingFaceTokenizer", "PieceTokenizer", "Tokenizer"]


class Tokenizer(Protocol):
    """What counts prompts and names tokens."""

    @property
    def base(self) -> int:
        """The id of token 0 of an answer without a seed; all prompt ids are below."""

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``; whole words of an answer get the answer's ids.  Never raises."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``; U+FFFD for ids that mean nothing.  Never raises."""

    def count(self, text: str) -> int:
        """``len(encode(text))``, cheaper where that can be had."""


_ENDS: Final = re.compile(r"[0-9]\.")
_TOKEN: Final = re.compile(rf"{TOKEN_PATTERN}\Z")
_LONGEST: Final = len(" .") + max(map(len, WORDS)) + len(str(MAX_POSITION))
_PLAIN: Final = re.compile(r"[\t\n\r -~]+")

# The 98 characters that go by threes, and where the ids of 1, 2 and 3 of them begin.
_CHARACTERS: Final = "\t\n\r" + "".join(map(chr, range(0x20, 0x7F)))
_N: Final = len(_CHARACTERS)
_ONE: Final = 256
_TWO: Final = _ONE + _N
_THREE: Final = _TWO + _N**2
_END: Final = _THREE + _N**3
_DIGIT: Final = bytes(max(0, _CHARACTERS.find(chr(code))) for code in range(256))

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


class PieceTokenizer:
    """Our own coding: lossless for every text without lone surrogates, which become ``?``.

    All prompt ids are below 951,150, and so below the answers' ids.
    """

    base: Final = ID_BASE

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in _parts(text, self.base):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                _encode_other(piece, ids)
        return ids

    def count(self, text: str) -> int:
        total = 0
        for piece in _parts(text, self.base):
            total += 1 if isinstance(piece, int) else _count_other(piece)
        return total

    def decode(self, ids: Sequence[int]) -> str:
        # Bytes are joined before they are read: a character may span several ids.
        return b"".join(map(_piece, ids)).decode("utf-8", "replace")


class HuggingFaceTokenizer:
    """Prompts by a ``tokenizer.json``; answers by ids of ours above its vocabulary.

    No special tokens are added: the prompt is counted as it stands.

    :param path: the ``tokenizer.json``.
    :raises ImportError: without the ``tokenizers`` package (an optional extra of that name).
    :raises ValueError: if the file cannot be read as a tokenizer; the message names it.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        try:
            from tokenizers import Tokenizer as Implementation
        except ImportError:
            raise ImportError(
                "--tokenizer needs the tokenizers package: pip install 'inference-lab[tokenizers]'"
            ) from None
        try:
            # Its own errors are of no common class but Exception.
            self._tokenizer: tokenizers.Tokenizer = Implementation.from_file(fspath(path))
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{fspath(path)}: not a tokenizer.json: {reason}") from None
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self._known = frozenset(vocabulary.values())
        self._base = -(-(max(self._known, default=-1) + 1) // 32) * 32

    @property
    def base(self) -> int:
        """The first multiple of 32 above the vocabulary."""
        return self._base

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in _parts(text, self._base):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                whole = piece.encode("utf-8", "replace").decode("utf-8")
                ids += self._tokenizer.encode(whole, add_special_tokens=False).ids
        return ids

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        parts: list[str] = []
        for known, run in groupby(ids, self._known.__contains__):
            if known:
                parts.append(self._tokenizer.decode(list(run), skip_special_tokens=False))
            else:
                parts += [_answer_text(id, self._base) for id in run]
        return "".join(parts)


def _parts(text: str, base: int) -> Iterator[str | int]:
    """Cut ``text`` into ids of an answer and the stretches between them."""
    done = 0
    # Looking for ends and then backwards passes over ordinary prose at the speed of `re`.
    for dot in _ENDS.finditer(text):
        end = dot.end()
        match = _TOKEN.search(text, max(done, end - _LONGEST), end)
        if match is None:
            continue
        word = match[0].strip(" .")
        letters = word.rstrip("0123456789")
        i, rotation = word_position(letters, word[len(letters) :])
        if i > MAX_POSITION:
            continue
        if match.start() > done:
            yield text[done : match.start()]
        yield token_id(i, rotation, base)
        done = end
    if done < len(text):
        yield text[done:]


def _runs(text: str) -> Iterator[tuple[str, bool]]:
    """Cut ``text`` into runs of our 98 characters (True) and of all others (False)."""
    if text.isascii() and _PLAIN.fullmatch(text):
        yield text, True
        return
    end = 0
    for match in _PLAIN.finditer(text):
        if match.start() > end:
            yield text[end : match.start()], False
        yield match[0], True
        end = match.end()
    if end < len(text):
        yield text[end:], False


def _encode_other(text: str, ids: list[int]) -> None:
    for run, plain in _runs(text):
        if not plain:
            ids.extend(run.encode("utf-8", "replace"))
            continue
        digits = run.encode("ascii").translate(_DIGIT)
        whole = len(digits) // 3 * 3
        ids += [
            _THREE + (a * _N + b) * _N + c
            for a, b, c in zip(digits[0:whole:3], digits[1:whole:3], digits[2:whole:3], strict=True)
        ]
        rest = digits[whole:]
        if len(rest) == 1:
            ids.append(_ONE + rest[0])
        elif rest:
            ids.append(_TWO + rest[0] * _N + rest[1])


def _count_other(text: str) -> int:
    total = 0
    for run, plain in _runs(text):
        total += -(-len(run) // 3) if plain else len(run.encode("utf-8", "replace"))
    return total


# The largest vocabularies in use are of this size; prompts of ids are long.
@lru_cache(maxsize=262_144)
def _piece(id: int) -> bytes:
    if id >= ID_BASE or id < 0:
        return _answer_text(id, ID_BASE).encode()
    if id < _ONE:
        return bytes((id,))
    if id < _TWO:
        text = _CHARACTERS[id - _ONE]
    elif id < _THREE:
        a, b = divmod(id - _TWO, _N)
        text = _CHARACTERS[a] + _CHARACTERS[b]
    elif id < _END:
        rest, c = divmod(id - _THREE, _N)
        a, b = divmod(rest, _N)
        text = _CHARACTERS[a] + _CHARACTERS[b] + _CHARACTERS[c]
    else:
        text = _REPLACEMENT
    return text.encode()


def _answer_text(id: int, base: int) -> str:
    position = from_id(id, base)
    return _REPLACEMENT if position is None else token(position.i, position.rotation)
