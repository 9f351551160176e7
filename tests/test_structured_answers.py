"""Tools, documents and thinking, over the whole server in memory."""

from __future__ import annotations

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from inference_lab.content.text import answer
from tests.answers import Answer, LabCase
from tests.labs import CHAT, COMPLETIONS, Server

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["c", "f"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 7}},
        "at": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
    },
    "required": ["city", "unit", "days", "at"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"lat": {"type": "number"}, "on": {"type": "string", "format": "date"}},
            "required": ["lat", "on"],
            "additionalProperties": False,
        }
    },
}
LOOKUP = {"type": "object", "properties": {"q": {"type": "string", "pattern": "^[a-z]{3}$"}}}


def tool(name: str, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """A tool of a request."""
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("weather", WEATHER), tool("lookup", LOOKUP), tool("now", None)]
SCHEMAS = {"weather": WEATHER, "lookup": LOOKUP, "now": {"type": "object"}}


class ToolTests(LabCase):
    def check(self, found: Answer, name: str) -> str:
        (call,) = found.only.calls
        self.assertEqual(call["name"], name)
        self.assertTrue(call["id"].startswith("call_"))
        jsonschema.validate(json.loads(call["arguments"]), SCHEMAS[name])
        self.assertEqual((found.only.text, found.only.finish_reason), ("", "tool_calls"))
        arguments = call["arguments"]
        assert isinstance(arguments, str)
        return arguments

    @given(st.sampled_from(sorted(SCHEMAS)), st.none() | st.integers(0, 999))
    def test_a_named_function(self, name: str, seed: int | None) -> None:
        choice = {"type": "function", "function": {"name": name}}
        asked: dict[str, Any] = {"tools": TOOLS, "tool_choice": choice, "seed": seed}
        streamed, whole = self.asked_twice(CHAT, **asked)
        self.assertEqual(self.check(streamed, name), self.check(whole, name))
        self.assertEqual(streamed.only.calls, whole.only.calls)
        self.assertEqual(streamed.usage, whole.usage)
        # A token for the name, and one for each fragment.
        self.assertEqual(whole.usage["completion_tokens"], 1 + streamed.only.fragments)

    def test_required(self) -> None:
        for found in self.asked_twice(CHAT, tools=TOOLS, tool_choice="required"):
            self.check(found, "weather")
        self.assertIsNone(found.events[0]["choices"][0]["message"]["content"])

    def test_in_fragments(self) -> None:
        found = self.ask(CHAT, tools=TOOLS, tool_choice="required")
        deltas = [frame["delta"] for frame in found.only.frames]
        opening, *fragments = [d["tool_calls"][0] for d in deltas if "tool_calls" in d]
        self.assertEqual(set(opening), {"index", "id", "type", "function"})
        self.assertEqual(opening["function"], {"name": "weather", "arguments": ""})
        self.assertGreater(len(fragments), 5)
        for fragment in fragments:
            self.assertEqual(set(fragment), {"index", "function"})
            self.assertEqual(fragment["index"], 0)
            self.assertTrue(0 < len(fragment["function"]["arguments"]) <= 17)

    def test_text(self) -> None:
        for choice in ("auto", "none", None):
            for found in self.asked_twice(CHAT, tools=TOOLS, tool_choice=choice):
                self.assertEqual((found.only.text, found.only.calls), (answer(0, 8), []))
        for choice in ("auto", "none"):
            self.assertEqual(self.ask(CHAT, tool_choice=choice).only.text, answer(0, 8))

    def test_a_limit_cuts_the_arguments(self) -> None:
        found = self.ask(CHAT, tools=TOOLS, tool_choice="required", max_tokens=4)
        self.assertEqual((found.only.finish_reason, found.only.fragments), ("length", 3))

    def test_tools_are_part_of_the_prompt(self) -> None:
        bare, armed = self.ask(CHAT, stream=False), self.ask(CHAT, stream=False, tools=TOOLS)
        self.assertGreater(armed.usage["prompt_tokens"], bare.usage["prompt_tokens"])

    def test_refused(self) -> None:
        unknown = {"type": "function", "function": {"name": "nobody"}}
        error = self.refused(CHAT, tools=TOOLS, tool_choice=unknown)
        self.assertEqual(error["param"], "tool_choice")
        self.assertIn("nobody", error["message"])
        odd = [tool("odd", {"type": "object", "patternProperties": {}})]
        error = self.refused(CHAT, tools=odd, tool_choice="required")
        self.assertEqual(error["param"], "tools")
        self.assertIn("patternProperties", error["message"])
        self.assertEqual(self.ask(CHAT, tools=odd).status, 200)


class DocumentTests(LabCase):
    @given(st.none() | st.integers(0, 999), st.sampled_from([CHAT, COMPLETIONS]))
    def test_json_schema(self, seed: int | None, path: str) -> None:
        wanted = {"name": "weather", "strict": True, "schema": WEATHER}
        form = {"type": "json_schema", "json_schema": wanted}
        both = self.asked_twice(path, response_format=form, seed=seed)
        for found in both:
            jsonschema.validate(json.loads(found.only.text), WEATHER)
            self.assertEqual(found.only.text, both[0].only.text)
            self.assertEqual(found.only.finish_reason, "stop")
            self.assertEqual(found.usage, both[0].usage)

    def test_json_object(self) -> None:
        for found in self.asked_twice(CHAT, response_format={"type": "json_object"}):
            self.assertIsInstance(json.loads(found.only.text), dict)

    def test_text(self) -> None:
        found = self.ask(CHAT, response_format={"type": "text"})
        self.assertEqual(found.only.text, answer(0, 8))

    def test_another_keyword_is_named(self) -> None:
        for keyword, value in (
            ("oneOf", [{}]),
            ("allOf", [{}]),
            ("patternProperties", {}),
            ("minProperties", 1),
            ("uniqueItems", True),
            ("if", {}),
        ):
            schema = {"type": "object", "properties": {"x": {"type": "array", keyword: value}}}
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            error = self.refused(CHAT, response_format=form)
            self.assertEqual(error["param"], "response_format")
            self.assertIn(f"'{keyword}' at #/properties/x", error["message"])

    def test_without_a_schema(self) -> None:
        for form in (
            {"type": "json_schema"},
            {"type": "json_schema", "json_schema": {"name": "x"}},
        ):
            error = self.refused(CHAT, response_format=form)
            self.assertEqual(error["param"], "response_format.json_schema.schema")

    def test_a_limit_and_a_stop_string(self) -> None:
        form = {"type": "json_object"}
        found = self.ask(CHAT, response_format=form, max_tokens=3)
        self.assertEqual(found.only.finish_reason, "length")
        for found in self.asked_twice(CHAT, response_format=form, stop=["count"]):
            self.assertTrue(found.only.text.endswith(',"'))
            self.assertEqual(found.only.stop_reason, "count")


class ReasoningTests(LabCase):
    def test_a_phase_before_the_content(self) -> None:
        for effort in ("minimal", "low", "medium", "high"):
            both = self.asked_twice(CHAT, reasoning_effort=effort, return_token_ids=True)
            for found in both:
                details = found.usage["completion_tokens_details"]
                k, n = details["reasoning_tokens"], found.usage["completion_tokens"]
                self.assertGreater(k, 0)
                self.assertEqual(found.only.reasoning, answer(0, k))
                self.assertEqual(found.only.text, answer(k, n))
                self.assertEqual(found.only.ids, both[0].only.ids)
                self.assertEqual(len(found.only.ids), n)
        self.assertEqual(self.ask(CHAT, reasoning_effort="none").only.reasoning, "")
        self.assertEqual(self.ask(CHAT).only.reasoning, "")

    def test_shown_or_hidden(self) -> None:
        self.assertNotEqual(self.ask(CHAT, include_reasoning=True).only.reasoning, "")
        both = self.asked_twice(CHAT, reasoning_effort="low", include_reasoning=False)
        for found in both:
            self.assertEqual((found.only.reasoning, found.only.text), ("", answer(16, 24)))
            self.assertEqual(found.usage["completion_tokens"], 24)

    def test_the_field(self) -> None:
        for field in ("reasoning_content", "reasoning"):
            self.server = Server(reasoning_field=field)
            found = self.ask(CHAT, reasoning_effort="low")
            self.assertEqual(found.only.frames[1]["delta"], {field: "amber0."})
            whole = self.ask(CHAT, stream=False, reasoning_effort="low")
            self.assertEqual(whole.only.frames[0]["message"][field], answer(0, 16))
            died = self.ask(CHAT, "mid_reasoning;after_chunks=1")
            self.assertEqual(died.only.frames[1]["delta"], {field: "amber0."})

    def test_a_limit_may_leave_no_content(self) -> None:
        for found in self.asked_twice(CHAT, reasoning_effort="low", max_tokens=5):
            self.assertEqual((found.only.reasoning, found.only.text), (answer(0, 5), ""))
            self.assertEqual(found.only.finish_reason, "length")

    def test_stop_strings_are_of_the_content(self) -> None:
        for found in self.asked_twice(CHAT, reasoning_effort="minimal", stop=["birch1", "jade9"]):
            self.assertEqual(found.only.reasoning, answer(0, 8))
            self.assertEqual(found.only.text, " iris8. ")

    def test_before_documents_and_calls(self) -> None:
        form = {"type": "json_object"}
        for found in self.asked_twice(CHAT, reasoning_effort="low", response_format=form):
            self.assertEqual(found.only.reasoning, answer(0, 16))
            self.assertIsInstance(json.loads(found.only.text), dict)
            self.assertEqual(found.usage["completion_tokens_details"], {"reasoning_tokens": 16})
        asked: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required"}
        for found in self.asked_twice(CHAT, reasoning_effort="low", **asked):
            self.assertEqual(found.only.reasoning, answer(0, 16))
            jsonschema.validate(json.loads(found.only.calls[0]["arguments"]), WEATHER)
