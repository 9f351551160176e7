"""Recorded legs: what ``curl -N`` wrote of one response, of either endpoint.

A recording may end anywhere, within a frame or a character.  A frame without its blank line was
never delivered, as server-sent events have it.  Head lines (``curl -i``), the lines of chunked
coding (``curl --raw``), comments and frames that are no chunk are passed over, and a JSON body that
was not streamed is read as one frame.

Only choice 0 is read.  Of a completion with ``echo``, the prompt counts as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from attrs import define

from inference_lab.content.text import WORDS

__all__ = ["Leg", "count_tokens", "is_recording", "read_leg"]

_HEAD: Final = re.compile(rb"(?:HTTP/[0-9.]+ [0-9]{3}[^\n]*\n(?:[^\n]+\n)*\n)+")
_RECORDED: Final = re.compile(rb"^(?:data:|event:|HTTP/[0-9.]+ [0-9]{3})", re.MULTILINE)

_WORD: Final = rf"(?:{'|'.join(WORDS)})[0-9]{{1,8}}\."
# An answer, from anywhere within a token to anywhere within another.
_ANSWER: Final = re.compile(
    rf"(?:[a-z]{{0,6}}[0-9]{{0,8}}\.)?(?: ?{_WORD})+(?: [a-z]{{0,6}}[0-9]{{0,8}})?"
)


@define
class Leg:
    """What one response delivered in complete frames."""

    text: str = ""
    reasoning: str = ""
    tool_calls: bool = False
    """Whether there was anything of a tool call."""
    token_ids: int | None = None
    """How many ids came with the text (``return_token_ids``), None without any."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """The last ``usage``, if there was one."""
    finish_reason: str | None = None
    stop: str | None = None
    """The stop string that ended it."""
    error: str | None = None
    """The message of an error body or frame."""
    done: bool = False
    """Whether the end was announced: ``[DONE]``, or a JSON body that is not streamed."""

    @property
    def delivered(self) -> int | None:
        """The tokens delivered, reasoning included; None where that cannot be known."""
        if self.tool_calls:
            return None
        if self.token_ids is not None:
            return self.token_ids
        text, reasoning = count_tokens(self.text), count_tokens(self.reasoning)
        return None if text is None or reasoning is None else text + reasoning


class _Piece(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: _Piece | None = None
    message: _Piece | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None
    error: Any = None
    object: Any = None
    message: Any = None


_DECODER: Final = msgspec.json.Decoder(_Chunk)


def is_recording(data: bytes | str) -> bool:
    """Whether this looks like a recorded response, rather than the text of an answer."""
    data = _bytes(data)
    if _RECORDED.search(data):
        return True
    chunk = _chunk(data) if data.lstrip()[:1] == b"{" else None
    return chunk is not None and (chunk.choices is not None or chunk.error is not None)


def read_leg(data: bytes | str) -> Leg:
    """Read a recording.  Never raises: what cannot be read was not delivered."""
    body = _bytes(data).replace(b"\r\n", b"\n")
    if head := _HEAD.match(body):
        body = body[head.end() :]
    leg = Leg()
    text: list[str] = []
    reasoning: list[str] = []
    streamed = body.lstrip()[:1] != b"{"
    for payload in _payloads(body) if streamed else (body,):
        if payload == b"[DONE]":
            leg.done = True
        elif (chunk := _chunk(payload)) is not None:
            leg.done |= not streamed
            _add(leg, chunk, text, reasoning)
    leg.text, leg.reasoning = "".join(text), "".join(reasoning)
    return leg


def count_tokens(text: str) -> int | None:
    """The tokens of a stretch of one of our answers, however it is cut; None for other text.

    A word of which only a part is there counts: some leg has generated it.  It takes one whole word
    to tell that a text is ours.
    """
    if not text:
        return 0
    if not _ANSWER.fullmatch(text):
        return None
    return text.count(".") + bool(text.rpartition(".")[2])


def _bytes(data: bytes | str) -> bytes:
    return data.encode("utf-8", "replace") if isinstance(data, str) else data


def _payloads(body: bytes) -> Iterator[bytes]:
    # What follows the last blank line is a torn frame, or nothing.
    for frame in body.split(b"\n\n")[:-1]:
        lines = [line[5:] for line in frame.split(b"\n") if line.startswith(b"data:")]
        if lines:
            yield b"\n".join(lines).strip()


def _chunk(payload: bytes) -> _Chunk | None:
    try:
        return _DECODER.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _add(leg: Leg, chunk: _Chunk, text: list[str], reasoning: list[str]) -> None:
    if chunk.error is not None or chunk.object == "error":
        body = chunk.error if isinstance(chunk.error, dict) else {"message": chunk.error}
        leg.error = str(body.get("message") or chunk.message or "unnamed error")
        return
    if chunk.prompt_token_ids is not None:
        leg.prompt_tokens = len(chunk.prompt_token_ids)
    for choice in chunk.choices or ():
        if choice.index == 0:
            piece = choice.delta or choice.message or _Piece()
            text += [choice.text or "", piece.content or ""]
            reasoning.append(piece.reasoning_content or piece.reasoning or "")
            leg.tool_calls |= bool(piece.tool_calls)
            _add_choice(leg, choice)
    if chunk.usage is not None:
        if chunk.usage.prompt_tokens is not None:
            leg.prompt_tokens = chunk.usage.prompt_tokens
        if chunk.usage.completion_tokens is not None:
            leg.completion_tokens = chunk.usage.completion_tokens


def _add_choice(leg: Leg, choice: _Choice) -> None:
    if choice.prompt_token_ids is not None:
        leg.prompt_tokens = len(choice.prompt_token_ids)
    if choice.token_ids is not None:
        leg.token_ids = (leg.token_ids or 0) + len(choice.token_ids)
    if choice.finish_reason is not None:
        leg.finish_reason = choice.finish_reason
        leg.stop = choice.stop_reason if isinstance(choice.stop_reason, str) else None
