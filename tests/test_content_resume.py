"""`inference_lab.content.resume`: a prompt that carries part of its answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.content.resume import (
    Resume,
    resume_ids,
    resume_text,
    strip_ids,
    strip_text,
)
from inference_lab.content.text import answer, rotation, token, token_id
from inference_lab.content.tokens import PieceTokenizer

OURS = PieceTokenizer()
seeds = st.none() | st.integers(-100, 2**40)
prompts = st.text(max_size=40).filter(lambda text: resume_text(text) is None)


class ContinuationTests(SynchronousTestCase):
    @given(prompts, seeds, st.integers(1, 60), st.booleans())
    def test_goes_on_after_k_tokens(
        self, prompt: str, seed: int | None, k: int, as_ids: bool
    ) -> None:
        r = rotation(seed)
        if as_ids:
            ids = OURS.encode(prompt) + [token_id(i, r) for i in range(k)]
            found = resume_ids(ids, OURS, seed)
        else:
            found = resume_text(prompt + answer(0, k, r), seed)
        self.assertEqual(found, Resume(k, r, ""))

    @given(prompts, seeds, st.lists(st.integers(1, 25), min_size=1, max_size=6), st.booleans())
    def test_any_cuts_after_the_first_token_add_up(
        self, prompt: str, seed: int | None, cuts: list[int], as_ids: bool
    ) -> None:
        golden = answer(0, 40, rotation(seed))
        delivered = golden[: len(token(0, rotation(seed))) - 1 + cuts[0]]
        for cut in [*cuts[1:], len(golden)]:
            sent = prompt + delivered
            found = resume_ids(OURS.encode(sent), OURS, seed) if as_ids else None
            found = found or resume_text(sent, seed)
            assert found is not None, delivered
            rest = found.remainder + answer(found.position + 1, 40, found.rotation)
            delivered += rest[:cut]
        self.assertEqual(delivered, golden)

    def test_only_the_last_word_decides(self) -> None:
        gap = answer(0, 3) + answer(4, 6)
        self.assertEqual(resume_text(gap), Resume(6, 0, ""))
        self.assertEqual(resume_text("Thus:" + answer(7, 9)), Resume(9, 0, ""))

    def test_another_seed_is_not_this_answer(self) -> None:
        self.assertIsNone(resume_text(answer(0, 5, 1), seed=2))
        self.assertIsNone(resume_ids([token_id(i, 1) for i in range(5)], OURS, None))

    def test_foreign_ids(self) -> None:
        for ids in ([], [1, 2, 3, 4], [-5], [10**12]):
            self.assertIsNone(resume_ids(ids, OURS))
            self.assertEqual(strip_ids(ids, OURS), ids)

    def test_an_opening_turn(self) -> None:
        self.assertEqual(resume_text("am", opening=True), Resume(0, 0, "am"))
        self.assertIsNone(resume_text("am"))


class StripTests(SynchronousTestCase):
    @given(prompts, seeds, st.integers(1, 40), st.data())
    def test_every_leg_has_the_first_legs_prompt(
        self, prompt: str, seed: int | None, k: int, data: st.DataObject
    ) -> None:
        r = rotation(seed)
        first = strip_text(prompt, seed)
        due = token(k, r)
        partial = due[: data.draw(st.integers(0, len(due) - 1))]
        text = prompt + answer(0, k, r) + partial
        self.assertEqual(strip_text(text, seed), first)
        ids = OURS.encode(prompt)
        sent = ids + [token_id(i, r) for i in range(k)] + OURS.encode(partial)
        self.assertEqual(strip_ids(sent, OURS, seed), strip_ids(ids, OURS, seed))

    @given(prompts, seeds, st.integers(1, 40), st.integers(1, 5), st.data())
    def test_an_id_that_finished_a_partial_word(
        self, prompt: str, seed: int | None, k: int, more: int, data: st.DataObject
    ) -> None:
        r = rotation(seed)
        due = token(k, r)
        partial = due[: data.draw(st.integers(1, len(due) - 1))]
        sent = OURS.encode(prompt + answer(0, k, r) + partial)
        sent += [token_id(i, r) for i in range(k, k + more)]
        self.assertEqual(OURS.decode(strip_ids(sent, OURS, seed)), strip_text(prompt, seed))

    def test_an_id_that_finished_the_first_word(self) -> None:
        sent = [*OURS.encode("Hi. amber0"), token_id(0), token_id(1)]
        self.assertEqual(OURS.decode(strip_ids(sent, OURS)), "Hi. ")

    @given(st.lists(st.integers(0, 255), max_size=8), st.integers(1, 20))
    def test_ids_that_we_would_not_have_chosen(self, ids: list[int], k: int) -> None:
        sent = ids + [token_id(i) for i in range(k)]
        self.assertEqual(strip_ids(sent, OURS), strip_ids(ids, OURS))

    def test_words_spelt_in_other_ids(self) -> None:
        spelt = list(b"hello" + answer(0, 3).encode())
        self.assertEqual(resume_ids(spelt, OURS), Resume(3, 0, ""))
        self.assertEqual(OURS.decode(strip_ids(spelt, OURS)), "hello")

    @given(prompts, st.lists(st.tuples(st.integers(0, 300), st.integers(1, 99)), min_size=1))
    def test_stretches_in_any_order(self, prompt: str, stretches: list[tuple[int, int]]) -> None:
        text = prompt + "".join(answer(start, start + count) for start, count in stretches)
        self.assertEqual(strip_text(text), strip_text(prompt))

    def test_a_long_answer(self) -> None:
        self.assertEqual(strip_text("hi" + answer(0, 50_000)), "hi")
        self.assertEqual(strip_text("hi\n" + answer(3, 50_000)[1:]), "hi\n")

    def test_a_gap_does_not_stop_it(self) -> None:
        self.assertEqual(strip_text("hi " + answer(0, 3) + answer(5, 9)), "hi ")

    def test_glued_partial_first_word(self) -> None:
        self.assertEqual(strip_text("helloamber0"), "hello")
        self.assertEqual(OURS.decode(strip_ids(OURS.encode("helloamber0"), OURS)), "hello")

    def test_prose_is_kept(self) -> None:
        self.assertEqual(strip_text("a lamb"), "a lamb")
