"""What a response says, gathered from its frames or from its one body."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from attrs import define, field
from twisted.trial.unittest import SynchronousTestCase

from tests.labs import Server, request
from tests.memory import Connection


@define
class Choice:
    """One choice, its pieces joined. ``frames`` are those that carried it."""

    text: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(factory=list)
    fragments: int = 0
    ids: list[int] = field(factory=list)
    prompt_ids: list[int] | None = None
    logprobs: list[Any] = field(factory=list)
    finish_reason: str | None = None
    stop_reason: str | None = None
    frames: list[dict[str, Any]] = field(factory=list)


@define
class Answer:
    """One response."""

    status: int
    headers: dict[str, str]
    events: list[Any]
    choices: list[Choice]
    usage: dict[str, Any] = field(factory=dict)
    prompt_ids: list[int] | None = None

    @property
    def only(self) -> Choice:
        """The one choice."""
        (choice,) = self.choices
        return choice

    @property
    def position(self) -> str:
        """Where the server says it went on."""
        return self.headers["x-inference-lab-resume"]

    @property
    def error(self) -> dict[str, Any]:
        """The error of a refusal."""
        error: dict[str, Any] = self.events[0]["error"]
        return error


def gather(connection: Connection) -> Answer:
    """Read a whole response, streamed or not; a torn frame counts as not sent."""
    status, headers = connection.head
    if headers["content-type"] == "application/json":
        events = [json.loads(connection.text)]
    else:
        datas = [frame.removeprefix(b"data: ") for frame in connection.text.split(b"\n\n")[:-1]]
        events = [json.loads(data) for data in datas if data != b"[DONE]"]
    answer = Answer(status, headers, events, [])
    for event in events:
        answer.usage = event.get("usage") or answer.usage
        answer.prompt_ids = event.get("prompt_token_ids", answer.prompt_ids)
        for each in event.get("choices", ()):
            while len(answer.choices) <= each["index"]:
                answer.choices.append(Choice())
            _add(answer.choices[each["index"]], each)
    return answer


class LabCase(SynchronousTestCase):
    """A server in memory, asked for whole answers."""

    def setUp(self) -> None:
        self.server = Server()

    def post(
        self, path: str, body: dict[str, Any], fault: str | None = None, *headers: str
    ) -> Connection:
        """One request, and all that comes of it until nothing more happens."""
        if fault is not None:
            headers = (*headers, f"x-inference-lab-fault: {fault};delay_ms=0")
        connection = self.server.post(path, body, *headers)
        while self.server.clock.getDelayedCalls():
            self.server.clock.turn(0.01)
        connection.leave()
        return connection

    def ask(
        self, path: str, fault: str | None = None, stream: bool = True, **fields: Any
    ) -> Answer:
        """A valid request with ``fields``, and its whole answer."""
        return gather(self.post(path, request(path, stream, **fields), fault))

    def asked_twice(self, path: str, **fields: Any) -> tuple[Answer, Answer]:
        """The same answer, streamed and whole."""
        options: dict[str, Any] = {"stream_options": {"include_usage": True}}
        return self.ask(path, **options, **fields), self.ask(path, stream=False, **fields)

    def refused(self, path: str, **fields: Any) -> dict[str, Any]:
        """The error of a 400."""
        answer = self.ask(path, **fields)
        self.assertEqual(answer.status, 400, answer.events)
        self.assertEqual(set(answer.error), {"message", "type", "param", "code"})
        return answer.error


def _add(choice: Choice, each: dict[str, Any]) -> None:
    choice.frames.append(each)
    said = each.get("delta") or each.get("message") or each
    choice.text += said.get("content") or said.get("text") or ""
    choice.reasoning += said.get("reasoning_content") or said.get("reasoning") or ""
    choice.ids += each.get("token_ids", ())
    choice.prompt_ids = each.get("prompt_token_ids", choice.prompt_ids)
    choice.finish_reason = each["finish_reason"] or choice.finish_reason
    choice.stop_reason = each.get("stop_reason") or choice.stop_reason
    logprobs = each.get("logprobs")
    if logprobs is not None:
        choice.logprobs += logprobs.get("content") or zip(
            logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
        )
    _add_calls(choice, said.get("tool_calls") or ())


def _add_calls(choice: Choice, calls: Sequence[dict[str, Any]]) -> None:
    for call in calls:
        if "id" in call:
            choice.calls.append(
                {"id": call["id"], "name": call["function"]["name"], "arguments": ""}
            )
        # A body that is not streamed has no indices.
        at = call.get("index", len(choice.calls) - 1)
        choice.calls[at]["arguments"] += call["function"]["arguments"]
        choice.fragments += bool(call["function"]["arguments"])
