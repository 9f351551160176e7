"""`inference_lab.content.stops`: where a stop string cuts an answer."""

from __future__ import annotations

import time

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.content.stops import Cut, cut_in, first_cut
from inference_lab.content.text import answer, token


def token_by_token(
    start: int, count: int, rotation: int, stops: list[str], partial: str, min_tokens: int
) -> Cut | None:
    """The same the slow way, as a server does that knows no future."""
    text, unchecked = "", 0
    ends: list[int] = []
    for n in range(1, count + 1):
        text += token(start + n - 1, rotation)[len(partial) if n == 1 else 0 :]
        ends.append(len(text))
        if n <= min_tokens:
            unchecked = len(text)
            continue
        for stop in stops:
            at = text.find(stop, max(0, unchecked - len(stop) + 1))
            if at >= 0:
                return Cut(n, at, sum(end <= at for end in ends), stop)
        unchecked = len(text)
    return None


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, int, list[str], str, int]:
    start = draw(st.integers(0, 40) | st.integers(90, 1100))
    count = draw(st.integers(1, 120))
    rotation = draw(st.integers(0, 31))
    text = answer(start, start + count + 3, rotation)
    stops = []
    for _ in range(draw(st.integers(1, 3))):
        low = draw(st.integers(0, len(text) - 1))
        stops.append(text[low : low + draw(st.integers(1, 25))])
    stops += draw(st.lists(st.text("ab 019.", min_size=1, max_size=4), max_size=2))
    first = token(start, rotation)
    partial = first[: draw(st.integers(0, len(first) - 1))]
    return start, count, rotation, stops, partial, draw(st.integers(0, 5))


class CutTests(SynchronousTestCase):
    @given(cases())
    @example((0, 40, 0, ["0", " ", "."], "", 0))
    @example((9, 5, 0, ["9. lotus10. m"], " kelp", 0))
    def test_as_if_found_token_by_token(
        self, case: tuple[int, int, int, list[str], str, int]
    ) -> None:
        start, count, rotation, stops, partial, min_tokens = case
        found = first_cut(start, count, rotation, stops, partial=partial, min_tokens=min_tokens)
        self.assertEqual(found, token_by_token(*case))
        pieces = [token(i, rotation) for i in range(start, start + count)]
        pieces[0] = pieces[0][len(partial) :]
        self.assertEqual(found, cut_in(pieces, stops, min_tokens=min_tokens))

    def test_cut(self) -> None:
        # amber0. birch1. cedar2.
        self.assertEqual(first_cut(0, 9, 0, [" cedar"]), Cut(3, 15, 2, " cedar"))
        self.assertEqual(first_cut(0, 9, 0, ["ch1. ce"]), Cut(3, 11, 1, "ch1. ce"))
        self.assertEqual(first_cut(0, 9, 0, ["amber"]), Cut(1, 0, 0, "amber"))
        self.assertIsNone(first_cut(0, 2, 0, [" cedar"]))
        self.assertIsNone(first_cut(0, 9, 0, []))

    def test_of_two_at_one_token_the_first_asked_for_wins(self) -> None:
        self.assertEqual(first_cut(0, 9, 0, ["1", "ch"]), Cut(2, 13, 1, "1"))
        self.assertEqual(first_cut(0, 9, 0, ["ch", "1"]), Cut(2, 11, 1, "ch"))
        self.assertEqual(first_cut(0, 9, 0, ["cedar", "ch"]), Cut(2, 11, 1, "ch"))

    def test_what_the_prompt_carries_cannot_match(self) -> None:
        self.assertIsNone(first_cut(3, 5, 0, ["cedar2. delta"]))
        self.assertIsNone(first_cut(3, 5, 0, ["delta"], partial=" d"))
        self.assertEqual(first_cut(3, 5, 0, ["elta"], partial=" d"), Cut(1, 0, 0, "elta"))

    def test_min_tokens(self) -> None:
        self.assertEqual(first_cut(0, 9, 0, ["."], min_tokens=2), Cut(3, 22, 2, "."))
        self.assertEqual(first_cut(0, 9, 0, ["1. "], min_tokens=2), Cut(3, 13, 1, "1. "))
        self.assertIsNone(first_cut(0, 9, 0, ["birch"], min_tokens=2))

    def test_first_token_that_has_the_number(self) -> None:
        found = first_cut(0, 5000, 0, ["1000."])
        assert found is not None
        self.assertEqual((found.tokens, found.stop), (1001, "1000."))
        self.assertTrue(answer(0, 1001)[: found.characters].endswith(" iris"))

    def test_empty(self) -> None:
        with self.assertRaises(ValueError):
            first_cut(0, 5, 0, [""])
        with self.assertRaises(ValueError):
            cut_in(["a"], [""])

    def test_pieces(self) -> None:
        self.assertEqual(cut_in(["a", " b", "", " c"], ["b c"]), Cut(4, 2, 1, "b c"))
        self.assertEqual(cut_in(["a", " b", "", " c"], ["b"], min_tokens=1), Cut(2, 2, 1, "b"))
        self.assertIsNone(cut_in(["a", " b"], ["b"], min_tokens=9))
        self.assertIsNone(cut_in([], ["b"], min_tokens=1))

    def test_what_cannot_occur_costs_nothing(self) -> None:
        count = 2**26
        never = ["\n", "</s>", "User:", "aa", "1 ", "..", "a.", "birch2.", "amber01.", "Amber"]
        never += ["\N{ARABIC-INDIC DIGIT THREE}", "x" * 100_000, "birch" + "9" * 5000]
        start = time.process_time()
        self.assertIsNone(first_cut(0, count, 0, never))
        found = first_cut(5, count, 0, [answer(10**6, 10**6 + 50)])
        assert found is not None
        self.assertEqual(found.tokens, 10**6 + 50 - 5)
        self.assertLess(time.process_time() - start, 0.5)

    def test_a_million_tokens_can_be_searched(self) -> None:
        start = time.process_time()
        self.assertIsNone(first_cut(0, 10**6, 0, ["1234567"]))
        self.assertLess(time.process_time() - start, 5)
