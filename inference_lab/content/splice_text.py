"""Compare two texts of an answer, and say in tokens how they differ."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal

from attrs import frozen

from inference_lab.content.text import TOKEN_PATTERN, Position, last_word

__all__ = ["Finding", "compare"]

Kind = Literal["restarted", "repeated", "reordered", "missing", "foreign", "beyond", "usage"]
Span = tuple[int, int]

_TOKEN: Final = re.compile(TOKEN_PATTERN)
_SHOWN: Final = 40
_MOST_SPANS: Final = 5


@frozen
class Finding:
    """One thing that went wrong."""

    kind: Kind
    """*restarted* (the answer began again from its first token), *repeated*, *reordered*,
    *missing*, *foreign* (no part of the answer), *beyond* (its end), or *usage*."""
    message: str
    """The finding in one line."""
    spans: tuple[Span, ...] = ()
    """Where, as first and last position, both included."""
    unit: Literal["token", "character"] = "token"
    """What the positions count: tokens of the answer; for text that is no part of it,
    characters of what the client has."""
    difference: int | None = None
    """For *usage*: by how many tokens it is too high (or, below 0, too low)."""

    def as_dict(self) -> dict[str, Any]:
        """The finding as plain values, for JSON."""
        found: dict[str, Any] = {"kind": self.kind, "message": self.message}
        if self.spans:
            found |= {"unit": self.unit, "spans": [list(span) for span in self.spans]}
        if self.difference is not None:
            found["difference"] = self.difference
        return found


def compare(golden: str, text: str) -> list[Finding]:
    """How ``text`` differs from ``golden``: no findings if it does not."""
    if text == golden:
        return []
    whole = _Pieces(golden)
    return _compare_tokens(whole, text) if whole.ours else _compare_characters(golden, text)


class _Pieces:
    """A golden answer of ours: its tokens, and a part of one at either end."""

    def __init__(self, text: str) -> None:
        self.texts: list[str] = []
        self.positions: list[int] = []
        rotations = set()
        others = 0
        for at, piece, position in _pieces(text):
            if position is not None:
                rotations.add(position.rotation)
                self.positions.append(position.i)
            elif at == 0 or at + len(piece) == len(text):
                # Numbered from its neighbour.
                self.positions.append(self.positions[-1] + 1 if self.positions else -1)
            else:
                others += 1
                self.positions.append(-1)
            self.texts.append(piece)
        if self.positions[:1] == [-1] and len(self.positions) > 1:
            self.positions[0] = self.positions[1] - 1
        first = self.positions[0] if self.positions else 0
        steady = self.positions == [*range(first, first + len(self.positions))]
        self.ours = steady and not others and len(rotations) == 1
        self.rotation = next(iter(rotations), 0)
        self.index = {piece: index for index, piece in enumerate(self.texts)}

    def begins(self, index: int, piece: str) -> bool:
        """Whether ``piece`` is the beginning of piece ``index``: the text breaks off in it."""
        return index < len(self.texts) and self.texts[index].startswith(piece)

    def span(self, span: Span) -> Span:
        """Positions in the answer, for indices of pieces."""
        return self.positions[span[0]], self.positions[span[1]]


def _compare_tokens(whole: _Pieces, text: str) -> list[Finding]:
    seen: set[int] = set()
    restarted: list[Span] = []
    repeated: list[int] = []
    reordered: list[int] = []
    foreign: list[tuple[int, str]] = []
    beyond: list[tuple[int, str]] = []
    restarts = ""
    highest = previous = -1
    again = False
    for at, piece, position in _pieces(text):
        index = whole.index.get(piece)
        if index is None:
            i = position.i if position and position.rotation == whole.rotation else -1
            if i == whole.positions[-1] and piece.startswith(whole.texts[-1]):
                # A golden answer that was cut within this token.
                seen.add(len(whole.texts) - 1)
                beyond.append((at + len(whole.texts[-1]), piece[len(whole.texts[-1]) :]))
            elif i > whole.positions[-1]:
                beyond.append((at, piece))
            elif not (at + len(piece) == len(text) and whole.begins(previous + 1, piece)):
                foreign.append((at, piece))
            continue
        if index != previous + 1:
            again = index == 0 and 0 in seen
            if again:
                restarted.append((0, 0))
                restarts = restarts or f"after {_named(whole, previous)}"
        previous = index
        if again:
            restarted[-1] = (0, index)
        elif index in seen:
            repeated.append(index)
        elif index < highest:
            reordered.append(index)
        seen.add(index)
        highest = max(highest, index)
    missing = [index for index in range(len(whole.texts)) if index not in seen]
    findings = []
    if restarted:
        what = f"restarted: the answer starts over from its first token {restarts}"
        findings.append(Finding("restarted", what, tuple(map(whole.span, restarted))))
    for kind, indices in (("repeated", repeated), ("reordered", reordered), ("missing", missing)):
        if indices:
            findings.append(_tokens_finding(kind, whole, indices))  # type: ignore[arg-type]
    for kind, what, strays in (
        ("foreign", "foreign text", foreign),
        ("beyond", "goes on beyond the golden answer's end", beyond),
    ):
        if strays:
            findings.append(_strays_finding(kind, what, whole, strays))  # type: ignore[arg-type]
    return findings


def _tokens_finding(kind: Kind, whole: _Pieces, indices: Iterable[int]) -> Finding:
    indices = sorted(set(indices))
    spans = [*_spans(indices)]
    shown = ", ".join(
        str(first) if first == last else f"{first} to {last}"
        for first, last in map(whole.span, spans[:_MOST_SPANS])
    )
    more = f" and {len(spans) - _MOST_SPANS} more stretches" if len(spans) > _MOST_SPANS else ""
    count = len(indices)
    tokens = "1 token" if count == 1 else f"{count} tokens"
    text = _quoted("".join(whole.texts[spans[0][0] : spans[0][1] + 1]))
    message = f"{kind}: {tokens} ({shown}{more}), from {text}"
    return Finding(kind, message, tuple(map(whole.span, spans)))


def _strays_finding(
    kind: Kind, what: str, whole: _Pieces, strays: Sequence[tuple[int, str]]
) -> Finding:
    spans: list[Span] = []
    for at, piece in strays:
        end = at + len(piece) - 1
        if spans and spans[-1][1] + 1 == at:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((at, end))
    other = next((found for _, piece in strays if (found := _position(piece)) is not None), None)
    seed = ""
    if other is not None and other.rotation != whole.rotation:
        seed = ", words of another seed"
    more = f" and in {len(spans) - 1} more places" if len(spans) > 1 else ""
    message = f"{what}: {_quoted(strays[0][1])} at character {strays[0][0]}{more}{seed}"
    return Finding(kind, message, tuple(spans), "character")


def _compare_characters(golden: str, text: str) -> list[Finding]:
    head = _common(golden, text)
    tail = _common(golden[head:][::-1], text[head:][::-1])
    lost, added = golden[head : len(golden) - tail], text[head : len(text) - tail]
    findings = []
    if added:
        span = ((head, head + len(added) - 1),)
        where = f"{_quoted(added)} at character {head}"
        # The second beginning may go on like the first for a while.
        if any(golden.startswith(text[at:]) for at in range(head, max(0, head - _SHOWN), -1)):
            what = f"restarted: the answer starts over at character {head}"
            findings.append(Finding("restarted", what, span, "character"))
        elif not lost and golden[:head].endswith(added):
            findings.append(Finding("repeated", f"repeated: {where}", span, "character"))
        elif head == len(golden):
            what = f"goes on beyond the golden answer's end: {where}"
            findings.append(Finding("beyond", what, span, "character"))
        else:
            findings.append(Finding("foreign", f"foreign text: {where}", span, "character"))
    if lost:
        span = ((head, head + len(lost) - 1),)
        what = f"missing: {len(lost)} characters of the golden answer from {head}, {_quoted(lost)}"
        findings.append(Finding("missing", what, span, "character"))
    return findings


def _common(one: str, other: str) -> int:
    """The length of the longest common beginning."""
    differs = range(1, min(len(one), len(other)) + 1)
    return bisect_left(differs, True, key=lambda length: one[:length] != other[:length])


def _pieces(text: str) -> Iterator[tuple[int, str, Position | None]]:
    """The whole tokens in ``text`` and the stretches between them, each with where it starts."""
    done = 0
    for match in _TOKEN.finditer(text):
        if match.start() > done:
            yield done, text[done : match.start()], None
        yield match.start(), match[0], _position(match[0])
        done = match.end()
    if done < len(text):
        yield done, text[done:], None


def _position(piece: str) -> Position | None:
    if not _TOKEN.fullmatch(piece):
        return None
    found = last_word(piece, len(piece))
    return found[0] if found else None


def _spans(indices: Sequence[int]) -> Iterator[Span]:
    first = last = indices[0]
    for index in indices[1:]:
        if index != last + 1:
            yield first, last
            first = index
        last = index
    yield first, last


def _named(whole: _Pieces, index: int) -> str:
    return f"token {whole.positions[index]}" if index >= 0 else "text that is no part of it"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
