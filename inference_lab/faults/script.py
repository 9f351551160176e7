"""The words a mode's script is written in, and how they become steps.

A script is a tuple of small values. Each says what it puts on the wire in the
dialect's vocabulary; none knows any JSON, any transport or any mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

import msgspec
from attrs import define, evolve, frozen

from inference_lab.dialects import sse
from inference_lab.dialects.base import Dialect, Said, Usage
from inference_lab.faults.grammar import Fault
from inference_lab.faults.steps import End, Pause, Send, Step

TOOL_NAME = "lookup"
"""The function that a placeholder tool call names."""

ARGUMENTS_OPENING = '{"query":"'
"""How the placeholder call's arguments begin. They never end."""

SPLIT_CHARACTER = "é"
"""Two bytes in UTF-8: C3 A9."""


@define
class Scene:
    """What a script plays with: one request's dialect, fault, text and usage.

    ``token(i)`` is token i of this leg; ``position`` is the next one to be said.
    ``thinking`` tokens of reasoning come before any content, since the request asked for
    them; they count as no content frames, and may be hidden.
    """

    dialect: Dialect
    fault: Fault
    token: Callable[[int], Said]
    usage: Usage
    usage_requested: bool
    position: int = 0
    thinking: int = 0
    hide_thinking: bool = False

    def next_token(self) -> Said:
        """The next token of the answer, each one once."""
        said = self.token(self.position)
        self.position += 1
        return said

    def thoughts(self) -> Iterator[bytes]:
        """The frames of reasoning that are still due."""
        while self.thinking:
            self.thinking -= 1
            said = self.next_token()
            speaker = self.dialect
            frame = speaker.unseen(said) if self.hide_thinking else speaker.reasoning(said)
            if frame is not None:
                yield frame


class Word(Protocol):
    """One word of a script: the frames it stands for."""

    def frames(self, scene: Scene) -> Iterator[bytes]:
        """Yield the bytes of each frame, lazily: a count can be 4 billion."""


@frozen
class Role:
    """The frame that opens an answer, in a dialect that has one."""

    def frames(self, scene: Scene) -> Iterator[bytes]:
        """One frame or none."""
        role = scene.dialect.role()
        if role is not None:
            yield role


@frozen
class Content:
    """``after_chunks`` frames of answer text."""

    def frames(self, scene: Scene) -> Iterator[bytes]:
        """A token a frame, after what the request wants thought before."""
        yield from scene.thoughts()
        for _ in range(scene.fault.after_chunks):
            yield scene.dialect.content(scene.next_token())


@frozen
class Reasoning:
    """``after_chunks`` frames of thinking."""

    def frames(self, scene: Scene) -> Iterator[bytes]:
        """A token a frame."""
        for _ in range(scene.fault.after_chunks):
            yield scene.dialect.reasoning(scene.next_token())


@frozen
class UnfinishedToolCall:
    """``after_chunks`` frames of a call: its opening, then arguments without an end."""

    def frames(self, scene: Scene) -> Iterator[bytes]:
        """Whatever the dialect needs for the opening counts as a frame."""
        return islice(self._endless(scene), scene.fault.after_chunks)

    def _endless(self, scene: Scene) -> Iterator[bytes]:
        opening = scene.dialect.tool_opening(TOOL_NAME)
        if opening is not None:
            yield opening
        first = scene.next_token()
        yield scene.dialect.tool_arguments(evolve(first, text=ARGUMENTS_OPENING + first.text))
        while True:
            yield scene.dialect.tool_arguments(scene.next_token())


@frozen
class TornContent:
    """The content frame that comes next, cut off: at half, or inside a character."""

    def frames(self, scene: Scene) -> Iterator[bytes]:
        """The bytes before the cut."""
        if scene.fault.utf8:
            said = scene.next_token()
            whole = scene.dialect.content(evolve(said, text=said.text + SPLIT_CHARACTER))
            # From the right: the model's name stands left of the text.
            yield whole[: whole.rindex(SPLIT_CHARACTER.encode()) + 1]
        else:
            whole = scene.dialect.content(scene.next_token())
            yield whole[: len(whole) // 2]


@frozen
class Finish:
    """The finish frame."""

    reason: str = "stop"

    def frames(self, scene: Scene) -> Iterator[bytes]:
        """One frame."""
        yield scene.dialect.finish(self.reason)


@frozen
class UsageIfRequested:
    """The usage frame, for a client that set ``stream_options.include_usage``."""

    def frames(self, scene: Scene) -> Iterator[bytes]:
        """One frame or none."""
        if scene.usage_requested:
            yield scene.dialect.usage(scene.usage)


@frozen
class Done:
    """The sentinel."""

    def frames(self, scene: Scene) -> Iterator[bytes]:
        """One frame."""
        yield scene.dialect.done()


@frozen
class Data:
    """An event whose payload belongs to no dialect, such as an error body."""

    payload: dict[str, Any]

    def frames(self, scene: Scene) -> Iterator[bytes]:
        """One frame."""
        yield sse.frame(msgspec.json.encode(self.payload))


def steps(words: Iterable[Word], end: End, scene: Scene) -> Iterator[Step]:
    """The steps of a script: ``delay_ms`` between any two frames, then the end."""
    pause = Pause(scene.fault.delay_ms / 1000)
    first = True
    for word in words:
        for data in word.frames(scene):
            if not first:
                yield pause
            first = False
            yield Send(data)
    yield end
