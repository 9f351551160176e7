"""`inference_lab.content.logprobs`: valid, and always the same."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.content.logprobs import Logprob, alternatives, logprob, piece_alternatives
from inference_lab.content.text import MAX_POSITION, WORDS, token

positions = st.integers(0, MAX_POSITION)
rotations = st.integers(0, 31)


class LogprobTests(SynchronousTestCase):
    def valid(self, found: list[Logprob]) -> None:
        values = [one.logprob for one in found]
        self.assertEqual(values, sorted(values, reverse=True))
        self.assertTrue(all(value < 0 for value in values))
        self.assertLess(sum(map(math.exp, values)), 1 + 1e-5)
        self.assertEqual(len({one.text for one in found}), len(found))

    @given(positions, rotations, st.integers(0, 20))
    def test_alternatives(self, i: int, r: int, n: int) -> None:
        found = alternatives(i, r, n)
        self.assertEqual(len(found), n)
        self.valid(found)
        for one in found:
            self.assertEqual(one.text, token(i, one.rotation))
            self.assertEqual(bytes(one.bytes).decode(), one.text)
        if found:
            self.assertEqual(found[0], Logprob(token(i, r), logprob(i, r), r))
        self.assertEqual(alternatives(i, r, n + 1)[:n], found)

    @given(st.integers(0, 1000), st.text(max_size=5) | st.sampled_from(WORDS), st.integers(1, 20))
    def test_pieces(self, index: int, text: str, n: int) -> None:
        found = piece_alternatives(index, text, n)
        self.assertEqual((len(found), found[0].text), (n, text))
        self.valid(found)

    def test_no_more_than_there_are_words(self) -> None:
        self.assertEqual(len(alternatives(3, 5, 99)), 32)

    def test_positions_differ(self) -> None:
        values = [logprob(i) for i in range(1000)]
        self.assertLess(900, len(set(values)))
        self.assertTrue(all(-0.7 < value < 0 for value in values))
        mean = sum(map(math.exp, values)) / 1000
        self.assertTrue(0.7 < mean < 0.8, mean)

    def test_values_stay_the_same_over_versions(self) -> None:
        found = [logprob(0), logprob(1), logprob(0, 1)]
        self.assertEqual(found, [-0.181334, -0.124414, -0.083709])
