"""Whatever a request asks for together: streamed and whole say the same, and nothing breaks."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.answers import Answer, LabCase
from tests.labs import CHAT, COMPLETIONS, Server

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        },
    }
]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
PROMPTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(
        (
            "amber0.",
            "x birch1. ced",
            " flint67108863.",
            " amber99999999999.",
            '<<respond:{"text":"One two","reasoning":"Hm"}>>',
            '<<respond:{"tool_calls":[{"name":"f","arguments":{"a":[1]}}]}>>',
            '<<respond:{"text":""}>>',
        )
    ),
)


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of ``fields``."""
    return st.fixed_dictionaries({}, optional=fields)


COMMON: dict[str, st.SearchStrategy[Any]] = {
    "max_tokens": st.integers(1, 30),
    "ignore_eos": st.just(False),
    "stop": st.lists(st.sampled_from(["a", "2.", ". d", "Hm", "two", '"']), min_size=1, max_size=3),
    "n": st.integers(1, 3),
    "seed": st.integers(-40, 40),
    "priority": st.integers(-5, 5),
    "return_token_ids": st.booleans(),
    "return_tokens_as_token_ids": st.booleans(),
    "temperature": st.floats(0, 2),
    "response_format": st.sampled_from(
        [
            {"type": "text"},
            {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        ]
    ),
}
CHATS = optional(
    **COMMON,
    logprobs=st.just(True),
    tools=st.just(TOOLS),
    reasoning_effort=st.sampled_from(["none", "minimal", "low"]),
    include_reasoning=st.booleans(),
    continue_final_message=st.just(True),
)
COMPLETIONS_FIELDS = optional(**COMMON, echo=st.booleans(), logprobs=st.integers(0, 20))


class AnyRequestTests(LabCase):
    def check(self, path: str, **asked: Any) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        streamed = self.ask(path, stream_options=options, **asked)
        whole = self.ask(path, stream=False, **asked)
        self.assertEqual((streamed.status, whole.status), (200, 200), whole.events)
        for one, other in zip(streamed.choices, whole.choices, strict=True):
            for field in ("text", "reasoning", "calls", "ids", "finish_reason", "stop_reason"):
                self.assertEqual(getattr(one, field), getattr(other, field), field)
            # A completion's prompt is nobody's token here.
            self.assertEqual(one.logprobs, other.logprobs)
        self.assertEqual(streamed.usage, whole.usage)
        self.assertEqual(streamed.position, whole.position)
        self.check_counts(streamed, asked)
        self.assertEqual(self.flushLoggedErrors(), [])

    def check_counts(self, streamed: Answer, asked: dict[str, Any]) -> None:
        count = streamed.usage["completion_tokens"]
        lasts: dict[int, int] = {}
        for event in streamed.events:
            for choice in event["choices"]:
                lasts[choice["index"]] = event["usage"]["completion_tokens"]
        self.assertEqual(sum(lasts.values()), count)
        if asked.get("logprobs") is not None:
            self.assertEqual(sum(len(choice.logprobs) for choice in streamed.choices), count)

    @settings(max_examples=300)
    @given(
        PROMPTS, CHATS, st.sampled_from([None, 0, 3, 20]), st.sampled_from(["user", "assistant"])
    )
    def test_chat(self, prompt: str, fields: dict[str, Any], top: int | None, role: str) -> None:
        self.server = Server()
        if "continue_final_message" in fields:
            fields["add_generation_prompt"] = False
        if "tools" in fields and fields.get("seed", 0) % 2:
            fields["tool_choice"] = "required"
        if "logprobs" in fields and top is not None:
            fields["top_logprobs"] = top
        self.check(CHAT, messages=[{"role": role, "content": prompt}], **fields)

    @settings(max_examples=200)
    @given(PROMPTS | st.lists(st.integers(0, 2**40), min_size=1, max_size=5), COMPLETIONS_FIELDS)
    def test_completions(self, prompt: Any, fields: dict[str, Any]) -> None:
        self.server = Server()
        self.check(COMPLETIONS, prompt=prompt, **fields)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=5), inner, max_size=3)
            ),
            max_leaves=5,
        ),
        st.sampled_from(
            [
                *("max_tokens", "stop", "n", "seed", "logprobs", "top_logprobs", "tools"),
                *("tool_choice", "response_format", "reasoning_effort", "stream_options"),
                *("continue_final_message", "messages", "prompt", "echo", "priority"),
            ]
        ),
        st.sampled_from([CHAT, COMPLETIONS]),
    )
    def test_any_value_is_taken_or_refused_by_name(self, value: Any, name: str, path: str) -> None:
        self.server = Server()
        if name == "max_tokens" and type(value) is int:
            value = min(value, 50)
        if name == "n" and type(value) is int:
            value = min(value, 5)
        try:
            json.dumps(value, allow_nan=False)
        except ValueError:
            return
        found = self.ask(path, **{name: value})
        self.assertIn(found.status, (200, 400))
        if found.status == 400:
            self.assertIn(name.partition("_")[0], f"{found.error['param']}{found.error['message']}")
        self.assertEqual(self.flushLoggedErrors(), [])
