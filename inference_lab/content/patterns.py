"""Strings that match a regular expression, for JSON Schema's ``pattern``.

What is read is the part that Python, JavaScript (JSON Schema's own) and the guided decoders agree
on: literals, ``.``, classes, ``\\d \\w \\s`` and their complements, groups, alternatives,
quantifiers, and ``^`` and ``$`` around a whole alternative.  Anything else (look-around,
back-references, word boundaries, ``\\p``) is refused by name rather than guessed at.

A pattern becomes a function that writes; nothing is searched, so no pattern takes long.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Final

from inference_lab.content.draws import Draws

__all__ = ["PatternError", "match_for"]

_LONGEST: Final = 4096
_DEEPEST: Final = 32
_MORE: Final = 3

_PRINTABLE: Final = "".join(map(chr, range(0x20, 0x7F)))
_SETS: Final = {
    "d": string.digits,
    "w": string.ascii_lowercase + string.digits + string.ascii_uppercase + "_",
    "s": " \t",
}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
_DOT: Final = string.ascii_lowercase
_SYNTAX: Final = "^$\\.*+?()[]{}|"
# What follows a brace that is, or is elsewhere taken for, a quantifier's.
_BOUND: Final = tuple(string.digits + ",")

_Writer = Callable[[Draws], str]


class PatternError(ValueError):
    """A pattern that is invalid, or more than we honour; the message says what."""


def match_for(pattern: str, draws: Draws) -> str:
    """A string that matches ``pattern``, of at most 4096 characters.

    :raises PatternError: if none can be written.
    """
    if len(pattern) > _LONGEST:
        raise PatternError(f"a pattern of more than {_LONGEST} characters")
    return _Reader(pattern).read()(draws)


class _Reader:
    """Recursive descent over one pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._repetitions = 0

    def read(self) -> _Writer:
        writer = self._alternatives(anchors=True)
        if self._at < len(self._pattern):
            raise PatternError("a ) without its (")
        return writer

    def _peek(self, length: int = 1) -> str:
        return self._pattern[self._at : self._at + length]

    def _take(self) -> str:
        if self._at >= len(self._pattern):
            raise PatternError("the pattern ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _skip(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def _alternatives(self, anchors: bool) -> _Writer:
        options = [self._sequence(anchors)]
        while self._skip("|"):
            options.append(self._sequence(anchors))
        return lambda draws: draws.choice(options)(draws)

    def _sequence(self, anchors: bool) -> _Writer:
        items: list[_Writer] = []
        if anchors:
            self._skip("^")
        while self._peek() not in ("", "|", ")"):
            if self._peek() == "$" and anchors and self._peek(2) in ("$", "$|"):
                self._skip("$")
                break
            items.append(self._quantified(self._atom()))
        return lambda draws: _bounded("".join([item(draws) for item in items]))

    def _atom(self) -> _Writer:
        character = self._take()
        if character == "(":
            return self._group()
        if character == "[":
            return _one_of(self._class())
        if character == "\\":
            return _one_of(self._escape())
        if character == ".":
            return _one_of(_DOT)
        literal = character in "]}" or (character == "{" and self._peek() not in _BOUND)
        if character in _SYNTAX and not literal:
            raise PatternError(f"{character} in this place is not supported")
        return lambda draws: character

    def _group(self) -> _Writer:
        if self._peek() == "?" and not self._skip("?:"):
            raise PatternError(f"({self._peek(3)} is not supported")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise PatternError("groups are nested too deeply")
        writer = self._alternatives(anchors=False)
        self._depth -= 1
        if not self._skip(")"):
            raise PatternError("a ( without its )")
        return writer

    def _escape(self) -> str:
        """The characters that an escape stands for; after the backslash."""
        character = self._take()
        if character.lower() in _SETS:
            chosen = _SETS[character.lower()]
            return chosen if character.islower() else _without(chosen)
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character in "xu":
            width = 2 if character == "x" else 4
            digits = self._peek(width)
            self._at += width
            if len(digits) < width or not set(digits) <= set(string.hexdigits):
                raise PatternError(f"\\{character}{digits} is not an escape")
            if 0xD800 <= int(digits, 16) <= 0xDFFF:
                raise PatternError("surrogates are not supported")
            return chr(int(digits, 16))
        if character.isalnum():
            raise PatternError(f"\\{character} is not supported")
        return character

    def _class(self) -> str:
        """The characters of a class; after its opening bracket."""
        negated = self._skip("^")
        members = ""
        while not self._skip("]"):
            first = self._member()
            if self._peek() == "-" and self._peek(2) != "-]":
                self._take()
                last = self._member()
                if len(first) != 1 or len(last) != 1 or first > last:
                    raise PatternError("a class has an invalid range")
                stop = min(ord(last), ord(first) + len(_PRINTABLE))
                first = "".join(map(chr, range(ord(first), stop + 1)))
                if negated and ord(last) > stop:
                    # Only printable ASCII is ever written, so the rest need not be excluded.
                    first += "".join(c for c in _PRINTABLE if stop < ord(c) <= ord(last))
            members += first
        if negated:
            members = _without(members) if members else ""
        members = "".join(c for c in members if not "\ud800" <= c <= "\udfff")
        if not members:
            raise PatternError("a class leaves no character to write")
        return members

    def _member(self) -> str:
        character = self._take()
        return self._escape() if character == "\\" else character

    def _quantified(self, item: _Writer) -> _Writer:
        if self._skip("*"):
            low, high = 0, None
        elif self._skip("+"):
            low, high = 1, None
        elif self._skip("?"):
            low, high = 0, 1
        elif self._peek() == "{" and (bounds := self._bounds()) is not None:
            low, high = bounds
        else:
            return item
        self._skip("?")
        if self._peek() in ("*", "+"):
            raise PatternError("a quantifier follows a quantifier")
        most = low + _MORE if high is None else min(high, low + _MORE)
        if low > most:
            raise PatternError("a quantifier's bounds are the wrong way round")
        if low > _LONGEST:
            raise PatternError(f"more than {_LONGEST} characters")

        def repeat(draws: Draws) -> str:
            text = ""
            for _ in range(draws.between(low, most)):
                self._repetitions += 1
                if self._repetitions > _LONGEST:
                    raise PatternError(f"more than {_LONGEST} repetitions")
                text = _bounded(text + item(draws))
            return text

        return repeat

    def _bounds(self) -> tuple[int, int | None] | None:
        """``{2}``, ``{2,}`` or ``{2,5}``; None for a brace that is a literal one."""
        end = self._pattern.find("}", self._at, self._at + 24)
        low, comma, high = self._pattern[self._at + 1 : max(end, 0)].partition(",")
        if not _is_number(low) or not (_is_number(high) or not high):
            return None
        self._at = end + 1
        return int(low), (int(high) if high else None) if comma else int(low)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _one_of(characters: str) -> _Writer:
    return lambda draws: draws.choice(characters)


def _without(characters: str) -> str:
    return "".join(c for c in _PRINTABLE if c not in characters)


def _bounded(text: str) -> str:
    if len(text) > _LONGEST:
        raise PatternError(f"more than {_LONGEST} characters")
    return text
