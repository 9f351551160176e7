"""`inference_lab.content.directives`: messages that script their own answer."""

from __future__ import annotations

import json
import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.content.directives import (
    FINISH_REASONS,
    Directive,
    ToolCall,
    find_directive,
    fragments,
    words,
)

unicode = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
plain = unicode.filter(lambda text: "<<respond:" not in text)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | unicode,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(unicode, inner, max_size=3),
    max_leaves=8,
)
noise = st.lists(
    st.sampled_from(
        ["<<respond:", "{", "}", '"', ">>", ":", ",", "[", "]", "\\", "text", "1", " ", "é", "null"]
    ),
    max_size=60,
).map("".join)


def directive(**fields: Any) -> str:
    return f"<<respond:{json.dumps(fields, ensure_ascii=False)}>>"


def text_of(*messages: str) -> str | None:
    found = find_directive(messages)
    return None if found is None else found.text


class FindingTests(SynchronousTestCase):
    def test_text(self) -> None:
        found = find_directive(['Say: <<respond:{"text":"Hello"}>> please'])
        self.assertEqual(found, Directive("Hello", (), None, "stop"))

    def test_everything(self) -> None:
        found = find_directive(
            [
                directive(
                    text="T",
                    reasoning="R",
                    finish_reason="length",
                    tool_calls=[
                        {"name": "f", "arguments": {"city": "Rome", "n": [1, 2]}, "id": "x"},
                        {"name": "g", "arguments": '{"torn":'},
                        {"name": "h"},
                        {"name": "i", "arguments": None, "id": None},
                    ],
                )
            ]
        )
        calls = (
            ToolCall("x", "f", '{"city":"Rome","n":[1,2]}'),
            ToolCall("call_directive_1", "g", '{"torn":'),
            ToolCall("call_directive_2", "h", "{}"),
            ToolCall("call_directive_3", "i", "{}"),
        )
        self.assertEqual(found, Directive("T", calls, "R", "length"))

    def test_calls_without_text(self) -> None:
        found = find_directive([directive(tool_calls=[{"name": "f"}])])
        assert found is not None
        self.assertIsNone(found.text)
        self.assertEqual(found.finish_reason, "tool_calls")

    def test_empty_text_is_an_answer(self) -> None:
        self.assertEqual(text_of(directive(text="")), "")

    def test_the_last_one_wins(self) -> None:
        one, two = directive(text="1"), directive(text="2")
        self.assertEqual(text_of(one + two), "2")
        self.assertEqual(text_of(one, two), "2")
        self.assertEqual(text_of(one, two, "hello", "<<respond:{>>"), "2")
        self.assertEqual(text_of(one, "<<respond:{'text':'2'}>>" + one), "1")

    def test_after_an_opening_that_leads_nowhere(self) -> None:
        for before in ("<<respond:", "<<respond:{", '<<respond:{"text":', '<<respond:{"text":"a'):
            self.assertEqual(text_of(before + directive(text="1")), "1")

    def test_brackets_in_strings(self) -> None:
        for text in (">>", '"}>>', "}}>>", "<<respond:{}>>", '<<respond:{"text":"in"}>>', "{[\\"):
            self.assertEqual(text_of("a" + directive(text=text) + "b"), text)

    def test_white_space(self) -> None:
        self.assertEqual(text_of('<<respond: \n{ "text" : "a" }\t >>'), "a")

    def test_numbers_keep_their_spelling(self) -> None:
        source = '<<respond:{"tool_calls":[{"name":"f","arguments":{"x": 1.50, "y": 1E3}}]}>>'
        found = find_directive([source])
        assert found is not None
        self.assertEqual(found.tool_calls[0].arguments, '{"x":1.50,"y":1E3}')

    def test_finish_reasons(self) -> None:
        for reason in FINISH_REASONS:
            found = find_directive([directive(text="a", finish_reason=reason)])
            assert found is not None
            self.assertEqual(found.finish_reason, reason)
        for other in ("banana", 5, None, ["stop"]):
            found = find_directive([directive(text="a", finish_reason=other)])
            assert found is not None
            self.assertEqual(found.finish_reason, "stop")

    def test_malformed_ones_are_ignored(self) -> None:
        for source in (
            "<<respond:>>",
            "<<respond:{}>>",
            "<<respond:null>>",
            '<<respond:"text">>',
            '<<respond:[{"text":"a"}]>>',
            '<<respond:{"text":"a"}',
            '<<respond:{"text":"a"}>',
            '<<respond:{"text":"a"} x>>',
            '<<respond:{"text":"a",}>>',
            '<<respond:{"text":5}>>',
            '<<respond:{"text":NaN}>>',
            '<<respond:{"text":"\\ud800"}>>',
            '<<respond:{"text":"\ud800"}>>',
            '<<respond:{"text":"a\nb"}>>',
            '<<respond:{"text":"a]"]>>',
            '<<respond:{"tool_calls":[{}]}>>',
            '<<respond:{"tool_calls":[{"name":""}]}>>',
            '<<respond:{"tool_calls":[{"name":"f","arguments":[1]}]}>>',
            '<<respond:{"tool_calls":[{"name":"f","arguments":1}]}>>',
            '<<respond:{"tool_calls":[]}>>',
            '<<respond:{"finish_reason":"stop"}>>',
            '<<RESPOND:{"text":"a"}>>',
            '< <respond:{"text":"a"}>>',
        ):
            self.assertIsNone(find_directive([source]), source)

    @given(plain, unicode, plain)
    def test_any_text_anywhere(self, before: str, text: str, after: str) -> None:
        self.assertEqual(text_of(before, before + directive(text=text) + after, after), text)

    @given(st.dictionaries(unicode, values, max_size=4))
    def test_any_arguments(self, arguments: dict[str, Any]) -> None:
        found = find_directive([directive(tool_calls=[{"name": "f", "arguments": arguments}])])
        assert found is not None
        self.assertEqual(json.loads(found.tool_calls[0].arguments), arguments)

    @given(st.lists(noise | st.text(), max_size=3))
    def test_never_raises(self, texts: list[str]) -> None:
        find_directive(texts)

    @given(noise)
    def test_noise_before_does_not_hide_one(self, before: str) -> None:
        # The line end ends any string that noise has begun.
        self.assertIsNotNone(find_directive([before + "\n" + '<<respond:{"text":"x"}>>']))


class HostileTests(SynchronousTestCase):
    def test_time_is_linear(self) -> None:
        for unit in (
            "<<respond:",
            "<<respond:{",
            '<<respond:{"',
            '<<respond:{"text":"',
            '<<respond:{"a":{"b":',
            '<<respond:{"text":"\\"',
            '"<<respond:{":":",',
            '<<respond:{"a":[[[[',
            "<<respond:{          ",
            "<<respond:\n\n\n\n\n\n",
            '<<respond:{"text":5}>>',
            "<<respond:{}>>",
            "[",
            '{"a":',
            "\\",
        ):
            for opening in ("", '<<respond:{"text":"', '<<respond:{"a":'):
                text = opening + unit * (400_000 // len(unit))
                start = time.process_time()
                self.assertIsNone(find_directive([text]))
                self.assertLess(time.process_time() - start, 1, (opening, unit))

    def test_deep_nesting_is_not_a_directive(self) -> None:
        for depth in (200, 100_000):
            nested = "[" * depth + "]" * depth
            self.assertIsNone(find_directive([f'<<respond:{{"text":"a","x":{nested}}}>>']))
        self.assertEqual(text_of('<<respond:{"text":"a","x":' + "[" * 99 + "]" * 99 + "}>>"), "a")


class CuttingTests(SynchronousTestCase):
    @given(st.text() | noise)
    def test_pieces_join(self, text: str) -> None:
        for pieces in (words(text), fragments(text)):
            self.assertEqual("".join(pieces), text)
            self.assertNotIn("", pieces)

    def test_words(self) -> None:
        self.assertEqual(words("Hello, big\n world. "), ["Hello,", " big", "\n world.", " "])
        self.assertEqual([len(piece) for piece in words("x" * 50)], [24, 24, 2])

    def test_fragments(self) -> None:
        self.assertEqual(
            fragments('{"city":"San José","n":12}'),
            ['{"', "city", '":"', "San", " José", '","', "n", '":', "12", "}"],
        )

    def test_tokens(self) -> None:
        call = ToolCall("x", "f", '{"a":1}')
        self.assertEqual(Directive("a b", (call, call), "c", "stop").tokens, 3 + 2 * (1 + 5))

    def test_a_megabyte_is_cut_at_once(self) -> None:
        for text in ("a" * 10**6, " " * 10**6, " a" * 500_000, "{" * 10**6):
            start = time.process_time()
            words(text)
            fragments(text)
            self.assertLess(time.process_time() - start, 2)
