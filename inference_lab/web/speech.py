"""From the pieces of an answer to frames, or to one JSON body."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from attrs import evolve, frozen

from inference_lab.content.answers import Answer, Kind, Piece
from inference_lab.content.logprobs import alternatives, piece_alternatives
from inference_lab.content.prompt import Prompt
from inference_lab.content.text import MAX_POSITION, token_id
from inference_lab.content.tokens import Tokenizer
from inference_lab.dialects.base import Dialect, Identity, Logprob, Said, Style, Usage
from inference_lab.dialects.chat import chat_logprobs
from inference_lab.dialects.completions import completions_logprobs
from inference_lab.faults.steps import AwaitToken, End, Pause, Send, Step
from inference_lab.pacing.feed import Feeds
from inference_lab.web.endpoints import CHAT_ENDPOINT, Endpoint
from inference_lab.web.errors import bad_request
from inference_lab.web.planning import Plan
from inference_lab.web.requests import ChatRequest, CompletionRequest


@frozen
class Speech:
    """How one request wants its answer said.

    ``hide_reasoning`` keeps the thinking, which is generated and billed, from the client.
    """

    style: Style
    tokenizer: Tokenizer
    name_by_id: bool = False
    hide_reasoning: bool = False

    @classmethod
    def of(
        cls,
        asked: ChatRequest | CompletionRequest,
        prompt: Prompt,
        tokenizer: Tokenizer,
        reasoning_field: str,
    ) -> Speech:
        """What ``asked`` asks to see."""
        echo = isinstance(asked, CompletionRequest) and bool(asked.echo)
        show_ids = bool(asked.return_token_ids)
        style = Style(
            prompt_ids=prompt.ids(tokenizer) if show_ids or echo else None,
            token_ids=show_ids,
            top_logprobs=asked.top_logprobs_wanted,
            echo=prompt.text if echo else "",
            prompt_tokens=prompt.tokens if asked.usage_on_every_frame else None,
            reasoning_field=reasoning_field,
        )
        return cls(
            style,
            tokenizer,
            name_by_id=bool(asked.return_tokens_as_token_ids),
            hide_reasoning=isinstance(asked, ChatRequest) and asked.include_reasoning is False,
        )

    def said(self, piece: Piece) -> Said:
        """A piece with whatever is to be told of it."""
        return Said(piece.text, piece.ids, self._logprobs(piece))

    def frame(self, speaker: Dialect, piece: Piece) -> bytes | None:
        """A piece as ``speaker`` says it; None where there is nothing to see."""
        said = self.said(piece)
        match piece.kind:
            case Kind.REASONING:
                return speaker.unseen(said) if self.hide_reasoning else speaker.reasoning(said)
            case Kind.CALL:
                assert piece.call is not None
                return speaker.tool_opening(piece.call.name, piece.call.id, said)
            case Kind.ARGUMENTS:
                return speaker.tool_arguments(said)
        # A stop string may have cut away all of it.
        return speaker.content(said) if piece.text else speaker.unseen(said)

    def _logprobs(self, piece: Piece) -> tuple[Logprob, ...]:
        wanted = self.style.top_logprobs
        if wanted is None:
            return ()
        if piece.rotation is None:
            likely = piece_alternatives(piece.position, piece.text, max(1, wanted))
        else:
            likely = alternatives(piece.position, piece.rotation, max(1, wanted))
        named = [Logprob(self._name(piece, one.text, one.rotation), one.logprob) for one in likely]
        if piece.text and not self.name_by_id:
            named[0] = evolve(named[0], token=piece.text)
        return (named[0], *named[:wanted])

    def _name(self, piece: Piece, text: str, rotation: int) -> str:
        # Text goes on where ids end.
        if not self.name_by_id or (piece.rotation is not None and piece.position > MAX_POSITION):
            return text
        if piece.rotation is None:
            return f"token_id:{next(iter(self.tokenizer.encode(text)), 0)}"
        return f"token_id:{token_id(piece.position, rotation, self.tokenizer.base)}"


# -- streams -------------------------------------------------------------------


def engine_steps(
    speakers: Sequence[Dialect],
    plan: Plan,
    speech: Speech,
    feeds: Feeds,
    usage: Callable[[], Usage] | None,
) -> Iterator[Step]:
    """A stream that lives: each token's frame waits for the engine.

    ``usage`` is asked at the end, where the client wants to know.
    """
    yield from _openings(speakers)
    spoken = [0] * len(speakers)
    # Tokens that were generated, and brought no frame.
    unseen = 0
    left = len(speakers)
    while left:
        yield AwaitToken()
        choice = feeds.taken
        speaker = speakers[choice]
        if spoken[choice] < plan.answer.tokens:
            frame = speech.frame(speaker, plan.answer.piece(spoken[choice]))
            unseen += 1
            if frame is not None:
                yield Send(frame, tokens=unseen)
                unseen = 0
        spoken[choice] += 1
        if spoken[choice] >= plan.answer.tokens:
            finish = speaker.finish(plan.answer.finish_reason, plan.answer.stop)
            yield Send(finish, tokens=unseen)
            unseen = 0
            left -= 1
    yield from _closing(speakers[0], usage)


def written_steps(
    speakers: Sequence[Dialect],
    answer: Answer,
    speech: Speech,
    usage: Callable[[], Usage] | None,
) -> Iterator[Step]:
    """A scripted answer, without the engine: a turn of the event loop between frames."""
    yield from _openings(speakers)
    for speaker in speakers:
        unseen = 0
        for index in range(answer.tokens):
            frame = speech.frame(speaker, answer.piece(index))
            unseen += 1
            if frame is not None:
                yield Pause(0)
                yield Send(frame, tokens=unseen)
                unseen = 0
        yield Send(speaker.finish(answer.finish_reason, answer.stop), tokens=unseen)
    yield from _closing(speakers[0], usage)


def _openings(speakers: Sequence[Dialect]) -> Iterator[Step]:
    for speaker in speakers:
        role = speaker.role()
        if role is not None:
            yield Send(role)


def _closing(speaker: Dialect, usage: Callable[[], Usage] | None) -> Iterator[Step]:
    if usage is not None:
        yield Send(speaker.usage(usage()))
    yield Send(speaker.done())
    yield End.CLEAN


# -- whole answers -------------------------------------------------------------


LONG_WRITING = 10_000
"""Tokens from which on writing an answer in one piece takes long enough to be noticed."""

MOST_IN_ONE_PIECE = 4_000_000
"""Tokens, choices and alternatives counted, of an answer in one piece: it is held in memory."""


def check_whole(plan: Plan, speech: Speech) -> None:
    """Refuse an answer in one piece that no memory should hold.

    :raises ApiError: 400.
    """
    each = 1 + (speech.style.top_logprobs or 0)
    size = plan.answer.tokens * plan.choices * each
    if size > MOST_IN_ONE_PIECE:
        raise bad_request(
            f"The answer would have {size} entries (tokens, choices and log probabilities); "
            f'without "stream": true at most {MOST_IN_ONE_PIECE} are sent.',
            "response_too_large",
            "stream",
        )


def whole_body(
    endpoint: Endpoint, identity: Identity, plan: Plan, speech: Speech, usage: Usage
) -> bytes:
    """The JSON of an answer that is not streamed."""
    pieces = [plan.answer.piece(index) for index in range(plan.answer.tokens)]
    chat = endpoint is CHAT_ENDPOINT
    make = _chat_choice if chat else _completion_choice
    body: dict[str, Any] = {
        "id": identity.id,
        "object": endpoint.object_name,
        "created": identity.created,
        "model": identity.model,
        "choices": [
            {"index": index}
            | make(pieces, speech)
            | {"finish_reason": plan.answer.finish_reason, "stop_reason": plan.answer.stop}
            | ({"token_ids": _ids(pieces)} if speech.style.token_ids else {})
            for index in range(plan.choices)
        ],
        "usage": usage.as_dict(),
    }
    prompt_ids = speech.style.prompt_ids
    if prompt_ids is not None and chat:
        body["prompt_token_ids"] = prompt_ids
    elif prompt_ids is not None:
        for choice in body["choices"]:
            choice["prompt_token_ids"] = prompt_ids
    return msgspec.json.encode(body)


def _ids(pieces: Sequence[Piece]) -> list[int]:
    return [id for piece in pieces for id in piece.ids]


def _text(pieces: Sequence[Piece], kind: Kind) -> str:
    return "".join(piece.text for piece in pieces if piece.kind is kind)


def _spoken(pieces: Sequence[Piece], speech: Speech) -> list[Said]:
    if speech.style.top_logprobs is None:
        return []
    return [speech.said(piece) for piece in pieces]


def _chat_choice(pieces: Sequence[Piece], speech: Speech) -> dict[str, Any]:
    calls = _calls(pieces)
    content = _text(pieces, Kind.CONTENT)
    message: dict[str, Any] = {
        "role": "assistant",
        # A message that only calls has no content at all.
        "content": content or (None if calls else ""),
    }
    reasoning = _text(pieces, Kind.REASONING)
    if reasoning and not speech.hide_reasoning:
        message[speech.style.reasoning_field] = reasoning
    if calls:
        message["tool_calls"] = calls
    spoken = _spoken(pieces, speech)
    return {"message": message, "logprobs": chat_logprobs(spoken) if spoken else None}


def _calls(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        if piece.call is not None:
            function = {"name": piece.call.name, "arguments": ""}
            calls.append({"id": piece.call.id, "type": "function", "function": function})
        elif piece.kind is Kind.ARGUMENTS:
            calls[-1]["function"]["arguments"] += piece.text
    return calls


def _completion_choice(pieces: Sequence[Piece], speech: Speech) -> dict[str, Any]:
    echo = speech.style.echo
    spoken = _spoken(pieces, speech)
    return {
        "text": echo + _text(pieces, Kind.CONTENT),
        "logprobs": completions_logprobs(spoken, len(echo)) if spoken else None,
    }
