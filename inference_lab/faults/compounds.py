"""Words around other words, and the union of all words.

What they hold is played through them, act by act, so that a script of four
billion frames needs no memory.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

from attrs import evolve

from inference_lab.faults.script import Act, Scene, ScriptError, Spoken
from inference_lab.faults.steps import Hold, Pause, Raw, Send
from inference_lab.faults.words import (
    ArgumentsWord,
    ChunkWord,
    CommentWord,
    ContentWord,
    Count,
    DataWord,
    DoneWord,
    EndWord,
    ErrorWord,
    FinishWord,
    HeadWord,
    NoHeadWord,
    PauseWord,
    RawWord,
    ReasoningWord,
    RoleWord,
    TerminatorWord,
    ToolCallWord,
    TrailersWord,
    UsageWord,
    Verb,
)


def _frames(words: Sequence[Verb], scene: Scene) -> Iterator[Act]:
    for word in words:
        yield from word.acts(scene)


class TakeWord(Verb, frozen=True, tag="take"):
    """The first ``count`` acts of other words."""

    count: Count
    of: list[Words]

    def does(self, scene: Scene) -> Iterator[Act]:
        """As many as there are."""
        return islice(_frames(self.of, scene), scene.number(self.count))


class RepeatWord(Verb, frozen=True, tag="repeat"):
    """Other words again and again: ``count`` times, or ``forever`` until the client leaves.

    ``every_ms`` passes before each time. What repeats for ever holds the stream
    open; without a wait or a frame it would never yield, and ends.
    """

    of: list[Words]
    count: Count | Literal["forever"] = "forever"
    every_ms: Count = 0

    def does(self, scene: Scene) -> Iterator[Act]:
        """Each time afresh."""
        forever = self.count == "forever"
        every = scene.number(self.every_ms)
        if forever:
            yield Hold()
        count = math.inf if forever else scene.number(self.count)
        number = 0
        while number < count:
            number += 1
            acted = bool(every)
            if every:
                yield Pause(every / 1000)
            for act in _frames(self.of, scene):
                acted = True
                yield act
            if not acted:
                return


class DuplicateWord(Verb, frozen=True, tag="duplicate"):
    """Each frame of other words ``times`` over, the same bytes."""

    of: list[Words]
    times: Count = 2

    def does(self, scene: Scene) -> Iterator[Act]:
        """The original, then its copies."""
        for act in _frames(self.of, scene):
            yield act
            if isinstance(act, Spoken | Send):
                for _ in range(scene.number(self.times) - 1):
                    yield Send(act.data)


class ReplaceWord(Verb, frozen=True, tag="replace"):
    """Other words with ``find`` replaced by ``by`` in every frame; ``${n}`` counts them."""

    of: list[Words]
    find: str
    by: str

    def does(self, scene: Scene) -> Iterator[Act]:
        """The same frames, respelt."""
        number = 0
        for act in _frames(self.of, scene):
            if isinstance(act, Spoken | Send):
                by = scene.text(self.by.replace("${n}", str(number)), json=True)
                find = scene.text(self.find, json=True)
                data = act.data.replace(find.encode(), by.encode())
                act = evolve(act, data=data)
                number += 1
            yield act


class SegmentWord(Verb, frozen=True, tag="segment"):
    """Other words in writes of ``bytes`` each."""

    of: list[Words]
    bytes: Count

    def does(self, scene: Scene) -> Iterator[Act]:
        """A write apiece."""
        size = max(1, scene.number(self.bytes))
        for act in _frames(self.of, scene):
            match act:
                case Spoken(data, tokens, frames) if len(data) > size:
                    yield Spoken(data[:size], 0, 0)
                    yield Pause(0)
                    yield from Send(data[size:], frames, tokens=tokens).pieces(size)
                case Send() | Raw():
                    yield from act.pieces(size)
                case _:
                    yield act


class TornWord(Verb, frozen=True, tag="torn"):
    """The next frame, cut off.

    ``at`` is ``half``, a byte offset (from the end, if negative), ``character``
    (inside the last one of several bytes), ``line`` (inside the field's name) or
    ``chunk_header``. With ``inside="chunk"`` a chunk header promises the whole
    frame; with ``frame`` the part is a whole chunk of its own.
    """

    of: list[Words]
    at: int | str = "half"
    inside: Literal["frame", "chunk"] = "frame"

    def does(self, scene: Scene) -> Iterator[Act]:
        """The bytes before the cut."""
        for act in _frames(self.of, scene):
            if not isinstance(act, Spoken | Send):
                yield act
                continue
            whole = act.data
            at = self.at
            if isinstance(at, str) and at[:1] == "$":
                value = scene.value(at[1:])
                at = value if isinstance(value, int) else str(value)
            if isinstance(at, str) and at.lstrip("-").isdigit():
                at = int(at)
            if at == "chunk_header":
                yield Raw(b"%x" % len(whole))
                return
            part = whole[: _cut(whole, at)]
            if self.inside == "chunk":
                yield Raw(b"%x\r\n%b" % (len(whole), part), len(part))
            else:
                # Half a frame says nothing yet.
                yield Spoken(part, 0, 0) if isinstance(act, Spoken) else Send(part, 0)
            return


class GzipWord(Verb, frozen=True, tag="gzip"):
    """Other words' frames compressed, each flushed; ``truncated`` leaves out the trailer."""

    of: list[Words]
    truncated: bool = True

    def does(self, scene: Scene) -> Iterator[Act]:
        """Pieces of one gzip member."""
        packer = zlib.compressobj(wbits=31)
        for act in _frames(self.of, scene):
            if isinstance(act, Spoken | Send):
                data = packer.compress(act.data) + packer.flush(zlib.Z_SYNC_FLUSH)
                yield Send(data, opaque=True, tokens=act.tokens)
            else:
                yield act
        if not self.truncated:
            yield Send(packer.flush(), 0, opaque=True)


class ChooseWord(Verb, frozen=True, tag="choose"):
    """The words that ``cases`` has for the value of ``by``, or those under ``else``."""

    by: str
    cases: dict[str, list[Words]]

    def does(self, scene: Scene) -> Iterator[Act]:
        """One case."""
        value = scene.text(self.by)
        if value not in self.cases and "else" not in self.cases:
            known = ", ".join(self.cases)
            raise ScriptError(f"choose: {self.by} is {value!r}; cases: {known}")
        return _frames(self.cases.get(value, self.cases.get("else", [])), scene)


Words = (
    RoleWord
    | ContentWord
    | ReasoningWord
    | ArgumentsWord
    | ToolCallWord
    | FinishWord
    | UsageWord
    | DoneWord
    | ErrorWord
    | DataWord
    | ChunkWord
    | CommentWord
    | RawWord
    | PauseWord
    | TakeWord
    | RepeatWord
    | DuplicateWord
    | ReplaceWord
    | SegmentWord
    | TornWord
    | GzipWord
    | ChooseWord
    | HeadWord
    | NoHeadWord
    | TrailersWord
    | TerminatorWord
    | EndWord
)
"""Any word."""


def _cut(frame: bytes, at: int | str) -> int:
    if isinstance(at, int):
        return at
    if at == "half":
        return len(frame) // 2
    if at == "line":
        return 3
    if at == "character":
        leads = [place for place, byte in enumerate(frame) if byte >= 0xC0]
        if not leads:
            raise ScriptError("torn: the frame has no character of several bytes")
        return leads[-1] + 1
    raise ScriptError(f"torn: at is {at!r}; allowed: half, line, character, chunk_header, a number")
