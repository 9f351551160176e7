"""`inference_lab.content.prompt`: the prompt that is counted, and where its answer begins."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.content.prompt import (
    BOTH_FLAGS,
    Prompt,
    Turn,
    chat_prompt,
    ids_prompt,
    join_parts,
    render_chat,
    text_prompt,
)
from inference_lab.content.resume import Resume, resume_text
from inference_lab.content.text import answer, rotation, token, token_id
from inference_lab.content.tokens import PieceTokenizer

OURS = PieceTokenizer()
seeds = st.none() | st.integers(-50, 50)
texts = st.text(max_size=30)
turns = st.builds(
    Turn,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    texts,
    st.sampled_from(["", '[{"name":"f"}]']),
    st.sampled_from(["", "ann"]),
    st.sampled_from(["", "hm"]),
)


class RenderingTests(SynchronousTestCase):
    def test_template(self) -> None:
        text, open_turn = render_chat([Turn("system", "Be brief."), Turn("user", "Hi")])
        self.assertEqual(text, "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n")
        self.assertIsNone(open_turn)

    def test_everything_said_is_counted(self) -> None:
        turn = Turn("assistant", "Wait.", '[{"name":"f"}]', "bob", "Well")
        text, _ = render_chat([turn], tools='[{"type":"function"}]', add_generation_prompt=False)
        self.assertEqual(
            text,
            '<|system|>\n[{"type":"function"}]<|end|>\n'
            '<|assistant bob|>\n<think>Well</think><|tool_calls|>[{"name":"f"}]\nWait.<|end|>\n',
        )

    def test_parts(self) -> None:
        parts = [("text", "Look: "), ("image_url", None), ("text", "!"), ("text", None)]
        self.assertEqual(join_parts(parts), "Look: <|image_url|>!<|text|>")
        self.assertEqual(join_parts([]), "")

    @given(st.lists(turns, min_size=1, max_size=4), st.booleans())
    def test_an_open_turn_ends_the_prompt(self, said: list[Turn], tools: bool) -> None:
        text, open_turn = render_chat(
            said,
            tools="[]" * tools,
            add_generation_prompt=False,
            continue_final_message=True,
        )
        self.assertEqual(open_turn, said[-1].content)
        self.assertTrue(text.endswith(said[-1].content))
        closed, _ = render_chat(said, tools="[]" * tools, add_generation_prompt=False)
        self.assertEqual(closed, text + "<|end|>\n")

    def test_both_flags(self) -> None:
        said = [Turn("user", "Hi"), Turn("assistant", "amber0.")]
        with self.assertRaises(ValueError) as caught:
            render_chat(said, continue_final_message=True)
        self.assertEqual(str(caught.exception), BOTH_FLAGS)

    def test_prefix_counts_on_a_last_assistant_turn_only(self) -> None:
        user, mine = Turn("user", "Hi", prefix=True), Turn("assistant", "amber0.", prefix=True)
        self.assertEqual(render_chat([user, mine])[1], "amber0.")
        self.assertEqual(render_chat([user, mine], continue_final_message=True)[1], "amber0.")
        for said in ([mine, user], [user]):
            text, open_turn = render_chat(said)
            self.assertIsNone(open_turn)
            self.assertTrue(text.endswith("<|end|>\n<|assistant|>\n"))

    def test_no_turns(self) -> None:
        self.assertEqual(render_chat([]), ("<|assistant|>\n", None))


class ContinuationTests(SynchronousTestCase):
    """The four forms in which a prompt carries part of its answer, and the one that is none."""

    QUESTION = Turn("user", "What is there?")

    def first(self, seed: int | None) -> Prompt:
        return chat_prompt([self.QUESTION], OURS, seed)

    def forms(self, delivered: str, seed: int | None) -> dict[str, Prompt]:
        """One answer taken up in each form: the chat's prompt is what a completion sends."""
        prompt = self.first(seed).text
        turn = Turn("assistant", delivered)
        return {
            "ids": ids_prompt(OURS.encode(prompt) + OURS.encode(delivered), OURS, seed),
            "text": text_prompt(prompt + delivered, OURS, seed),
            "continue_final_message": chat_prompt(
                [self.QUESTION, turn],
                OURS,
                seed,
                add_generation_prompt=False,
                continue_final_message=True,
            ),
            "prefix": chat_prompt(
                [self.QUESTION, Turn("assistant", delivered, prefix=True)], OURS, seed
            ),
        }

    @given(seeds, st.integers(1, 80), st.data())
    def test_four_forms_are_one_prompt(self, seed: int | None, k: int, data: st.DataObject) -> None:
        r = rotation(seed)
        partial = token(k, r)[: data.draw(st.integers(0, len(token(k, r)) - 1))]
        first = self.first(seed)
        for form, prompt in self.forms(answer(0, k, r) + partial, seed).items():
            self.assertEqual(prompt.resume, Resume(k, r, partial), form)
            self.assertEqual(prompt.text, first.text + answer(0, k, r) + partial, form)
            self.assertEqual(prompt.key, first.key, form)
            self.assertEqual(prompt.tokens, len(prompt.ids(OURS)), form)
            self.assertEqual(prompt.header, str(k))
            if not partial:
                self.assertEqual(prompt.tokens, first.tokens + k, form)

    def test_without_a_flag_the_answer_starts_over(self) -> None:
        prompt = chat_prompt([self.QUESTION, Turn("assistant", answer(0, 4))], OURS)
        self.assertIsNone(prompt.resume)
        self.assertEqual(prompt.header, "none")
        self.assertEqual(prompt.key, prompt.text)

    def test_another_turn_that_ends_in_an_answer_is_no_beginning(self) -> None:
        self.assertIsNone(chat_prompt([Turn("user", answer(0, 4))], OURS).resume)

    def test_the_end_of_an_earlier_turn_is_not_read(self) -> None:
        said = [Turn("user", answer(0, 4)), Turn("assistant", "", prefix=True)]
        self.assertIsNone(chat_prompt(said, OURS).resume)

    def test_a_beginning_of_the_first_token(self) -> None:
        said = [self.QUESTION, Turn("assistant", "amb", prefix=True)]
        prompt = chat_prompt(said, OURS)
        self.assertEqual(prompt.resume, Resume(0, 0, "amb"))
        self.assertEqual(prompt.key, self.first(None).text)

    def test_a_reasoning_phase_came_before(self) -> None:
        turn = Turn("assistant", answer(5, 9), reasoning=answer(0, 5), prefix=True)
        self.assertEqual(chat_prompt([self.QUESTION, turn], OURS).resume, Resume(9, 0, ""))

    @given(texts.filter(lambda text: resume_text(text) is None), seeds)
    def test_a_tail_that_is_not_ours(self, text: str, seed: int | None) -> None:
        for prompt in (text_prompt(text, OURS, seed), ids_prompt(OURS.encode(text), OURS, seed)):
            self.assertIsNone(prompt.resume)
            self.assertEqual(prompt.key, text)

    @given(st.lists(st.integers(0, 2_000_000), max_size=30))
    def test_ids_are_counted_and_kept(self, ids: list[int]) -> None:
        prompt = ids_prompt(ids, OURS)
        self.assertEqual((prompt.tokens, prompt.ids(OURS)), (len(ids), ids))

    def test_ids_of_another_seed(self) -> None:
        ids = [token_id(i, 3) for i in range(4)]
        self.assertEqual(ids_prompt(ids, OURS, 3).resume, Resume(4, 3, ""))
        self.assertIsNone(ids_prompt(ids, OURS, 4).resume)
