"""`inference_lab.content.tokens`: text and ids, both ways."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.content.text import (
    ID_BASE,
    MAX_POSITION,
    WORDS,
    answer,
    token,
    token_id,
)
from inference_lab.content.tokens import HuggingFaceTokenizer, PieceTokenizer, Tokenizer

OURS = PieceTokenizer()

words = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", " ", "  ", "x"]),
    st.sampled_from(WORDS),
    st.integers(0, 120) | st.just(MAX_POSITION) | st.just(MAX_POSITION + 1) | st.just("07"),
    st.sampled_from([".", "", ".."]),
)
texts = st.lists(st.text(max_size=12) | words, max_size=8).map("".join)
ids_of_an_answer = st.lists(
    st.builds(token_id, st.integers(0, MAX_POSITION), st.integers(0, 31)), max_size=20
)
any_id = st.integers() | st.integers(0, 1_100_000) | st.integers(0, 255)


class PieceTokenizerTests(SynchronousTestCase):
    @given(texts)
    def test_decoding_gives_the_text_back(self, text: str) -> None:
        ids = OURS.encode(text)
        self.assertEqual(OURS.decode(ids), text)
        self.assertEqual(OURS.count(text), len(ids))

    @given(ids_of_an_answer)
    def test_encoding_gives_the_ids_of_words_back(self, ids: list[int]) -> None:
        self.assertEqual(OURS.encode(OURS.decode(ids)), ids)

    @given(texts, st.integers(0, 40), st.integers(0, 20), st.integers(0, 31))
    def test_prompt_and_answer_join(self, prompt: str, start: int, k: int, r: int) -> None:
        ids = [token_id(i, r) for i in range(start, start + k)]
        joined = OURS.encode(prompt + answer(start, start + k, r))
        self.assertEqual(joined, OURS.encode(prompt) + ids)

    @given(st.text())
    def test_ids_of_a_prompt_stay_below_those_of_answers(self, text: str) -> None:
        self.assertTrue(all(0 <= id < 1_000_000 for id in OURS.encode(text)))

    def test_largest_id_of_a_prompt(self) -> None:
        self.assertEqual(OURS.encode("~~~"), [951_149])
        self.assertEqual(OURS.decode([951_149]), "~~~")

    def test_words_need_their_exact_text(self) -> None:
        first, second = token_id(0), token_id(1)
        space, letters = OURS.encode(" ")[0], OURS.encode("bir")[0]
        self.assertEqual(OURS.encode("amber0."), [first])
        self.assertEqual(OURS.encode(" amber0."), [space, first])
        self.assertEqual(OURS.encode(" birch1."), [second])
        self.assertEqual(OURS.encode("birch1.")[0], letters)
        self.assertEqual(OURS.encode("  birch1."), [space, second])
        self.assertEqual(OURS.encode("helloamber0. birch1.")[-2:], [first, second])
        for text in (
            " birch01.",
            " birch1",
            " Birch1.",
            " birch1 .",
            " birch\N{ARABIC-INDIC DIGIT ONE}.",
            "amber00.",
        ):
            self.assertLess(max(OURS.encode(text)), ID_BASE, text)

    def test_positions_without_an_id_are_other_text(self) -> None:
        self.assertEqual(OURS.encode(token(MAX_POSITION)), [token_id(MAX_POSITION)])
        text = token(MAX_POSITION + 1)
        self.assertLess(max(OURS.encode(text)), ID_BASE)
        self.assertEqual(OURS.decode(OURS.encode(text)), text)

    def test_three_characters_to_a_token(self) -> None:
        text = "The quick brown fox jumps over the lazy dog.\n" * 10
        self.assertEqual(len(OURS.encode(text)), len(text) // 3)

    def test_lone_surrogates_become_question_marks(self) -> None:
        self.assertEqual(OURS.decode(OURS.encode("a\ud800b")), "a?b")
        self.assertEqual(OURS.count("a\ud800b"), 3)

    @given(st.lists(any_id))
    def test_any_ids_decode(self, ids: list[int]) -> None:
        text = OURS.decode(ids)
        text.encode("utf-8")
        self.assertEqual(OURS.decode(ids), text)

    def test_unknown_ids(self) -> None:
        self.assertEqual(OURS.decode([1, 2, 3, 4]), "\x01\x02\x03\x04")
        self.assertEqual(OURS.decode([-1, 951_150, 999_999, 10**20, 0xFF]), "\ufffd" * 5)

    def test_a_megabyte_takes_well_under_a_second(self) -> None:
        for text in ("The quick brown fox 3.5. " * 40_000, answer(0, 85_000), "é a" * 340_000):
            start = time.process_time()
            OURS.encode(text)
            self.assertLess(time.process_time() - start, 3)


class HuggingFaceTokenizerTests(SynchronousTestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def tokenizer(self, vocabulary: int = 300) -> HuggingFaceTokenizer:
        from tokenizers import Tokenizer as Trained
        from tokenizers import decoders, models, pre_tokenizers, trainers

        trained = Trained(models.BPE())
        trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trained.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<s>"],
            show_progress=False,
        )
        trained.train_from_iterator(["the lazy dog, the quick fox"] * 4, trainer)
        path = self.folder / "tokenizer.json"
        trained.save(str(path))
        return HuggingFaceTokenizer(path)

    def test_answers_start_above_the_vocabulary(self) -> None:
        tokenizer: Tokenizer = self.tokenizer()
        self.assertEqual(tokenizer.base % 32, 0)
        self.assertTrue(257 <= tokenizer.base <= 320, tokenizer.base)
        self.assertEqual(
            tokenizer.encode(answer(0, 3, 7)), [tokenizer.base + 32 * i + 7 for i in range(3)]
        )

    def test_prompts_and_answers_join_and_come_back(self) -> None:
        tokenizer = self.tokenizer()
        prompt = "the lazy dög, the"
        ids = tokenizer.encode(prompt)
        self.assertLess(len(ids), len(prompt.encode()))
        self.assertLess(max(ids), tokenizer.base)
        joined = tokenizer.encode(prompt + answer(0, 4))
        self.assertEqual(joined, ids + [token_id(i, 0, tokenizer.base) for i in range(4)])
        self.assertEqual(tokenizer.decode(joined), prompt + answer(0, 4))
        self.assertEqual(tokenizer.count(prompt), len(ids))

    def test_unknown_ids(self) -> None:
        tokenizer = self.tokenizer()
        self.assertEqual(
            tokenizer.decode([-1, tokenizer.base - 1, 10**20]).replace("\ufffd", ""), ""
        )

    def test_a_file_that_is_none(self) -> None:
        path = self.folder / "tokenizer.json"
        path.write_text("{}")
        for file in (path, Path("absent.json")):
            with self.assertRaises(ValueError) as caught:
                HuggingFaceTokenizer(file)
            self.assertIn(str(file), str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))
