"""From a decision to a response: the steps of each kind of answer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec
from attrs import frozen

from inference_lab.content import text
from inference_lab.dialects.base import Dialect, Identity, Usage
from inference_lab.dialects.chat import Chat
from inference_lab.dialects.completions import Completions
from inference_lab.faults.grammar import CHAT, Fault
from inference_lab.faults.steps import AwaitToken, End, Send, Step
from inference_lab.pacing.backend import Job
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

    tokens: int
    finish_reason: str
    usage: Usage

    def text(self) -> str:
        """The whole answer."""
        return text.answer(0, self.tokens)

    def job(self, streaming: bool) -> Job:
        """The engine's part of it."""
        return Job(self.usage.prompt_tokens, self.tokens, self.tokens, streaming)


COMPLETION_TOKENS = 16
"""The length of a completion whose request sets no limit, as the OpenAI API has it."""


def make_plan(asked: ChatRequest | CompletionRequest, default_output_tokens: int) -> Plan:
    """How long the answer is and why it ends, before anything generates it."""
    limit = asked.limit
    if isinstance(asked, ChatRequest):
        tokens, reason = (limit, "length") if limit else (default_output_tokens, "stop")
    else:
        tokens, reason = limit or COMPLETION_TOKENS, "length"
    return Plan(tokens, reason, Usage(asked.prompt_tokens(), tokens))


def fault_identity(endpoint: Endpoint, body: bytes, fault: Fault, model: str) -> Identity:
    """Who a faulted stream says it is: a function of path, raw body and fault alone."""
    digest = hashlib.sha256()
    for part in (endpoint.path.encode(), body, fault.canonical().encode()):
        digest.update(len(part).to_bytes(8, "big") + part)
    return Identity(endpoint.id_prefix + digest.hexdigest()[:32], FAULT_CREATED, model)


def healthy_steps(dialect: Dialect, plan: Plan, usage_requested: bool) -> Iterator[Step]:
    """A stream that lives: each token's frame waits for the engine."""
    role = dialect.role()
    if role is not None:
        yield Send(role)
    for index in range(plan.tokens):
        yield AwaitToken()
        yield Send(dialect.content(text.token(index)))
    yield Send(dialect.finish(plan.finish_reason))
    if usage_requested:
        yield Send(dialect.usage(plan.usage))
    yield Send(dialect.done())
    yield End.CLEAN


def whole_body(endpoint: Endpoint, identity: Identity, plan: Plan) -> bytes:
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
            "usage": plan.usage.as_dict(),
        }
    )
