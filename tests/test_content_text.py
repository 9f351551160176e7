"""`inference_lab.content.text`: what token *i* says, and reading it back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.content.text import (
    ID_BASE,
    MAX_POSITION,
    WORDS,
    Position,
    Resume,
    answer,
    from_id,
    last_word,
    length,
    rotation,
    tail,
    token,
    token_id,
)

positions = st.integers(0, MAX_POSITION)
rotations = st.integers(0, 31)
seeds = st.none() | st.integers(-(2**70), 2**70)


class WritingTests(SynchronousTestCase):
    def test_first_tokens(self) -> None:
        self.assertEqual(answer(0, 3), "amber0. birch1. cedar2.")

    def test_words_cannot_be_mistaken(self) -> None:
        self.assertEqual(len(set(WORDS)), 32)
        for word in WORDS:
            self.assertRegex(word, r"\A[a-z]+\Z")
            for other in WORDS:
                if other != word:
                    self.assertFalse(other.endswith(word), (other, word))
                    self.assertFalse(other.startswith(word), (other, word))

    def test_words_come_round_after_32(self) -> None:
        self.assertEqual(token(31), " flint31.")
        self.assertEqual(token(32), " amber32.")

    def test_seed_turns_the_words(self) -> None:
        self.assertEqual(token(0, rotation(2)), "cedar0.")
        self.assertEqual(rotation(None), 0)
        self.assertEqual(rotation(33), 1)
        self.assertEqual(rotation(-1), 31)

    @given(positions, rotations)
    def test_text_is_the_formula(self, i: int, r: int) -> None:
        space = " " if i else ""
        self.assertEqual(token(i, r), f"{space}{WORDS[(i + r) % 32]}{i}.")

    @given(st.integers(0, 3000), rotations)
    def test_length_is_that_of_the_text(self, count: int, r: int) -> None:
        self.assertEqual(length(count, r), len(answer(0, count, r)))

    @given(positions, rotations)
    def test_length_grows_by_a_token(self, i: int, r: int) -> None:
        self.assertEqual(length(i + 1, r) - length(i, r), len(token(i, r)))

    def test_ids(self) -> None:
        self.assertEqual(token_id(0), 1_000_000)
        self.assertEqual(token_id(2, 5), 1_000_069)
        self.assertEqual(token_id(2, 5, base=128), 197)
        self.assertEqual(from_id(1_000_069), Position(2, 5))

    @given(positions, rotations, st.integers(0, 10**6))
    def test_ids_come_back(self, i: int, r: int, base: int) -> None:
        self.assertEqual(from_id(token_id(i, r, base), base), Position(i, r))

    def test_other_ids_name_nothing(self) -> None:
        last = token_id(MAX_POSITION, 31)
        self.assertEqual(from_id(last), Position(MAX_POSITION, 31))
        for id in (-1, 0, ID_BASE - 1, last + 1, 10**30):
            self.assertIsNone(from_id(id))

    def test_no_id_outside_the_range(self) -> None:
        for i in (-1, MAX_POSITION + 1):
            with self.assertRaises(ValueError):
                token_id(i)


class ReadingTests(SynchronousTestCase):
    @given(positions, seeds, st.text(max_size=30))
    def test_one_word_names_its_position(self, i: int, seed: int | None, before: str) -> None:
        r = rotation(seed)
        text = before + token(i, r)
        self.assertEqual(tail(text), Resume(i + 1, r, ""))
        self.assertEqual(last_word(text, len(text)), (Position(i, r), len(before)))

    @given(positions, rotations, st.data(), st.text(max_size=30))
    def test_partial_word(self, i: int, r: int, data: st.DataObject, before: str) -> None:
        due = token(i + 1, r)
        cut = data.draw(st.integers(0, len(due) - 1))
        found = tail(before + token(i, r) + due[:cut], r)
        self.assertEqual(found, Resume(i + 1, r, due[:cut]))
        assert found is not None
        self.assertEqual(found.partial + found.remainder, due)

    def test_partial_position(self) -> None:
        text = answer(0, 12) + " nectar1"
        self.assertEqual(tail(answer(0, 13) + " nectar1"), Resume(13, 0, " nectar1"))
        self.assertIsNone(tail(text))

    def test_glued_to_a_prompt(self) -> None:
        self.assertEqual(tail("helloamber0. birch1. ced"), Resume(2, 0, " ced"))

    def test_prose_is_not_a_tail(self) -> None:
        for text in (
            "",
            ".",
            "a lamb",
            "the amber",
            "amber 0.",
            "amber0. birch1. and",
            "amber0. birch1.  ",
            "amber0. birch1.\n",
            "amber00.",
            "amber01.",
            "camber1.",
            "see birch1.2.",
            "amber٣.",
        ):
            self.assertIsNone(tail(text), text)

    def test_beginning_of_an_answer(self) -> None:
        self.assertEqual(tail("so amber0"), Resume(0, 0, "amber0"))
        self.assertEqual(tail("so birch0"), Resume(0, 1, "birch0"))
        self.assertIsNone(tail("so birch0", 0))
        self.assertEqual(tail("amb", 0, opening=True), Resume(0, 0, "amb"))
        self.assertIsNone(tail("amb", 1, opening=True))
        self.assertIsNone(tail("lamb", 0, opening=True))
        self.assertIsNone(tail("", 0, opening=True))

    def test_trimmed_word_at_the_start_of_a_turn(self) -> None:
        self.assertEqual(tail("birch1."), Resume(2, 0, ""))
        self.assertEqual(tail("assistant:\nbirch1."), Resume(2, 0, ""))

    def test_wrong_rotation_is_not_ours(self) -> None:
        self.assertIsNone(tail(answer(0, 4, 3), 4))
        self.assertEqual(tail(answer(0, 4, 3), 3), Resume(4, 3, ""))

    @given(st.text(), rotations)
    def test_never_raises(self, text: str, r: int) -> None:
        tail(text, r, opening=True)

    def test_endless_position(self) -> None:
        self.assertIsNone(tail("birch" + "1" * 10_000 + "."))
