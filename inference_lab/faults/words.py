"""The plain words of the step language: one class a word, its fields are its table's keys.

A script is an array of tables, each with the word's name under ``do``. None of
the words knows a mode, and none but the last few anything of HTTP.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from attrs import evolve

from inference_lab.dialects import sse
from inference_lab.faults import emitters
from inference_lab.faults.script import Act, Scene, ScriptError, Spoken
from inference_lab.faults.steps import End, Head, Pause, Raw, Send, Terminate

Count = int | str
"""A whole number, or ``$name`` of a parameter that is one."""

_MARK = "\ue000here\ue000"
_MARKED = msgspec.json.encode(_MARK)


class Verb(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do"):
    """``when`` leaves a word out unless it holds: ``$name``, ``$name=value|value``."""

    when: bool | str = True

    def acts(self, scene: Scene) -> Iterator[Act]:
        """What it does."""
        if scene.holds(self.when):
            yield from self.does(scene)

    def does(self, scene: Scene) -> Iterator[Act]:
        """What it does where it does anything."""
        raise NotImplementedError


# -- the dialect's frames ------------------------------------------------------


class RoleWord(Verb, frozen=True, tag="role"):
    """The frame that opens an answer, in a dialect that has one."""

    def does(self, scene: Scene) -> Iterator[Act]:
        """One frame or none."""
        role = scene.dialect.role()
        if role is not None:
            yield Send(role)


class _Tokens(Verb, frozen=True):
    """``count`` frames of the answer's tokens, or of ``text``.

    ``opening`` goes before the first, ``append`` after each. ``json`` stands in
    place of the JSON string, ``hex`` in place of the text between its quotes,
    whatever they spell.
    """

    count: Count | Literal["endless"] = 1
    text: str | None = None
    opening: str = ""
    append: str = ""
    json: str | None = None
    hex: str | None = None

    def does(self, scene: Scene) -> Iterator[Act]:
        """A token a frame."""
        count = math.inf if self.count == "endless" else scene.number(self.count)
        number = 0
        while number < count:
            said = scene.next_token()
            text = said.text if self.text is None else scene.text(self.text)
            text = (self.opening if number == 0 else "") + text + self.append
            number += 1
            if self.json is None and self.hex is None:
                yield Spoken(self._say(scene, evolve(said, text=text)))
                continue
            frame = self._say(scene, evolve(said, text=_MARK))
            if self.hex is not None:
                literal = b'"' + _unhexed(self.hex) + b'"'
            else:
                literal = scene.text(self.json or "", json=True).encode()
            # From the right: names stand left of the text.
            before, _, after = frame.rpartition(_MARKED)
            yield Spoken(before + literal + after if before else frame)

    def _say(self, scene: Scene, said: Any) -> bytes:
        raise NotImplementedError


class ContentWord(_Tokens, frozen=True, tag="content"):
    """Answer text, after what the request wants thought before."""

    def does(self, scene: Scene) -> Iterator[Act]:
        """A token a frame."""
        yield from scene.thoughts()
        yield from _Tokens.does(self, scene)

    def _say(self, scene: Scene, said: Any) -> bytes:
        return scene.dialect.content(said)


class ReasoningWord(_Tokens, frozen=True, tag="reasoning"):
    """Thinking."""

    def _say(self, scene: Scene, said: Any) -> bytes:
        return scene.dialect.reasoning(said)


class ArgumentsWord(_Tokens, frozen=True, tag="arguments"):
    """Fragments of a tool call's arguments.

    ``index`` names another call than the one opened last; ``none`` leaves the
    index out.
    """

    index: int | Literal["none"] | None = None

    def _say(self, scene: Scene, said: Any) -> bytes:
        return _indexed(scene.dialect.tool_arguments(said), self.index)


class ToolCallWord(Verb, frozen=True, tag="tool_call"):
    """The opening of a call to function ``name``, in a dialect that has a frame for it."""

    name: str = "lookup"
    id: str | None = None
    index: int | Literal["none"] | None = None

    def does(self, scene: Scene) -> Iterator[Act]:
        """One frame or none."""
        opening = scene.dialect.tool_opening(scene.text(self.name), self.id)
        if opening is not None:
            yield Spoken(_indexed(opening, self.index))


class FinishWord(Verb, frozen=True, tag="finish"):
    """The finish frame, with any reason."""

    reason: str = "stop"

    def does(self, scene: Scene) -> Iterator[Act]:
        """One frame."""
        yield Send(scene.dialect.finish(scene.text(self.reason)))


class UsageWord(Verb, frozen=True, tag="usage"):
    """The usage frame: always, or for a client that set ``stream_options.include_usage``."""

    sent: Literal["always", "requested"] = "requested"

    def does(self, scene: Scene) -> Iterator[Act]:
        """One frame or none."""
        if self.sent == "always" or scene.usage_requested:
            yield Send(scene.dialect.usage(scene.usage))


class DoneWord(Verb, frozen=True, tag="done"):
    """The sentinel."""

    def does(self, scene: Scene) -> Iterator[Act]:
        """One frame."""
        yield Send(scene.dialect.done())


# -- other events --------------------------------------------------------------


class ErrorWord(Verb, frozen=True, tag="error"):
    """The error frame of a server that is known by name."""

    dialect: str

    def does(self, scene: Scene) -> Iterator[Act]:
        """One frame."""
        name = scene.text(self.dialect)
        try:
            shape = emitters.FRAMES[name]
        except KeyError:
            known = ", ".join(emitters.FRAMES)
            raise ScriptError(f"unknown error dialect {name!r}; allowed: {known}") from None
        data = scene.text(shape, json=True).encode()
        # Not every dialect's error is an event.
        yield Send(data, data.count(b"\n\n"))


class DataWord(Verb, frozen=True, tag="data"):
    """An event of ``json`` (a table, or text as it stands) or plain ``text``, maybe named."""

    json: str | dict[str, Any] | list[Any] | None = None
    text: str | None = None
    event: str | None = None

    def does(self, scene: Scene) -> Iterator[Act]:
        """One frame."""
        name = "" if self.event is None else f"event: {scene.text(self.event)}\n"
        if isinstance(self.json, str):
            payload = scene.text(self.json, json=True).encode()
        elif self.json is not None:
            payload = scene.text(msgspec.json.encode(self.json).decode(), json=True).encode()
        else:
            payload = scene.text(self.text or "").encode()
        yield Send(name.encode() + sse.frame(payload))


class ChunkWord(Verb, frozen=True, tag="chunk"):
    """The dialect's envelope (id, object, created, model) with ``members`` in it.

    They are JSON without its braces and stand where ``choices`` would.
    """

    members: str

    def does(self, scene: Scene) -> Iterator[Act]:
        """One frame."""
        yield Send(scene.dialect.chunk(scene.text(self.members, json=True).encode()))


class CommentWord(Verb, frozen=True, tag="comment"):
    """A comment, which parsers skip."""

    text: str = "keep-alive"

    def does(self, scene: Scene) -> Iterator[Act]:
        """One frame."""
        yield Send(f": {scene.text(self.text)}\n\n".encode())


class RawWord(Verb, frozen=True, tag="raw"):
    """Bytes, as ``text``, ``hex`` or ``base64``.

    ``framed`` ones are part of the body; others go straight onto the connection.
    """

    text: str | None = None
    hex: str | None = None
    base64: str | None = None
    framed: bool = True

    def does(self, scene: Scene) -> Iterator[Act]:
        """One piece."""
        if self.hex is not None:
            data = _unhexed(self.hex)
        elif self.base64 is not None:
            try:
                data = base64.b64decode(self.base64, validate=True)
            except binascii.Error:
                raise ScriptError(f"base64 is not valid: {self.base64!r}") from None
        else:
            data = scene.text(self.text or "").encode()
        if self.framed:
            yield Send(data, data.count(b"\n\n"), opaque=True)
        else:
            yield Raw(data)


class PauseWord(Verb, frozen=True, tag="pause"):
    """Let ``ms`` pass. It stands in place of the delay between two frames."""

    ms: Count

    def does(self, scene: Scene) -> Iterator[Act]:
        """One wait."""
        yield Pause(scene.number(self.ms) / 1000)


# -- HTTP ----------------------------------------------------------------------


class HeadWord(Verb, frozen=True, tag="head"):
    """A status line and headers in place of the usual ones; a 1xx may come before another.

    ``headers`` are pairs; one whose value is empty is left out. ``body`` is a
    whole body with its content-length. ``exact`` sends nothing but what is written.
    """

    status: Count = 200
    reason: str | None = None
    headers: list[tuple[str, str]] = []
    framing: Literal["chunked", "length", "close", "none"] = "chunked"
    exact: bool = False
    body: str | None = None

    def does(self, scene: Scene) -> Iterator[Act]:
        """The head, and its body if it has one."""
        headers = [(name, scene.text(value)) for name, value in self.headers]
        headers = [(name, value) for name, value in headers if value]
        framing: str = self.framing
        body = b""
        if self.body is not None:
            body = scene.text(self.body, json=True).encode()
            if framing == "chunked":
                framing = "length"
            if framing == "length" and "content-length" not in {n.lower() for n, _ in headers}:
                headers.append(("content-length", str(len(body))))
        reason = None if self.reason is None else scene.text(self.reason)
        status = scene.number(self.status)
        yield Head(status, reason, tuple(headers), framing, self.exact)
        if body:
            yield Send(body, 0, opaque=True)


class NoHeadWord(Verb, frozen=True, tag="no_head"):
    """No head at all: whatever comes next is the first thing on the connection."""

    def does(self, scene: Scene) -> Iterator[Act]:
        """Nothing."""
        return iter(())


class TrailersWord(Verb, frozen=True, tag="trailers"):
    """The last chunk with trailers after it."""

    fields: list[tuple[str, str]]

    def does(self, scene: Scene) -> Iterator[Act]:
        """The end of the body."""
        lines = "".join(f"{name}: {scene.text(value)}\r\n" for name, value in self.fields)
        yield Terminate(f"0\r\n{lines}\r\n".encode())


class TerminatorWord(Verb, frozen=True, tag="terminator"):
    """The end of a chunked body; ``text`` spells it otherwise."""

    text: str = "0\r\n\r\n"

    def does(self, scene: Scene) -> Iterator[Act]:
        """The end of the body."""
        yield Terminate(scene.text(self.text).encode())


class EndWord(Verb, frozen=True, tag="end"):
    """What becomes of the connection: ``clean``, ``fin``, ``rst`` or ``hold``."""

    how: str = "clean"

    def does(self, scene: Scene) -> Iterator[Act]:
        """The last step."""
        how = scene.text(self.how)
        try:
            yield End(how)
        except ValueError:
            known = ", ".join(end.value for end in End)
            raise ScriptError(f"unknown end {how!r}; allowed: {known}") from None


def _indexed(frame: bytes, index: int | str | None) -> bytes:
    """A tool call's frame with another index, or with none."""
    if index is None:
        return frame
    before, found, after = frame.partition(b'"tool_calls":[{"index":')
    if not found:
        return frame
    rest = after.partition(b",")[2]
    if index == "none":
        return before + b'"tool_calls":[{' + rest
    return before + found + b"%d," % int(index) + rest


def _unhexed(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ScriptError(f"hex is not valid: {text!r}") from None
