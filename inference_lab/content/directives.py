"""Echo-directives: a message that scripts its own answer.

``<<respond:{"text":"Hello"}>>`` anywhere in a message's text is the whole answer.  The object may
have:

- ``text``: what is said;
- ``tool_calls``: ``[{"name": …, "arguments": …, "id": …}]``.  Arguments that are an object are
  sent as compact JSON; a string is sent as it stands, so that broken arguments can be scripted,
  too; without any they are ``{}``;
- ``reasoning``: what is thought before;
- ``finish_reason``: one of `FINISH_REASONS`; any other value is as good as none.

One of the first three has to be there; null is as good as absent, other keys are ignored.  What is
not well-formed is plain text: a message may speak of directives.

The search is linear in the text, whatever it holds.  Outside of strings no ``<`` is JSON, so an
attempt gets past a later marker only within a string; the later attempt's first quote ends that
string, and from there on one of the two is outside when the next marker comes.  Hence no
character is read by more than a few attempts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from attrs import frozen

__all__ = [
    "FINISH_REASONS",
    "Directive",
    "ToolCall",
    "find_directive",
    "fragments",
    "words",
]

FINISH_REASONS: Final = ("stop", "length", "tool_calls", "content_filter", "function_call")
"""The finish reasons of OpenAI's chat API."""

_MARKER: Final = re.compile(r"<<respond:[ \t\n\r]*+(?=\{)")
_CLOSING: Final = re.compile(r"[ \t\n\r]*+>>")
# Whole strings, brackets, and runs of what else JSON has between them.
_PIECE: Final = re.compile(
    r"""([\[{])|([\]}])|"[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+"|[ \t\n\r0-9A-Za-z,:.+-]++"""
)
_DEEPEST: Final = 128

_WORD: Final = re.compile(r"\s*+\S{1,24}+|\s++")
_FRAGMENT: Final = re.compile(r" ?\w{1,16}+|[^\w ]{1,4}+| ++")


@frozen
class ToolCall:
    """One call of an answer."""

    id: str
    name: str
    arguments: str
    """JSON text, or whatever the script says it is."""


@frozen
class Directive:
    """A scripted answer."""

    text: str | None
    """None for an answer without content, not the same as an empty one."""
    tool_calls: tuple[ToolCall, ...]
    reasoning: str | None
    finish_reason: str

    @property
    def tokens(self) -> int:
        """``completion_tokens``: one for each word and each fragment, one for each call's name."""
        said = len(words(self.reasoning or "")) + len(words(self.text or ""))
        return said + sum(1 + len(fragments(call.arguments)) for call in self.tool_calls)


class _Call(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    id: str | None = None


class _Script(msgspec.Struct):
    text: str | None = None
    tool_calls: list[_Call] | None = None
    reasoning: str | None = None
    finish_reason: Any = None


_DECODER: Final = msgspec.json.Decoder(_Script)


def find_directive(texts: Iterable[str]) -> Directive | None:
    """The last well-formed directive in the texts of all messages, in their order.

    Never raises, and takes time linear in the texts.
    """
    for text in reversed(list(texts)):
        if (found := _last_in(text)) is not None:
            return found
    return None


def words(text: str) -> list[str]:
    """Cut ``text`` for streaming: a word with the white space before it, 24 characters at most.

    The pieces joined are ``text``.
    """
    return _WORD.findall(text)


def fragments(arguments: str) -> list[str]:
    """Cut a call's arguments about as real tokenizers do: ``{"``, ``city``, ``":"``, ``Rome``.

    The pieces joined are ``arguments``.
    """
    return _FRAGMENT.findall(arguments)


def _last_in(text: str) -> Directive | None:
    found: Directive | None = None
    marker = _MARKER.search(text)
    while marker is not None:
        start = marker.end()
        end = _object_end(text, start)
        closing = _CLOSING.match(text, end) if end else None
        directive = _read(text[start:end]) if closing else None
        if directive is not None and closing is not None:
            # What stands inside of a directive is its text, not another directive.
            found, start = directive, closing.end()
        marker = _MARKER.search(text, start)
    return found


def _object_end(text: str, start: int) -> int:
    """Where the object that opens at ``start`` ends, or 0 if nothing there can be one."""
    depth = 0
    at = start
    while (piece := _PIECE.match(text, at)) is not None:
        at = piece.end()
        if piece[1]:
            depth += 1
            if depth > _DEEPEST:
                return 0
        elif piece[2]:
            depth -= 1
            if not depth:
                return at
    return 0


def _read(source: str) -> Directive | None:
    try:
        script = _DECODER.decode(source)
        calls = [_call(index, call) for index, call in enumerate(script.tool_calls or ())]
    except (msgspec.DecodeError, UnicodeError):
        return None
    if script.text is None and script.reasoning is None and not calls:
        return None
    reason = script.finish_reason
    if not isinstance(reason, str) or reason not in FINISH_REASONS:
        reason = "tool_calls" if calls else "stop"
    return Directive(script.text, tuple(calls), script.reasoning, reason)


def _call(index: int, call: _Call) -> ToolCall:
    arguments = msgspec.json.decode(call.arguments, type=str | dict[str, Any] | None)
    if arguments is None:
        arguments = "{}"
    elif isinstance(arguments, dict):
        # Formatted from its source: numbers keep their spelling, and double keys stay double.
        arguments = msgspec.json.format(bytes(call.arguments), indent=-1).decode()
    return ToolCall(f"call_directive_{index}" if call.id is None else call.id, call.name, arguments)
