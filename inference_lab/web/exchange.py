"""One request to generate, understood: everything that has to be read and worked out first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from inference_lab.content.directives import find_directive
from inference_lab.content.prompt import Prompt
from inference_lab.decision import Decision, Generate, decide
from inference_lab.dialects.base import Dialect, Identity
from inference_lab.engine.prefix import block_hashes
from inference_lab.faults.grammar import Fault
from inference_lab.faults.parameters import Value
from inference_lab.lab import Lab, Served
from inference_lab.pacing.backend import Job
from inference_lab.web.attempts import Turn
from inference_lab.web.endpoints import Endpoint, fresh_identity
from inference_lab.web.planning import Plan, make_plan
from inference_lab.web.prompts import message_text, read_prompt
from inference_lab.web.requests import ChatRequest, CompletionRequest
from inference_lab.web.speech import Speech

LARGE_BODY = 256 * 1024
"""Bytes from which on a request takes long enough to read for other streams to notice."""

LONG_SEARCH = 20_000
"""Tokens from which on looking for a stop string does."""


@frozen
class Asking:
    """A request that passed every refusal that needs no reading of its prompt.

    ``body`` is as it came, ``turn`` which attempt it is and what that meets, ``fault`` what
    of it holds here, ``shape`` the parameters that respell its stream, ``started`` when it
    came (the lab's clock).
    """

    request: Any
    endpoint: Endpoint
    asked: ChatRequest | CompletionRequest
    served: Served
    body: bytes
    turn: Turn
    fault: Fault | None
    shape: Mapping[str, Value]
    started: float

    @property
    def long(self) -> bool:
        """Whether `understand` may take so long that it belongs aside."""
        if len(self.body) >= LARGE_BODY:
            return True
        limit = self.asked.limit or self.served.deployment.max_model_len
        return bool(self.asked.stop) and limit > LONG_SEARCH

    def understand(self, lab: Lab) -> Exchange:
        """Read the prompt, decide who answers, and plan what an engine would say.

        Touches nothing but this request, so it may run in a thread.

        :raises ApiError: 400 where the answer cannot be had.
        """
        asked, tokenizer = self.asked, lab.tokenizer
        prompt = read_prompt(asked, tokenizer)
        directive = None
        if lab.settings.directives and isinstance(asked, ChatRequest):
            directive = find_directive(message_text(message) for message in asked.messages)
        decision = decide(
            self.turn.header, self.turn.model, self.endpoint.name, bool(asked.stream), directive
        )
        field = str(self.shape.get("field", "server"))
        field = lab.settings.reasoning_field if field == "server" else field
        speech = Speech.of(asked, prompt, tokenizer, field)
        plan, hashes = None, None
        if isinstance(decision, Generate):
            limit = self.served.deployment.max_model_len
            plan = make_plan(asked, prompt, limit, lab.settings.lengths, tokenizer)
        if plan is not None or self.shape.get("pace") == "engine":
            block_size = self.served.deployment.scheduler.block_size
            hashes = block_hashes(prompt.ids(tokenizer), block_size)
        return Exchange(self, decision, prompt, speech, plan, hashes or ())


@frozen
class Exchange:
    """One request to generate, understood: who asks what of whom, and how to say it.

    ``plan`` is there if the engine answers, ``block_hashes`` if it takes part.
    """

    asking: Asking
    decision: Decision
    prompt: Prompt
    speech: Speech
    plan: Plan | None
    block_hashes: Sequence[int]

    @property
    def asked(self) -> ChatRequest | CompletionRequest:
        """The typed request."""
        return self.asking.asked

    @property
    def endpoint(self) -> Endpoint:
        """Where it was asked."""
        return self.asking.endpoint

    @property
    def served(self) -> Served:
        """The model."""
        return self.asking.served

    @property
    def shape(self) -> Mapping[str, Value]:
        """The parameters that respell the stream."""
        return self.asking.shape

    def job(self, plan: Plan) -> Job:
        """The engine's part of one choice of ``plan``."""
        asked = self.asked
        return plan.job(
            bool(asked.stream), self.block_hashes, asked.priority or 0, self.asking.started
        )

    def overture(self, fault: Fault) -> Job:
        """What the engine has to do for the frames before a death."""
        room = max(1, self.served.deployment.max_model_len - self.prompt.tokens)
        return Job(
            prompt_tokens=max(1, self.prompt.tokens),
            max_tokens=room,
            target=min(room, fault.after_chunks + 1),
            streaming=True,
            priority=self.asked.priority or 0,
            block_hashes=self.block_hashes,
        )

    def fresh_identity(self) -> Identity:
        """Who a healthy answer says it is."""
        return fresh_identity(self.endpoint, self.served.deployment.name)

    def speakers(self, identity: Identity) -> Sequence[Dialect]:
        """One speaker a choice."""
        dialect, style = self.endpoint.dialect, self.speech.style
        return [dialect(identity, style, index) for index in range(self.asked.choices)]
