"""What a request can ask for, over the whole server in memory: streamed and not, the same."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.content.text import answer, rotation, token, token_id
from tests.answers import LabCase, gather
from tests.labs import CHAT, COMPLETIONS, request

PATHS = (CHAT, COMPLETIONS)
DEATHS = ("cut_between_frames", "cut_mid_frame", "reset", "error_envelope_200", "no_done")
USAGE = {"include_usage": True}
CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}


def counted(prompt: int, completion: int) -> dict[str, int]:
    """A usage object."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }


class LengthTests(LabCase):
    """max_tokens and its company."""

    def test_max_tokens(self) -> None:
        for path in PATHS:
            for most in (1, 2, 17, 100):
                for found in self.asked_twice(path, max_tokens=most):
                    self.assertEqual(found.only.text, answer(0, most))
                    self.assertEqual(found.only.finish_reason, "length")
                    self.assertEqual(found.usage["completion_tokens"], most)

    def test_the_new_name(self) -> None:
        for found in self.asked_twice(CHAT, max_completion_tokens=3):
            self.assertEqual(found.only.text, answer(0, 3))
        found = self.ask(CHAT, max_tokens=9, max_completion_tokens=3)
        self.assertEqual(found.only.text, answer(0, 3))

    def test_ignore_eos(self) -> None:
        for path in PATHS:
            found = self.ask(path, max_tokens=50, ignore_eos=True)
            self.assertEqual(found.only.text, answer(0, 50))
        found = self.ask(CHAT, ignore_eos=True, stop=["q176."])
        self.assertEqual(found.only.finish_reason, "length")
        self.assertEqual(
            len(found.only.frames) - 2, 4096 - self.usage_of(CHAT, ignore_eos=True)["prompt_tokens"]
        )

    def usage_of(self, path: str, **fields: Any) -> dict[str, Any]:
        return self.ask(path, stream=False, **fields).usage

    def test_min_tokens(self) -> None:
        for found in self.asked_twice(CHAT, min_tokens=30):
            self.assertEqual(found.only.text, answer(0, 30))
            self.assertEqual(found.only.finish_reason, "stop")
        for path in PATHS:
            for found in self.asked_twice(path, min_tokens=5, max_tokens=40, stop=["."]):
                # The sixth token may be the one that ends it.
                self.assertEqual(found.only.text, answer(0, 6)[:-1])
                self.assertEqual(found.usage["completion_tokens"], 6)

    def test_priority_and_user_and_what_nobody_knows(self) -> None:
        for path in PATHS:
            extra: dict[str, Any] = {
                "priority": -3,
                "user": "me",
                "cache_salt": "x",
                "nvext": {"a": [1]},
            }
            found = self.ask(path, max_tokens=2, parallel_tool_calls=True, **extra)
            self.assertEqual(found.only.text, answer(0, 2))


class StopTests(LabCase):
    @settings(max_examples=50)
    @given(st.sampled_from(PATHS), st.integers(0, 40), st.data())
    def test_cut_before_the_first_of_them(self, path: str, seed: int, data: st.DataObject) -> None:
        text = answer(0, 24, rotation(seed))
        low = data.draw(st.integers(0, len(text) - 1))
        stop = text[low : low + data.draw(st.integers(1, 12))]
        asked: Any = data.draw(st.sampled_from([stop, [stop], ["zzz", stop]]))
        expected = text[: text.index(stop)]
        # The token that completes it has been generated.
        end = text.index(stop) + len(stop)
        tokens = next(n for n in range(25) if len(answer(0, n, rotation(seed))) >= end)
        for found in self.asked_twice(path, seed=seed, max_tokens=24, stop=asked):
            self.assertEqual(found.only.text, expected)
            self.assertEqual(found.only.finish_reason, "stop")
            self.assertEqual(found.only.stop_reason, stop)
            self.assertEqual(found.usage["completion_tokens"], tokens)

    def test_one_that_never_comes(self) -> None:
        for path in PATHS:
            for found in self.asked_twice(path, max_tokens=9, stop=["\n\n", "amber9"]):
                self.assertEqual(found.only.text, answer(0, 9))
                self.assertEqual(
                    (found.only.finish_reason, found.only.stop_reason), ("length", None)
                )


class ChoicesTests(LabCase):
    def test_n(self) -> None:
        for path in PATHS:
            for found in self.asked_twice(path, n=3, max_tokens=5, seed=4, return_token_ids=True):
                self.assertEqual([each.text for each in found.choices], [answer(0, 5, 4)] * 3)
                self.assertEqual([each.finish_reason for each in found.choices], ["length"] * 3)
                self.assertEqual([len(each.ids) for each in found.choices], [5] * 3)
                self.assertEqual(found.usage["completion_tokens"], 15)
                self.assertEqual(
                    found.usage["prompt_tokens"], self.prompt_tokens(path), "the prompt counts once"
                )

    def prompt_tokens(self, path: str) -> int:
        tokens = self.ask(path, stream=False).usage["prompt_tokens"]
        assert isinstance(tokens, int)
        return tokens


class TokenIdTests(LabCase):
    """``return_token_ids``, where vLLM puts it."""

    def test_chat(self) -> None:
        found = self.ask(CHAT, max_tokens=3, return_token_ids=True, seed=1)
        first, *others = found.events
        self.assertIsInstance(first["prompt_token_ids"], list)
        self.assertEqual(first["choices"][0]["delta"]["role"], "assistant")
        self.assertTrue(all("prompt_token_ids" not in event for event in others))
        ids = [event["choices"][0].get("token_ids") for event in others]
        self.assertEqual(ids[:3], [[token_id(i, 1)] for i in range(3)])

    def test_completions(self) -> None:
        found = self.ask(COMPLETIONS, max_tokens=3, return_token_ids=True)
        self.assertTrue(all("prompt_token_ids" not in event for event in found.events))
        choices = [event["choices"][0] for event in found.events]
        self.assertEqual(choices[0]["prompt_token_ids"], [1, 2, 3, 4])
        self.assertTrue(all("prompt_token_ids" not in choice for choice in choices[1:]))
        self.assertEqual([c["token_ids"] for c in choices[:3]], [[token_id(i)] for i in range(3)])

    def test_whole(self) -> None:
        chat = self.ask(CHAT, stream=False, max_tokens=3, return_token_ids=True)
        streamed = self.ask(CHAT, max_tokens=3, return_token_ids=True)
        self.assertEqual(chat.events[0]["prompt_token_ids"], streamed.prompt_ids)
        self.assertEqual(chat.events[0]["choices"][0]["token_ids"], [token_id(i) for i in range(3)])
        self.assertEqual(len(streamed.prompt_ids or ()), chat.usage["prompt_tokens"])
        text = self.ask(COMPLETIONS, stream=False, max_tokens=3, return_token_ids=True)
        self.assertEqual(text.only.prompt_ids, [1, 2, 3, 4])

    def test_before_every_death(self) -> None:
        for path in PATHS:
            healthy = self.ask(path, max_tokens=4, return_token_ids=True)
            for mode in DEATHS:
                dying = self.ask(path, f"{mode};after_chunks=4", return_token_ids=True)
                self.assertEqual(dying.only.ids, healthy.only.ids)
                self.assertEqual(dying.prompt_ids, healthy.prompt_ids)
                self.assertEqual(dying.only.prompt_ids, healthy.only.prompt_ids)

    def test_not_asked_for(self) -> None:
        for path in PATHS:
            for found in self.asked_twice(path):
                self.assertNotIn("token_ids", str(found.events))

    def test_hidden_reasoning_is_counted_and_told(self) -> None:
        fields: dict[str, Any] = {"reasoning_effort": "minimal", "include_reasoning": False}
        found = self.ask(CHAT, return_token_ids=True, **fields)
        self.assertEqual(found.only.ids, [token_id(i) for i in range(16)])
        self.assertEqual((found.only.reasoning, found.only.text), ("", answer(8, 16)))
        bare = self.ask(CHAT, stream_options=CONTINUOUS, **fields)
        sums = [event["usage"]["completion_tokens"] for event in bare.events]
        self.assertEqual(sums, [0, *range(9, 17), 16, 16])


class EchoTests(LabCase):
    def test_text_and_ids(self) -> None:
        for stream in (True, False):
            for prompt, text in (("Once. ", "Once. "), ([257, 258], None)):
                found = self.ask(COMPLETIONS, prompt=prompt, echo=True, max_tokens=3, stream=stream)
                text = text or self.text_of([257, 258])
                self.assertEqual(found.only.text, text + answer(0, 3))
                self.assertEqual(found.only.prompt_ids, self.ids_of(prompt))

    def ids_of(self, prompt: Any) -> Any:
        if not isinstance(prompt, str):
            return prompt
        return gather(self.post("/tokenize", {"prompt": prompt})).events[0]["tokens"]

    def text_of(self, ids: list[int]) -> str:
        text = gather(self.post("/detokenize", {"tokens": ids})).events[0]["prompt"]
        assert isinstance(text, str)
        return text

    def test_before_a_death(self) -> None:
        found = self.ask(COMPLETIONS, "reset;after_chunks=2", prompt="Once. ", echo=True)
        self.assertEqual(found.only.text, "Once. amber0. birch1.")
        self.assertEqual(len(found.only.frames), 2)


class LogprobTests(LabCase):
    def test_chat(self) -> None:
        for top in (None, 0, 1, 5, 20):
            both = self.asked_twice(CHAT, max_tokens=6, logprobs=True, top_logprobs=top, seed=2)
            for found in both:
                self.assertEqual(found.only.logprobs, both[0].only.logprobs)
                for i, entry in enumerate(found.only.logprobs):
                    self.assertEqual(entry["token"], token(i, 2))
                    self.assertEqual(bytes(entry["bytes"]).decode(), token(i, 2))
                    tops = entry["top_logprobs"]
                    self.assertEqual(len(tops), top or 0)
                    self.check(entry["logprob"], [each["logprob"] for each in tops])
                    self.assertEqual(len({each["token"] for each in tops}), len(tops))
                self.assertEqual(len(found.only.logprobs), 6)

    def check(self, own: float, tops: list[float]) -> None:
        """Probabilities, the token's own the greatest, no more than 1 in sum."""
        self.assertLess(own, 0)
        self.assertEqual(tops, sorted(tops, reverse=True))
        self.assertLessEqual(sum(map(math.exp, tops)), 1.0 + 1e-5)
        if tops:
            self.assertEqual(own, tops[0])

    def test_completions(self) -> None:
        for count in (0, 1, 5):
            both = self.asked_twice(COMPLETIONS, max_tokens=6, logprobs=count)
            for found in both:
                self.assertEqual(found.only.logprobs, both[0].only.logprobs)
                for i, (text, logprob, tops) in enumerate(found.only.logprobs):
                    self.assertEqual(text, token(i))
                    self.assertEqual(len(tops), max(1, count))
                    self.check(logprob, list(tops.values()))
            offsets = [
                frame["logprobs"]["text_offset"][0]
                for frame in both[0].only.frames
                if frame["logprobs"]
            ]
            self.assertEqual(offsets, [len(answer(0, i)) for i in range(6)])
            self.assertEqual(both[1].events[0]["choices"][0]["logprobs"]["text_offset"], offsets)

    def test_named_by_id(self) -> None:
        fields: dict[str, Any] = {"max_tokens": 3, "return_tokens_as_token_ids": True}
        for found in self.asked_twice(CHAT, logprobs=True, top_logprobs=2, **fields):
            names = [entry["token"] for entry in found.only.logprobs]
            self.assertEqual(names, [f"token_id:{token_id(i)}" for i in range(3)])
            others = [entry["top_logprobs"][1]["token"] for entry in found.only.logprobs]
            self.assertEqual(others, [f"token_id:{token_id(i, 1)}" for i in range(3)])
        for found in self.asked_twice(COMPLETIONS, logprobs=1, **fields):
            self.assertEqual([name for name, _, _ in found.only.logprobs], names)

    def test_text_goes_on_where_ids_end(self) -> None:
        last = token(2**26)
        asked: dict[str, Any] = {"logprobs": 1, "return_tokens_as_token_ids": True}
        for found in self.asked_twice(COMPLETIONS, prompt=f"a{token(2**26 - 1)}", **asked):
            (first, _, _), (second, _, _), *_ = found.only.logprobs
            self.assertTrue(found.only.text.startswith(last + token(2**26 + 1)))
            self.assertEqual((first, second), (f"token_id:{token_id(2**26)}", token(2**26 + 1)))

    def test_not_asked_for(self) -> None:
        for found in self.asked_twice(CHAT, logprobs=False):
            self.assertEqual(found.only.logprobs, [])


class UsageTests(LabCase):
    def test_exact(self) -> None:
        for path in PATHS:
            for fields in ({"max_tokens": 5}, {"n": 2, "max_tokens": 4}, {"stop": "cedar"}):
                streamed, whole = self.asked_twice(path, **fields)
                self.assertEqual(streamed.usage, whole.usage)
                total = whole.usage["prompt_tokens"] + whole.usage["completion_tokens"]
                self.assertEqual(whole.usage["total_tokens"], total)

    def test_on_every_frame(self) -> None:
        for path in PATHS:
            found = self.ask(path, max_tokens=4, stream_options=CONTINUOUS)
            prompt = found.usage["prompt_tokens"]
            usages = [event["usage"] for event in found.events]
            sums = [0, 1, 2, 3, 4, 4, 4] if path == CHAT else [1, 2, 3, 4, 4, 4]
            self.assertEqual(usages, [counted(prompt, each) for each in sums])

    def test_what_a_stop_string_cut_is_counted_on_every_frame(self) -> None:
        found = self.ask(COMPLETIONS, max_tokens=9, stop="2. delta3", stream_options=CONTINUOUS)
        self.assertEqual(found.only.text, "amber0. birch1. cedar")
        *_, last = [
            event["usage"]["completion_tokens"] for event in found.events if event["choices"]
        ]
        self.assertEqual((last, found.usage["completion_tokens"]), (4, 4))

    def test_before_a_death(self) -> None:
        for path in PATHS:
            found = self.ask(path, "reset;after_chunks=3", stream_options=CONTINUOUS)
            last = found.events[-1]["usage"]
            self.assertEqual(last["completion_tokens"], 3)

    def test_ids_are_counted_as_sent(self) -> None:
        for ids in ([7], [1_000_000] * 3, [2**60, 3]):
            for found in self.asked_twice(COMPLETIONS, prompt=ids, max_tokens=1):
                self.assertEqual(found.usage, counted(len(ids), 1))

    def test_only_if_asked_for(self) -> None:
        for path in PATHS:
            for options in (None, {}, {"include_usage": False, "continuous_usage_stats": True}):
                found = self.ask(path, max_tokens=2, stream_options=options)
                self.assertTrue(all("usage" not in event for event in found.events))


class RefusedTests(LabCase):
    """What a real server refuses is a 400 that names the parameter."""

    def test_both_endpoints(self) -> None:
        for name, value in (
            ("temperature", -1),
            ("temperature", 2.5),
            ("n", 0),
            ("max_tokens", 0),
            ("max_tokens", -1),
            ("min_tokens", -1),
            ("top_p", 0),
            ("top_p", 1.1),
            ("top_k", -2),
            ("min_p", 2),
            ("presence_penalty", 3),
            ("frequency_penalty", -2.1),
            ("repetition_penalty", 0),
            ("stop", ""),
            ("stop", 5),
            ("seed", "x"),
            ("priority", "high"),
            ("stream_options", True),
            ("response_format", {"type": "xml"}),
        ):
            for path in PATHS:
                for stream in (True, False):
                    error = self.refused(path, stream=stream, **{name: value})
                    self.assertEqual((error["param"] or "").partition(".")[0], name)
                    self.assertIn(name, error["message"])
                    self.assertEqual(error["type"], "invalid_request_error")

    def test_chat(self) -> None:
        hello = request(CHAT)["messages"]
        for fields, name in (
            ({"top_logprobs": 50, "logprobs": True}, "top_logprobs"),
            ({"top_logprobs": 2}, "top_logprobs"),
            ({"max_completion_tokens": 0}, "max_completion_tokens"),
            ({"reasoning_effort": "enormous"}, "reasoning_effort"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"tool_choice": "whatever"}, "tool_choice"),
            ({"messages": []}, "messages"),
            ({"messages": hello, "min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ):
            error = self.refused(CHAT, **fields)
            self.assertEqual(error["param"], name)
            self.assertIn(name, error["message"])

    def test_completions(self) -> None:
        error = self.refused(COMPLETIONS, logprobs=50)
        self.assertEqual(error["param"], "logprobs")

    def test_a_context_that_is_too_long(self) -> None:
        for path in PATHS:
            error = self.refused(path, max_tokens=4096)
            self.assertEqual(error["code"], "context_length_exceeded")
            self.assertIn("4096", error["message"])
