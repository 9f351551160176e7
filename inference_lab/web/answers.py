"""From a decision to a response: the steps of each kind of answer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import msgspec
from attrs import frozen

from inference_lab.content import text
from inference_lab.content.prompt import Prompt
from inference_lab.dialects.base import Dialect, Identity, Usage
from inference_lab.dialects.chat import Chat
from inference_lab.dialects.completions import Completions
from inference_lab.faults.grammar import CHAT, Fault
from inference_lab.faults.steps import AwaitToken, End, Send, Step
from inference_lab.pacing.backend import Job, Ticket
from inference_lab.web.errors import answer_too_long, prompt_too_long
from inference_lab.web.requests import ChatRequest, CompletionRequest

FAULT_CREATED = 1_700_000_000
"""``created`` (Unix s) of every faulted stream: the same bytes on any day."""


@frozen
class Endpoint:
    """What sets the two endpoints apart on the wire."""

    name: str
    path: str
    id_prefix: str
    object_name: str
    dialect: type[Chat] | type[Completions]


CHAT_ENDPOINT = Endpoint(CHAT, "/v1/chat/completions", "chatcmpl-", "chat.completion", Chat)
COMPLETIONS_ENDPOINT = Endpoint(
    "completions", "/v1/completions", "cmpl-", "text_completion", Completions
)


@frozen
class Plan:
    """A healthy answer, known in full before its first token: the text is a function."""

    prompt: Prompt
    tokens: int
    max_tokens: int
    finish_reason: str

    def text(self) -> str:
        """The whole answer."""
        return text.answer(0, self.tokens)

    def usage(self, cached_tokens: int = 0) -> Usage:
        """What the answer is billed as."""
        return Usage(self.prompt.tokens, self.tokens, cached_tokens)

    def job(self, streaming: bool, block_hashes: Sequence[int], priority: int) -> Job:
        """The engine's part of it."""
        return Job(
            prompt_tokens=max(1, self.prompt.tokens),
            max_tokens=self.max_tokens,
            target=self.tokens,
            streaming=streaming,
            finish_reason=self.finish_reason,
            priority=priority,
            block_hashes=block_hashes,
        )


COMPLETION_TOKENS = 16
"""The length of a completion whose request sets no limit, as the OpenAI API has it."""


def make_plan(
    asked: ChatRequest | CompletionRequest,
    prompt: Prompt,
    max_model_len: int,
    default_output_tokens: int,
) -> Plan:
    """How long the answer is and why it ends, before anything generates it.

    :raises ApiError: 400 ``context_length_exceeded``.
    """
    room = max_model_len - prompt.tokens
    if room < 1:
        raise prompt_too_long(prompt.tokens, max_model_len)
    if asked.limit is not None:
        if asked.limit > room:
            raise answer_too_long(prompt.tokens, asked.limit, max_model_len)
        return Plan(prompt, asked.limit, asked.limit, "length")
    if isinstance(asked, ChatRequest) and default_output_tokens <= room:
        return Plan(prompt, default_output_tokens, default_output_tokens, "stop")
    tokens = min(room, COMPLETION_TOKENS if isinstance(asked, CompletionRequest) else room)
    return Plan(prompt, tokens, tokens, "length")


def fault_identity(endpoint: Endpoint, body: bytes, fault: Fault, model: str) -> Identity:
    """Who a faulted stream says it is: a function of path, raw body and fault alone."""
    digest = hashlib.sha256()
    for part in (endpoint.path.encode(), body, fault.canonical().encode()):
        digest.update(len(part).to_bytes(8, "big") + part)
    return Identity(endpoint.id_prefix + digest.hexdigest()[:32], FAULT_CREATED, model)


def healthy_steps(
    dialect: Dialect, plan: Plan, usage_requested: bool, ticket: Ticket
) -> Iterator[Step]:
    """A stream that lives: each token's frame waits for the engine."""
    role = dialect.role()
    if role is not None:
        yield Send(role)
    for index in range(plan.tokens):
        yield AwaitToken()
        yield Send(dialect.content(text.token(index)))
    yield Send(dialect.finish(plan.finish_reason))
    if usage_requested:
        yield Send(dialect.usage(plan.usage(ticket.cached_tokens)))
    yield Send(dialect.done())
    yield End.CLEAN


def whole_body(endpoint: Endpoint, identity: Identity, plan: Plan, cached_tokens: int) -> bytes:
    """The JSON of a healthy answer that is not streamed."""
    ending = {"logprobs": None, "finish_reason": plan.finish_reason, "stop_reason": None}
    if endpoint is CHAT_ENDPOINT:
        message = {"role": "assistant", "content": plan.text()}
        choice = {"index": 0, "message": message, **ending}
    else:
        choice = {"index": 0, "text": plan.text(), **ending}
    return msgspec.json.encode(
        {
            "id": identity.id,
            "object": endpoint.object_name,
            "created": identity.created,
            "model": identity.model,
            "choices": [choice],
            "usage": plan.usage(cached_tokens).as_dict(),
        }
    )
