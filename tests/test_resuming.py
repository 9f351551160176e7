"""The whole server in memory: any legs of an answer, stitched, are the answer that never died."""

from __future__ import annotations

from typing import Any

from attrs import define, field, frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.content.lengths import OutputLengths
from inference_lab.content.splice import verify
from inference_lab.content.text import answer, from_id, length, rotation, token, token_id
from inference_lab.content.workload import Uniform
from tests.answers import LabCase, gather
from tests.labs import CHAT, COMPLETIONS, Server, request
from tests.middleware import FORMS, Relay

MODES = (
    "cut_between_frames",
    "cut_mid_frame",
    "cut_mid_frame;utf8=true",
    "reset",
    "error_envelope_200",
    "error_400_in_sse",
    "cancelled_499",
)
WAYS = [(CHAT, form) for form in FORMS] + [(COMPLETIONS, "ids"), (COMPLETIONS, "text")]
MOST = 24
BOTH_FLAGS = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."


@frozen
class Story:
    """A request, how it is resumed, and what kills its legs: (mode, tokens)."""

    path: str
    form: str
    body: dict[str, Any]
    deaths: tuple[tuple[str, int], ...]


@st.composite
def stories(draw: st.DrawFn) -> Story:
    path, form = draw(st.sampled_from(WAYS))
    seed = draw(st.none() | st.integers(-99, 99))
    prompt = draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
    prompt += draw(st.sampled_from(("", "", "", "amber0", "x birch1.", "lamb", "amber0. bir")))
    fields: dict[str, Any] = {"seed": seed, "max_tokens": draw(st.integers(1, MOST))}
    text = answer(0, MOST, rotation(seed))
    stops = []
    for _ in range(draw(st.integers(0, 3))):
        low = draw(st.integers(0, len(text) - 1))
        stops.append(text[low : low + draw(st.integers(1, 20))])
    if stops:
        fields["stop"] = stops
    if path == CHAT:
        fields["messages"] = [{"role": "user", "content": prompt}]
    elif form == "ids" and draw(st.booleans()):
        fields["prompt"] = draw(st.lists(st.integers(0, 2_000_000), min_size=1, max_size=9))
    else:
        fields["prompt"] = prompt
    deaths = draw(st.lists(st.tuples(st.sampled_from(MODES), st.integers(0, 9)), max_size=4))
    return Story(path, form, request(path, **fields), tuple(deaths))


@define
class Upstream:
    """The server in memory, which kills one leg after the other."""

    case: LabCase
    deaths: list[tuple[str, int]]
    whole: int
    """Tokens that may be said: a fault knows of no stop string."""
    resumed_at: list[str] = field(factory=list)

    def __call__(self, path: str, body: dict[str, Any]) -> bytes:
        if path not in (CHAT, COMPLETIONS):
            return self.case.post(path, body).text
        fault = None
        if self.deaths:
            mode, after = self.deaths.pop(0)
            after = min(after, self.whole)
            self.whole -= after
            fault = f"{mode};after_chunks={after}"
        connection = self.case.post(path, body, fault)
        self.resumed_at.append(gather(connection).position)
        return connection.text


class SpliceTests(LabCase):
    """Tests stand for what a gateway does: tests/middleware.py."""

    def check(self, story: Story) -> None:
        asked = story.body | {"stream_options": {"include_usage": True}}
        recording = self.post(story.path, asked)
        golden = gather(recording)
        whole = gather(self.post(story.path, story.body | {"stream": False}))
        self.assertEqual(whole.only.text, golden.only.text)
        self.assertEqual(whole.only.finish_reason, golden.only.finish_reason)
        self.assertEqual(whole.only.stop_reason, golden.only.stop_reason)
        self.assertEqual(whole.usage, golden.usage)

        start = 0 if golden.position == "none" else int(golden.position)
        r = rotation(story.body["seed"])
        before = length(start, r)
        said = sum(
            1
            for i in range(golden.usage["completion_tokens"])
            if length(start + i + 1, r) - before <= len(golden.only.text)
        )
        upstream = Upstream(self, list(story.deaths), said)
        relay = Relay(upstream, story.path, asked, story.form).run()
        for found in (
            verify(recording.text, text=relay.text, usage=relay.usage),
            verify(recording.text, legs=relay.legs, usage=relay.usage),
        ):
            self.assertTrue(found.identical, str(found))
        if relay.finish_reason is not None:
            self.assertEqual(relay.finish_reason, golden.only.finish_reason)
        else:
            # All was there when it died: nothing is left to be asked for.
            self.assertEqual(len(relay.delivered.ids), story.body["max_tokens"])

    @given(stories())
    def test_any_legs_equal_the_answer_that_never_died(self, story: Story) -> None:
        self.check(story)

    @settings(max_examples=50)
    @given(stories(), st.integers(0, 99))
    def test_lengths_drawn_from_a_workload_stay(self, story: Story, seed: int) -> None:
        self.server = Server(drawn=OutputLengths(Uniform(min=1, max=MOST), seed))
        self.check(story)

    @given(st.text(max_size=9), st.integers(1, MOST))
    def test_at_least_so_many(self, prompt: str, least: int) -> None:
        self.server = Server(drawn=OutputLengths(Uniform(min=1, max=MOST), 1))
        for path, said in (
            (CHAT, {"messages": [{"role": "user", "content": prompt}]}),
            (COMPLETIONS, {"prompt": prompt}),
        ):
            asked: dict[str, Any] = {**said, "max_tokens": MOST, "stream": False}
            by_itself = self.ask(path, **asked).usage
            longer = self.ask(path, **asked, min_tokens=least).usage
            expected = max(by_itself["completion_tokens"], least)
            self.assertEqual(longer["completion_tokens"], expected)


class ContinuationTests(LabCase):
    """One leg at a time."""

    def continued(self, form: str, k: int, **fields: Any) -> Any:
        """A leg that goes on after ``k`` tokens."""
        return self.after(form, answer(0, k), [token_id(i) for i in range(k)], **fields)

    def after(self, form: str, text: str, ids: list[int] = [], **fields: Any) -> Any:  # noqa: B006
        match form:
            case "ids":
                return self.ask(COMPLETIONS, prompt=[1, 2, 3, *ids], **fields)
            case "text":
                return self.ask(COMPLETIONS, prompt="Hello. " + text, **fields)
        turn: dict[str, Any] = {"role": "assistant", "content": text}
        if form == "prefix":
            turn["prefix"] = True
        elif form == "continue_final_message":
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
        hello = {"role": "user", "content": "Hello"}
        return self.ask(CHAT, messages=[hello, turn], **fields)

    def test_exactly_the_remaining_text(self) -> None:
        usage: dict[str, Any] = {"stream_options": {"include_usage": True}}
        for form in FORMS:
            for k in (1, 2, 9, 31, 32, 33, 1000):
                leg = self.continued(form, k, max_tokens=7, return_token_ids=True, **usage)
                self.assertEqual(leg.only.text, answer(k, k + 7))
                self.assertEqual(leg.only.ids, [token_id(i) for i in range(k, k + 7)])
                self.assertEqual(leg.only.finish_reason, "length")
                self.assertEqual(leg.position, str(k))
                prompt_ids = leg.prompt_ids or leg.only.prompt_ids
                self.assertEqual(prompt_ids[-k:], [token_id(i) for i in range(k)])
                self.assertEqual(leg.usage["prompt_tokens"], len(prompt_ids))
                self.assertEqual(leg.usage["completion_tokens"], 7)

    @given(st.integers(1, 60), st.integers(0, 99), st.data())
    def test_the_remainder_of_a_partial_word(self, k: int, seed: int, data: st.DataObject) -> None:
        whole = token(k, rotation(seed))
        cut = data.draw(st.integers(1, len(whole) - 1))
        text = answer(0, k, rotation(seed)) + whole[:cut]
        for form in ("text", "continue_final_message", "prefix"):
            leg = self.after(form, text, max_tokens=2, seed=seed)
            rest = whole[cut:] + token(k + 1, rotation(seed))
            self.assertEqual((leg.only.text, leg.position), (rest, str(k)))

    def test_without_a_flag_a_new_answer_starts(self) -> None:
        leg = self.continued("forgotten", 5, max_tokens=3)
        self.assertEqual((leg.only.text, leg.position), (answer(0, 3), "none"))

    def test_both_flags(self) -> None:
        for extra in ({}, {"add_generation_prompt": True}, {"add_generation_prompt": None}):
            hello = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "amber0."}]
            error = self.refused(CHAT, messages=hello, continue_final_message=True, **extra)
            self.assertEqual(error["message"], BOTH_FLAGS)

    def test_prefix_elsewhere_is_no_continuation(self) -> None:
        turn = {"role": "assistant", "content": "amber0.", "prefix": True}
        leg = self.ask(CHAT, messages=[turn, {"role": "user", "content": "go on"}], max_tokens=1)
        self.assertEqual((leg.only.text, leg.position), ("amber0.", "none"))

    def test_content_in_parts(self) -> None:
        parts = [{"type": "text", "text": "amber0."}, {"type": "text", "text": " birch1."}]
        turn = {"role": "assistant", "content": parts, "prefix": True}
        leg = self.ask(CHAT, messages=[turn], max_tokens=1)
        self.assertEqual((leg.only.text, leg.position), (" cedar2.", "2"))

    def test_a_tail_that_is_not_ours(self) -> None:
        for form in ("text", "continue_final_message", "prefix"):
            for tail in ("Once upon a time", "amber0. birch1. and then", "birch2. ", "amber01."):
                leg = self.after(form, tail, max_tokens=1)
                self.assertEqual((leg.only.text, leg.position), ("amber0.", "none"))

    def test_another_seed_is_another_answer(self) -> None:
        for form in FORMS:
            leg = self.continued(form, 5, max_tokens=1, seed=3)
            self.assertEqual((leg.only.text, leg.position), (token(0, 3), "none"))

    def test_a_fault_goes_on_as_well(self) -> None:
        for form in FORMS:
            for mode in MODES:
                leg = self.continued(form, 5, fault=f"{mode};after_chunks=2", return_token_ids=True)
                self.assertEqual((leg.only.text, leg.position), (answer(5, 7), "5"))
                self.assertEqual(leg.only.ids, [token_id(5), token_id(6)])

    def test_an_answer_that_is_over_already(self) -> None:
        usage: dict[str, Any] = {"stream_options": {"include_usage": True}}
        golden = self.ask(CHAT, **usage)
        n = golden.usage["completion_tokens"]
        self.assertEqual(golden.only.finish_reason, "stop")
        for form in ("continue_final_message", "prefix"):
            for stream in (True, False):
                more = usage if stream else {}
                leg = self.continued(form, n, stream=stream, return_token_ids=True, **more)
                self.assertEqual((leg.only.text, leg.only.ids, leg.position), ("", [], str(n)))
                self.assertEqual(leg.only.finish_reason, "stop")
                self.assertEqual(leg.usage["completion_tokens"], 0)

    def test_after_a_reasoning_phase(self) -> None:
        limits: list[dict[str, Any]] = [{}, {"max_tokens": 40}]
        for limit in limits:
            asked: dict[str, Any] = {
                "reasoning_effort": "low",
                "stream_options": {"include_usage": True},
                **limit,
            }
            golden = self.ask(CHAT, **asked)
            k = golden.usage["completion_tokens_details"]["reasoning_tokens"]
            n = golden.usage["completion_tokens"]
            self.assertEqual(golden.only.reasoning, answer(0, k))
            self.assertEqual(golden.only.text, answer(k, n))
            if limit:
                asked["max_tokens"] = n - k - 2
            for form in ("continue_final_message", "prefix"):
                leg = self.after(form, answer(k, k + 2), **asked)
                self.assertEqual(leg.only.text, answer(k + 2, n))
                self.assertEqual(leg.only.reasoning, "")
                self.assertEqual(leg.only.finish_reason, golden.only.finish_reason)

    def test_a_fault_thinks_first_as_well(self) -> None:
        asked: dict[str, Any] = {"reasoning_effort": "low", "return_token_ids": True}
        golden = self.ask(CHAT, max_tokens=30, **asked)
        for mode in MODES:
            died = self.ask(CHAT, f"{mode};after_chunks=5", **asked)
            self.assertEqual(died.only.reasoning, golden.only.reasoning)
            self.assertEqual(died.only.text, answer(16, 21))
            self.assertEqual(died.only.ids, golden.only.ids[:21])
            leg = self.after("prefix", died.only.text, max_tokens=30 - 21, **asked)
            self.assertEqual(died.only.text + leg.only.text, golden.only.text)
            hidden = self.ask(CHAT, f"{mode};after_chunks=5", include_reasoning=False, **asked)
            self.assertEqual((hidden.only.reasoning, hidden.only.text), ("", answer(16, 21)))
            self.assertEqual(hidden.only.ids, died.only.ids)
        usage: dict[str, Any] = {"stream_options": {"include_usage": True}}
        died = self.ask(CHAT, "no_done;after_chunks=5", **asked, **usage)
        self.assertEqual(died.usage["completion_tokens"], 21)
        died = self.ask(CHAT, "mid_reasoning;after_chunks=5", **asked)
        self.assertEqual((died.only.reasoning, died.only.text), (answer(0, 5), ""))

    def test_fault_and_engine_say_the_same(self) -> None:
        for path in (CHAT, COMPLETIONS):
            for seed in (None, 5):
                dying = self.ask(
                    path, "reset;after_chunks=6", seed=seed, return_token_ids=True, echo=True
                )
                healthy = self.ask(path, seed=seed, max_tokens=6, return_token_ids=True, echo=True)
                self.assertEqual(dying.only.text, healthy.only.text)
                self.assertEqual(dying.only.ids, healthy.only.ids)
                self.assertEqual(dying.prompt_ids, healthy.prompt_ids)
                self.assertEqual(dying.only.prompt_ids, healthy.only.prompt_ids)
                self.assertEqual([from_id(id)[0] for id in dying.only.ids], [*range(6)])  # type: ignore[index]
