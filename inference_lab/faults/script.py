"""What a script plays with, and how its words become a stream's steps.

Words yield *acts*: the steps themselves, where a frame that carries a token of
the answer is a `Spoken`. Here the acts get their pacing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import msgspec
from attrs import Factory, define, evolve, frozen

from inference_lab.dialects.base import Dialect, Said, Usage
from inference_lab.faults.grammar import Fault
from inference_lab.faults.parameters import Value
from inference_lab.faults.steps import AwaitToken, End, Pause, Raw, Send, Step

_REFERENCE = re.compile(r"\$\{([a-z0-9_]+)\}", re.ASCII)

_WHOLE = re.compile(r"\$[a-z][a-z0-9_]*", re.ASCII)


class ScriptError(ValueError):
    """A script that cannot be played; ``str()`` says why, in one line."""


@frozen
class Spoken:
    """A frame that an engine has to generate, with ``tokens`` of the answer in it."""

    data: bytes
    tokens: int = 1
    frames: int = 1


Act = Step | Spoken
"""What a word does: a step, or a frame that an engine would have had to generate."""


@define
class Scene:
    """What a script plays with: one request's dialect, fault, text and usage.

    ``token(i)`` is token i of this leg; ``position`` is the next one to be said.
    ``thinking`` tokens of reasoning come before any content, since the request asked for
    them; they count as no content frames, and may be hidden.
    ``unseen`` tokens were thought since the last frame. ``values`` are all parameters of
    the mode.
    """

    dialect: Dialect
    fault: Fault
    token: Callable[[int], Said]
    usage: Usage
    usage_requested: bool
    position: int = 0
    thinking: int = 0
    hide_thinking: bool = False
    unseen: int = 0
    values: Mapping[str, Value] = Factory(dict)

    def next_token(self) -> Said:
        """The next token of the answer, each one once."""
        said = self.token(self.position)
        self.position += 1
        return said

    def thoughts(self) -> Iterator[Spoken]:
        """The frames of reasoning that are still due; what is hidden counts with the next."""
        while self.thinking:
            self.thinking -= 1
            said = self.next_token()
            speaker = self.dialect
            frame = speaker.unseen(said) if self.hide_thinking else speaker.reasoning(said)
            if frame is None:
                self.unseen += 1
            else:
                yield Spoken(frame)

    def value(self, name: str) -> Value:
        """A parameter, or a fact of the stream.

        :raises ScriptError: if there is none of this name.
        """
        if name in self.values:
            return self.values[name]
        facts = self.facts()
        if name in facts:
            return facts[name]
        known = ", ".join(sorted({*self.values, *facts}))
        raise ScriptError(f"unknown name ${name} (known: {known})")

    def facts(self) -> dict[str, Value]:
        """What a template may say about the stream itself."""
        identity = self.dialect.identity
        return {
            "id": identity.id,
            "created": identity.created,
            "model": identity.model,
            "object": self.dialect.object_name,
            "position": self.position,
            "prompt_tokens": self.usage.prompt_tokens,
            "completion_tokens": self.position,
            "total_tokens": self.usage.prompt_tokens + self.position,
        }

    def number(self, given: int | str) -> int:
        """A whole number, or the parameter that ``$name`` says.

        :raises ScriptError: for anything else.
        """
        value = self.value(given[1:]) if isinstance(given, str) and given[:1] == "$" else given
        if isinstance(value, bool) or not isinstance(value, int):
            raise ScriptError(f"{given!r} must be a whole number, or $name of one")
        return value

    def text(self, given: str, json: bool = False) -> str:
        """``given`` with each ``${name}`` in place; inside JSON strings they are escaped.

        ``$name`` alone is one, too; ``$$`` begins a text that is none.
        """

        def said(matched: re.Match[str]) -> str:
            value = self.value(matched[1])
            if isinstance(value, bool):
                return "true" if value else "false"
            return _escaped(value) if json and isinstance(value, str) else str(value)

        if _WHOLE.fullmatch(given):
            given = f"${{{given[1:]}}}"
        elif given.startswith("$$"):
            return given[1:]
        return _REFERENCE.sub(said, given)

    def holds(self, condition: bool | str) -> bool:
        """Whether a ``when`` is met: ``$name`` that is not false, 0 or empty; ``$name=value``."""
        if isinstance(condition, bool):
            return condition
        name, equals, wanted = condition.removeprefix("$").partition("=")
        value = self.value(name)
        if not equals:
            return bool(value)
        spelt = str(value).lower() if isinstance(value, bool) else str(value)
        return spelt in wanted.split("|")


class Word(Protocol):
    """One word of a script."""

    def acts(self, scene: Scene) -> Iterator[Act]:
        """What it does, lazily: a count can be 4 billion."""


def steps(words: Iterable[Word], scene: Scene) -> Iterator[Step]:
    """The steps of a script: ``delay_ms`` between any two frames, unless it pauses itself.

    With ``pace=engine`` a frame with a token waits for the engine instead.
    """
    delay = Pause(scene.fault.delay_ms / 1000)
    engine = scene.values.get("pace") == "engine"
    first = paused = True
    for word in words:
        for act in word.acts(scene):
            if isinstance(act, Spoken) and engine:
                yield AwaitToken()
            elif isinstance(act, Spoken | Send | Raw) and not (first or paused):
                yield delay
            first = first and not isinstance(act, Spoken | Send | Raw)
            paused = isinstance(act, Pause)
            if isinstance(act, Spoken | Send) and scene.unseen:
                act = evolve(act, tokens=act.tokens + scene.unseen)
                scene.unseen = 0
            if isinstance(act, Spoken):
                yield Send(act.data, act.frames, tokens=act.tokens)
            else:
                yield act
            if isinstance(act, End):
                return
    yield End.CLEAN


def _escaped(text: str) -> str:
    return msgspec.json.encode(text).decode()[1:-1]
