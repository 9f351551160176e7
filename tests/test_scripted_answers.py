"""Echo-directives, over the whole server in memory."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference_lab.content.text import answer
from inference_lab.faults.grammar import Fault, ModelFault
from tests.answers import Answer, LabCase
from tests.labs import CHAT, COMPLETIONS, Server

unicode = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def script(**fields: Any) -> str:
    """A directive."""
    return f"<<respond:{json.dumps(fields)}>>"


class ScriptTests(LabCase):
    def both(self, *contents: Any, **fields: Any) -> tuple[Answer, Answer]:
        messages = [{"role": "user", "content": content} for content in contents]
        return self.asked_twice(CHAT, messages=messages, **fields)

    @given(unicode, unicode, unicode)
    def test_any_text_anywhere(self, before: str, text: str, after: str) -> None:
        before, after = (noise.replace("<<respond:", "") for noise in (before, after))
        streamed, whole = self.both(f"{before} {script(text=text)} {after}")
        for found in (streamed, whole):
            self.assertEqual((found.only.text, found.only.finish_reason), (text, "stop"))
        self.assertEqual(streamed.usage, whole.usage)
        frames = sum(bool(frame.get("delta", {}).get("content")) for frame in streamed.only.frames)
        self.assertEqual(streamed.usage["completion_tokens"], frames)

    def test_everything_at_once(self) -> None:
        calls = [
            {"name": "weather", "arguments": {"city": "Rome", "close": ">>"}, "id": "mine"},
            {"name": "now", "arguments": {}},
        ]
        for found in self.both(script(text="Well. Two.", reasoning="Let me see", tool_calls=calls)):
            self.assertEqual(found.only.text, "Well. Two.")
            self.assertEqual(found.only.reasoning, "Let me see")
            self.assertEqual(
                found.only.calls,
                [
                    {"id": "mine", "name": "weather", "arguments": '{"city":"Rome","close":">>"}'},
                    {"id": "call_directive_1", "name": "now", "arguments": "{}"},
                ],
            )
            self.assertEqual(found.only.finish_reason, "tool_calls")
            details = found.usage["completion_tokens_details"]
            self.assertEqual(details, {"reasoning_tokens": 3})

    def test_streamed_word_by_word_and_in_fragments(self) -> None:
        calls = [{"name": "f", "arguments": {"city": "Rome", "days": [1, 2, 3]}}] * 2
        found = self.both(script(text="One two three", reasoning="Hm so", tool_calls=calls))[0]
        deltas = [frame["delta"] for frame in found.only.frames]
        self.assertEqual(
            [d["reasoning_content"] for d in deltas if "reasoning_content" in d], ["Hm", " so"]
        )
        words = [d["content"] for d in deltas if d.get("content")]
        self.assertEqual(words, ["One", " two", " three"])
        pieces = [d["tool_calls"][0] for d in deltas if "tool_calls" in d]
        self.assertEqual([p["index"] for p in pieces], sorted(p["index"] for p in pieces))
        openings = [p for p in pieces if "id" in p]
        self.assertEqual(
            [(p["index"], p["id"]) for p in openings],
            [(0, "call_directive_0"), (1, "call_directive_1")],
        )
        self.assertGreater(found.only.fragments, 8)
        self.assertEqual(found.usage["completion_tokens"], 2 + 3 + 2 + found.only.fragments)

    def test_calls_alone_have_no_content(self) -> None:
        whole = self.both(script(tool_calls=[{"name": "f"}]))[1]
        self.assertIsNone(whole.only.frames[0]["message"]["content"])
        whole = self.both(script(text="x", tool_calls=[{"name": "f"}]))[1]
        self.assertEqual(whole.only.frames[0]["message"]["content"], "x")

    def test_finish_reasons(self) -> None:
        for given_reason, expected in (
            ("length", "length"),
            ("content_filter", "content_filter"),
            ("nonsense", "stop"),
            (7, "stop"),
            (None, "stop"),
        ):
            for found in self.both(script(text="x", finish_reason=given_reason)):
                self.assertEqual(found.only.finish_reason, expected)

    def test_the_last_well_formed_one_wins(self) -> None:
        for found in self.both(script(text="1") + script(text="2"), script(text="3"), "no script"):
            self.assertEqual(found.only.text, "3")
        for found in self.both(script(text="1"), '<<respond:{"text":"2"}', "<<respond:{'text'}>>"):
            self.assertEqual(found.only.text, "1")

    def test_any_role_and_any_part(self) -> None:
        parts = [
            {"type": "text", "text": "look: "},
            {"type": "image_url", "image_url": {"url": "data:,"}},
            {"type": "text", "text": script(text="seen")},
        ]
        for role in ("system", "user", "assistant", "tool"):
            found = self.ask(CHAT, messages=[{"role": role, "content": parts}])
            self.assertEqual(found.only.text, "seen")

    @given(
        st.lists(
            st.sampled_from(
                ["<<respond:", "{", "}", '"', ">>", ":", "text", "[", "\\", "1", "null"]
            ),
            max_size=30,
        ).map("".join)
    )
    def test_what_merely_looks_like_one_never_fails(self, noise: str) -> None:
        for found in self.both(noise):
            self.assertEqual(found.status, 200)
            self.assertIsNotNone(found.only.finish_reason)

    def test_malformed_ones_are_plain_text(self) -> None:
        for noise in (
            "<<respond:>>",
            "<<respond:{}>>",
            '<<respond:{"text":5}>>',
            '<<respond:{"text":"x"}',
            '<<respond:{"text":"x"} >',
            '<<respond:{"tool_calls":[{"arguments":{}}]}>>',
            '<< respond:{"text":"x"}>>',
            '<<respond:{"text":"x",}>>',
            '<<respond:["text"]>>',
        ):
            for found in self.both(noise):
                self.assertEqual(found.only.text, answer(0, 8), noise)

    def test_plain_prompt_text_without_the_flag(self) -> None:
        self.server = Server(directives=False)
        for found in self.both(script(text="x")):
            self.assertEqual(found.only.text, answer(0, 8))

    def test_completions_have_none(self) -> None:
        found = self.ask(COMPLETIONS, prompt=script(text="x"), max_tokens=2)
        self.assertEqual(found.only.text, answer(0, 2))

    def test_usage_counts_the_prompt_as_it_is(self) -> None:
        said = [{"role": "user", "content": script(text="x")}]
        for_ids = self.ask(CHAT, messages=said, return_token_ids=True, stream=False)
        self.assertEqual(for_ids.usage["prompt_tokens"], len(for_ids.events[0]["prompt_token_ids"]))

    def test_n(self) -> None:
        for found in self.both(script(text="One two"), n=2):
            self.assertEqual([choice.text for choice in found.choices], ["One two"] * 2)
            self.assertEqual(found.usage["completion_tokens"], 4)


class PrecedenceTests(LabCase):
    """Header, then [fault], then directive, then the engine."""

    def text(self, fault: str | None, content: str, stream: bool = True) -> str:
        messages = [{"role": "user", "content": content}]
        found = self.ask(CHAT, fault, stream=stream, messages=messages)
        return f"{found.only.text}/{found.only.finish_reason}"

    def test_each_step(self) -> None:
        directive = script(text="scripted")
        header = "reset;after_chunks=1"
        model = ModelFault(Fault("cut_between_frames", 2))
        self.server = Server(fault=model)
        self.assertEqual(self.text(header, directive), f"{answer(0, 1)}/None")
        self.assertEqual(self.text(None, directive), f"{answer(0, 2)}/None")
        self.assertEqual(self.text(None, directive, stream=False), "scripted/stop")
        self.server = Server()
        self.assertEqual(self.text(header, directive), f"{answer(0, 1)}/None")
        self.assertEqual(self.text(None, directive), "scripted/stop")
        self.assertEqual(self.text(None, "hello"), f"{answer(0, 8)}/stop")
