"""A resumed answer equals the one that never died, however it is cut; a faulty middleware is seen.

The server here is what the room's functions make without any I/O, the middleware ten lines.
"""

from __future__ import annotations

from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.content.lengths import OutputLengths
from inference_lab.content.prompt import Prompt, Turn, chat_prompt, ids_prompt, text_prompt
from inference_lab.content.splice import verify
from inference_lab.content.stops import first_cut
from inference_lab.content.text import answer, length, rotation, token, token_id
from inference_lab.content.tokens import PieceTokenizer
from inference_lab.content.workload import Uniform

OURS = PieceTokenizer()
LENGTHS = OutputLengths(Uniform(min=1, max=60), 42)
FORMS = ("ids", "text", "continue_final_message", "prefix")
BUGS = ("forgets the flag", "drops a token", "repeats a token", "restarts", "sums usage twice")


@frozen
class Asked:
    """What stays the same over the legs of one answer."""

    prompt: str
    seed: int | None
    max_tokens: int
    stops: tuple[str, ...] = ()


@frozen
class Response:
    """A leg as a client has it: a frame for each token, and what the finish says."""

    frames: list[str]
    ids: list[int]
    last_text: str
    usage: int
    finish_reason: str | None

    @property
    def text(self) -> str:
        return "".join(self.frames) + self.last_text


def serve(prompt: Prompt, asked: Asked, max_tokens: int, dies_after: int | None) -> Response:
    """One leg: its tokens by position, cut by length and stop strings, or dead after some."""
    r = rotation(asked.seed)
    start, partial = (prompt.resume[0], prompt.resume[2]) if prompt.resume else (0, "")
    left = max(1, LENGTHS.length(prompt.key, asked.seed) - start)
    count, reason = (max_tokens, "length") if max_tokens <= left else (left, "stop")
    cut = first_cut(start, count, r, asked.stops, partial=partial)
    whole = count
    last = ""
    if cut is not None:
        count, whole, reason = cut.tokens, cut.whole, "stop"
        begin = length(start, r) + len(partial)
        last = answer(0, start + count, r)[begin:][: cut.characters]
        last = last[length(start + whole, r) - begin if whole else 0 :]
    frames = [token(i, r) for i in range(start, start + whole)]
    if frames:
        frames[0] = frames[0][len(partial) :]
    ids = [token_id(i, r) for i in range(start, start + whole)]
    if dies_after is not None and dies_after < whole:
        return Response(frames[:dies_after], ids[:dies_after], "", 0, None)
    return Response(frames, ids, last, count, reason)


def prompt_of(form: str, asked: Asked, ids: list[int], text: str, flag: bool = True) -> Prompt:
    """The prompt of a leg that goes on after ``ids``, which are ``text``."""
    user = Turn("user", asked.prompt)
    first = chat_prompt([user], OURS, asked.seed)
    if form == "ids":
        return ids_prompt(first.ids(OURS) + (ids if flag else []), OURS, asked.seed)
    if form == "text":
        return text_prompt(first.text + (text if flag else ""), OURS, asked.seed)
    if not text:
        return first
    mine = Turn("assistant", text, prefix=flag and form == "prefix")
    open_turn = flag and form == "continue_final_message"
    return chat_prompt(
        [user, mine],
        OURS,
        asked.seed,
        add_generation_prompt=not open_turn,
        continue_final_message=open_turn,
    )


def relay(form: str, asked: Asked, deaths: list[int], bug: str = "") -> tuple[list[Response], int]:
    """A middleware that resumes after each death, and what it bills in the end."""
    legs: list[Response] = []
    ids: list[int] = []
    text, usage = "", 0
    for death in [*deaths, None]:
        sent_ids, sent = ids, text
        if bug == "drops a token" and legs:
            sent_ids, sent = [*ids, ids[-1] + 32], text + token((ids[-1] + 32 - 10**6) // 32)
        if bug == "repeats a token" and legs:
            sent_ids, sent = ids[:-1], "".join(OURS.decode([id]) for id in ids[:-1])
        if bug == "restarts":
            sent_ids, sent = [], ""
        prompt = prompt_of(form, asked, sent_ids, sent, flag=bug != "forgets the flag")
        leg = serve(prompt, asked, asked.max_tokens - len(ids), death)
        legs.append(leg)
        ids = ids + leg.ids
        text += leg.text
        usage += leg.usage or len(leg.ids)
        if bug == "sums usage twice" and leg.finish_reason:
            usage += leg.usage
        if leg.finish_reason:
            break
    return legs, usage


@st.composite
def answers(draw: st.DrawFn) -> Asked:
    asked = Asked(
        draw(st.text(max_size=20)),
        draw(st.none() | st.integers(0, 99)),
        draw(st.integers(1, 60)),
    )
    text = answer(0, 60, rotation(asked.seed))
    stops = []
    for _ in range(draw(st.integers(0, 3))):
        low = draw(st.integers(0, len(text) - 1))
        stops.append(text[low : low + draw(st.integers(1, 20))])
    return evolve(asked, stops=tuple(stops))


class ResumingTests(SynchronousTestCase):
    @given(
        answers(),
        st.sampled_from(FORMS),
        st.lists(st.integers(0, 20), max_size=5),
    )
    def test_any_legs_equal_the_answer_that_never_died(
        self, asked: Asked, form: str, deaths: list[int]
    ) -> None:
        golden = serve(prompt_of("text", asked, [], ""), asked, asked.max_tokens, None)
        legs, usage = relay(form, asked, deaths)
        verdict = verify(golden.text, text="".join(leg.text for leg in legs))
        self.assertEqual(str(verdict), "identical")
        self.assertEqual(usage, golden.usage)
        self.assertEqual(legs[-1].finish_reason, golden.finish_reason)
        self.assertEqual([id for leg in legs for id in leg.ids], golden.ids)

    @given(st.sampled_from(FORMS), st.integers(2, 19), st.integers(20, 40))
    def test_each_planted_bug_is_seen(self, form: str, death: int, most: int) -> None:
        asked = Asked("Hi", None, most)
        # Long enough that only the limit ends it.
        whole = next(
            evolve(asked, prompt=f"Hi {number}")
            for number in range(99)
            if LENGTHS.length(prompt_of("text", evolve(asked, prompt=f"Hi {number}"), [], "").key)
            >= most
        )
        golden = serve(prompt_of("text", whole, [], ""), whole, most, None)
        kinds = {}
        for bug in BUGS:
            legs, usage = relay(form, whole, [death], bug)
            text = "".join(leg.text for leg in legs)
            found = verify(golden.text, text=text, usage=usage).findings
            kinds[bug] = [finding.kind for finding in found]
        self.assertEqual(kinds["forgets the flag"][0], "restarted")
        self.assertEqual(kinds["restarts"][0], "restarted")
        self.assertEqual(kinds["drops a token"][0], "missing")
        self.assertEqual(kinds["repeats a token"][0], "repeated")
        self.assertEqual(kinds["sums usage twice"], ["usage"])
