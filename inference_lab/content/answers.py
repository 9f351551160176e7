"""What one answer consists of, token by token, known in full before the first is generated.

Each piece is one generated token. Two kinds of answers exist: those whose text is
a function of position, and those that are written out (a directive's script, a
tool call, a document). Both are read by index, so a stream needs to remember no
more than how far it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Protocol

from attrs import evolve, frozen

from inference_lab.content.directives import Directive, ToolCall, fragments, words
from inference_lab.content.resume import Resume
from inference_lab.content.stops import Cut, cut_in, first_cut
from inference_lab.content.text import MAX_POSITION, length, token, token_id
from inference_lab.content.tokens import Tokenizer


class Kind(Enum):
    """What a piece is part of."""

    REASONING = "reasoning"
    CONTENT = "content"
    CALL = "call"
    """A call's id and name."""
    ARGUMENTS = "arguments"


@frozen
class Piece:
    """One token of an answer.

    ``position`` is where it stands in the whole answer, whatever leg it comes on.
    ``rotation`` is its word list's, None where the text is written out. ``call`` goes
    with `Kind.CALL`.
    """

    kind: Kind
    text: str
    ids: tuple[int, ...]
    position: int
    rotation: int | None = None
    call: ToolCall | None = None


class Answer(Protocol):
    """All that will be said, if nobody dies before."""

    @property
    def tokens(self) -> int:
        """How many pieces there are: ``usage.completion_tokens``."""

    @property
    def reasoning_tokens(self) -> int:
        """How many of them are reasoning."""

    @property
    def finish_reason(self) -> str:
        """Why it ends."""

    @property
    def stop(self) -> str | None:
        """The stop string that ended it, if one did."""

    def piece(self, index: int) -> Piece:
        """Piece ``index`` of this leg, from 0."""


@frozen
class PositionalAnswer:
    """``tokens`` tokens from where ``resume`` left off, each a function of its position.

    The first ``reasoning_tokens`` of them are reasoning. Pieces beyond ``tokens``
    exist as well: a fault asks for as many as it was told to play.
    """

    tokens: int
    rotation: int = 0
    id_base: int = 0
    finish_reason: str = "length"
    resume: Resume | None = None
    reasoning_tokens: int = 0
    cut: Cut | None = None

    @property
    def start(self) -> int:
        """The position of the first piece."""
        return self.resume.position if self.resume else 0

    @property
    def stop(self) -> str | None:
        """The stop string that ended it, if one did."""
        return self.cut.stop if self.cut else None

    def stopping(self, stops: Sequence[str], min_tokens: int) -> PositionalAnswer:
        """The same answer, ended by the first of ``stops`` that comes up in its content."""
        skipped = self.reasoning_tokens
        cut = first_cut(
            self.start + skipped,
            self.tokens - skipped,
            self.rotation,
            stops,
            partial=self._partial,
            min_tokens=max(0, min_tokens - skipped),
        )
        if cut is None:
            return self
        return evolve(self, tokens=skipped + cut.tokens, finish_reason="stop", cut=cut)

    def piece(self, index: int) -> Piece:
        """Piece ``index`` of this leg, from 0."""
        position = self.start + index
        text = token(position, self.rotation)
        if index == 0:
            text = text[len(self._partial) :]
        if self.cut is not None and index >= self.reasoning_tokens:
            text = text[: max(0, self.cut.characters - self._characters_before(index))]
        ids = (token_id(position, self.rotation, self.id_base),) if position <= MAX_POSITION else ()
        kind = Kind.REASONING if index < self.reasoning_tokens else Kind.CONTENT
        return Piece(kind, text, ids, position, self.rotation)

    @property
    def _partial(self) -> str:
        return self.resume.partial if self.resume else ""

    def _characters_before(self, index: int) -> int:
        """Characters of content that this leg says before piece ``index``."""
        if index == self.reasoning_tokens:
            return 0
        begin = length(self.start + self.reasoning_tokens, self.rotation) + len(self._partial)
        return length(self.start + index, self.rotation) - begin


@frozen
class WrittenAnswer:
    """Pieces that are written out."""

    pieces: tuple[Piece, ...]
    finish_reason: str
    stop: str | None = None

    @property
    def tokens(self) -> int:
        """How many pieces there are."""
        return len(self.pieces)

    @property
    def reasoning_tokens(self) -> int:
        """How many of them are reasoning."""
        return sum(piece.kind is Kind.REASONING for piece in self.pieces)

    def piece(self, index: int) -> Piece:
        """Piece ``index``, from 0."""
        return self.pieces[index]

    def limited(self, max_tokens: int) -> WrittenAnswer:
        """The same answer, cut off at a token limit."""
        if self.tokens <= max_tokens:
            return self
        return WrittenAnswer(self.pieces[:max_tokens], "length")

    def stopping(self, stops: Sequence[str], min_tokens: int) -> WrittenAnswer:
        """The same answer, ended by the first of ``stops`` in its content.

        Calls and reasoning have no stop strings.
        """
        before = [piece for piece in self.pieces if piece.kind is Kind.REASONING]
        content = [piece for piece in self.pieces if piece.kind is Kind.CONTENT]
        cut = cut_in(
            [piece.text for piece in content], stops, min_tokens=max(0, min_tokens - len(before))
        )
        if cut is None:
            return self
        kept = _trimmed(content[: cut.tokens], cut.characters)
        return WrittenAnswer((*before, *kept), "stop", cut.stop)


def _trimmed(pieces: Sequence[Piece], characters: int) -> Iterator[Piece]:
    for piece in pieces:
        yield evolve(piece, text=piece.text[:characters])
        characters = max(0, characters - len(piece.text))


def scripted(directive: Directive, tokenizer: Tokenizer) -> WrittenAnswer:
    """A directive's answer: reasoning, then text, then calls."""
    said = [(Kind.REASONING, text) for text in words(directive.reasoning or "")]
    said += [(Kind.CONTENT, text) for text in words(directive.text or "")]
    return _written(said, directive.tool_calls, directive.finish_reason, tokenizer)


def calling(calls: Sequence[ToolCall], tokenizer: Tokenizer) -> WrittenAnswer:
    """An answer that is nothing but tool calls."""
    return _written([], calls, "tool_calls", tokenizer)


def document_answer(document: str, tokenizer: Tokenizer) -> WrittenAnswer:
    """An answer whose content is a JSON document."""
    said = [(Kind.CONTENT, text) for text in fragments(document)]
    return _written(said, (), "stop", tokenizer)


def thinking(
    answer: WrittenAnswer, tokens: int, rotation: int, tokenizer: Tokenizer
) -> WrittenAnswer:
    """``answer`` after ``tokens`` tokens of reasoning."""
    thought = PositionalAnswer(tokens, rotation, tokenizer.base, reasoning_tokens=tokens)
    before = [thought.piece(index) for index in range(tokens)]
    after = [evolve(piece, position=piece.position + tokens) for piece in answer.pieces]
    return evolve(answer, pieces=(*before, *after))


def _written(
    said: Sequence[tuple[Kind, str]],
    calls: Sequence[ToolCall],
    finish_reason: str,
    tokenizer: Tokenizer,
) -> WrittenAnswer:
    pieces: list[Piece] = []

    def add(kind: Kind, text: str, call: ToolCall | None = None) -> None:
        ids = tuple(tokenizer.encode(text))
        pieces.append(Piece(kind, text, ids, len(pieces), call=call))

    for kind, text in said:
        add(kind, text)
    for call in calls:
        add(Kind.CALL, call.name, call)
        for text in fragments(call.arguments):
            add(Kind.ARGUMENTS, text)
    return WrittenAnswer(tuple(pieces), finish_reason)
