"""What will be answered, decided before anything generates it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from attrs import frozen

from inference_lab.content.answers import (
    Answer,
    PositionalAnswer,
    WrittenAnswer,
    calling,
    document_answer,
    thinking,
)
from inference_lab.content.directives import ToolCall
from inference_lab.content.documents import SchemaError, document, json_object
from inference_lab.content.lengths import OutputLengths
from inference_lab.content.prompt import Prompt
from inference_lab.content.text import rotation
from inference_lab.content.tokens import Tokenizer
from inference_lab.dialects.base import Usage
from inference_lab.pacing.backend import Job
from inference_lab.web.errors import answer_too_long, bad_request, prompt_too_long
from inference_lab.web.requests import ChatRequest, CompletionRequest, Function

COMPLETION_TOKENS = 16
"""The length of a completion whose request sets no limit, as the OpenAI API has it."""

REASONING_TOKENS = {"none": 0, "minimal": 8, "low": 16, "medium": 32, "high": 64, "xhigh": 128}
"""How long the thinking is, by ``reasoning_effort``. Figures of our own."""


@frozen
class Lengths:
    """How long answers are by themselves: the operator's word.

    ``default`` tokens for a chat, unless a workload draws its ``drawn`` lengths.
    """

    default: int = 256
    drawn: OutputLengths | None = None


@frozen
class Plan:
    """A healthy answer, known in full before its first token."""

    prompt: Prompt
    answer: Answer
    max_tokens: int
    choices: int = 1

    def usage(self, cached_tokens: int = 0) -> Usage:
        """What all choices are billed as; the prompt counts once."""
        return Usage(
            self.prompt.tokens,
            self.answer.tokens * self.choices,
            cached_tokens,
            self.answer.reasoning_tokens * self.choices,
        )

    def job(
        self,
        streaming: bool,
        block_hashes: Sequence[int],
        priority: int,
        asked_at: float | None = None,
    ) -> Job:
        """The engine's part of one choice."""
        return Job(
            prompt_tokens=max(1, self.prompt.tokens),
            max_tokens=max(1, self.max_tokens),
            # An answer that is over already: its end is a token, which nobody sees or pays.
            target=max(1, self.answer.tokens),
            streaming=streaming,
            finish_reason="length" if self.answer.finish_reason == "length" else "stop",
            priority=priority,
            block_hashes=block_hashes,
            asked_at=asked_at,
        )


def make_plan(
    asked: ChatRequest | CompletionRequest,
    prompt: Prompt,
    max_model_len: int,
    lengths: Lengths,
    tokenizer: Tokenizer,
) -> Plan:
    """How the answer reads, how long it is, and why it ends.

    :raises ApiError: 400 for a context that is too long or a schema that is not honoured.
    """
    room = max_model_len - prompt.tokens
    if room < 1:
        raise prompt_too_long(prompt.tokens, max_model_len)
    if asked.limit is not None and asked.limit > room:
        raise answer_too_long(prompt.tokens, asked.limit, max_model_len)
    written = _written(asked, prompt, tokenizer)
    answer: Answer
    if written is not None:
        thought = thinking_tokens(asked, prompt)
        written = thinking(written, thought, rotation(asked.seed), tokenizer)
        answer = written.limited(asked.limit or room)
        if not isinstance(asked, ChatRequest) or asked.forced_tool is None:
            answer = answer.stopping(asked.stops, asked.min_tokens or 0)
    else:
        answer = _positional(asked, prompt, room, lengths, tokenizer)
        answer = answer.stopping(asked.stops, asked.min_tokens or 0)
    return Plan(prompt, answer, asked.limit or answer.tokens, asked.choices)


def fault_answer(
    asked: ChatRequest | CompletionRequest, prompt: Prompt, tokenizer: Tokenizer
) -> PositionalAnswer:
    """What a fault says before it strikes: the answer's text, without its limits."""
    return PositionalAnswer(
        tokens=0, rotation=rotation(asked.seed), id_base=tokenizer.base, resume=prompt.resume
    )


def _positional(
    asked: ChatRequest | CompletionRequest,
    prompt: Prompt,
    room: int,
    lengths: Lengths,
    tokenizer: Tokenizer,
) -> PositionalAnswer:
    start = prompt.resume.position if prompt.resume else 0
    thought = _reasoning(asked)
    limit = room if asked.limit is None else asked.limit
    if isinstance(asked, CompletionRequest) and asked.limit is None and not asked.ignore_eos:
        limit = min(room, COMPLETION_TOKENS)
    by_itself: int | None = None
    if asked.ignore_eos:
        pass
    elif lengths.drawn is not None:
        by_itself = lengths.drawn.length(prompt.key, asked.seed) - start
    elif isinstance(asked, ChatRequest) and asked.limit is None:
        by_itself = lengths.default + thought - start
    tokens, reason = limit, "length"
    if by_itself is not None:
        # A leg that goes on may find that all has been said.
        by_itself = max(by_itself, asked.min_tokens or 0, 0 if prompt.resume else 1)
        if by_itself < limit or (by_itself == limit and asked.limit is None):
            tokens, reason = by_itself, "stop"
    return PositionalAnswer(
        tokens=tokens,
        rotation=rotation(asked.seed),
        id_base=tokenizer.base,
        finish_reason=reason,
        resume=prompt.resume,
        # An answer that goes on has done its thinking on an earlier leg.
        reasoning_tokens=0 if prompt.resume else min(thought, tokens),
    )


def thinking_tokens(asked: ChatRequest | CompletionRequest, prompt: Prompt) -> int:
    """Tokens of reasoning before the answer: none where it goes on, having been thought about."""
    return 0 if prompt.resume else _reasoning(asked)


def _reasoning(asked: ChatRequest | CompletionRequest) -> int:
    if not isinstance(asked, ChatRequest):
        return 0
    if asked.reasoning_effort is None:
        return REASONING_TOKENS["medium"] if asked.include_reasoning else 0
    return REASONING_TOKENS[asked.reasoning_effort]


def _written(
    asked: ChatRequest | CompletionRequest, prompt: Prompt, tokenizer: Tokenizer
) -> WrittenAnswer | None:
    """The answer of a request that forces a call or a document; None for plain text."""
    if isinstance(asked, ChatRequest) and asked.forced_tool is not None:
        return calling([_call(asked.forced_tool, prompt, asked.seed)], tokenizer)
    wanted = asked.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object" or wanted.json_schema is None:
        return document_answer(json_object(asked.seed), tokenizer)
    try:
        text = document(wanted.json_schema.schema, asked.seed)
    except SchemaError as error:
        raise bad_request(
            f"response_format.json_schema.schema: {error}",
            "invalid_json_schema",
            "response_format",
        ) from None
    return document_answer(text, tokenizer)


def _call(function: Function, prompt: Prompt, seed: int | None) -> ToolCall:
    schema = function.parameters or {"type": "object", "properties": {}}
    try:
        arguments = document(schema, seed, strict=bool(function.strict))
    except SchemaError as error:
        raise bad_request(
            f"tools: the parameters of {function.name[:80]!r}: {error}",
            "invalid_function_parameters",
            "tools",
        ) from None
    # A conversation may hold many calls; a prompt has one id for its own.
    named = hashlib.sha256(f"{function.name}\0{seed}\0{prompt.key}".encode("utf-8", "replace"))
    return ToolCall(f"call_{named.hexdigest()[:24]}", function.name, arguments)
