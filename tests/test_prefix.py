"""Block hashes: equal exactly where prompts are equal from their start."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.engine.prefix import block_hashes

TOKENS = st.lists(st.integers(0, 3), max_size=40)


class BlockHashesTests(SynchronousTestCase):
    def test_one_per_full_block(self) -> None:
        self.assertEqual([len(block_hashes(range(n), 4)) for n in (0, 3, 4, 7, 8)], [0, 0, 1, 1, 2])

    def test_same_block_elsewhere_has_another_name(self) -> None:
        first, second = block_hashes([7, 7, 7, 7], 2)
        self.assertNotEqual(first, second)

    def test_any_sequence_will_do(self) -> None:
        self.assertEqual(block_hashes([1, 2], 2), block_hashes((1, 2), 2))

    def test_no_block_without_tokens(self) -> None:
        self.assertRaises(ValueError, block_hashes, [1], 0)

    @given(TOKENS, TOKENS, st.integers(1, 5))
    def test_equal_as_far_as_the_prompts_are(
        self, one: list[int], other: list[int], block_size: int
    ) -> None:
        pairs = zip(block_hashes(one, block_size), block_hashes(other, block_size), strict=False)
        for index, (mine, theirs) in enumerate(pairs, 1):
            end = index * block_size
            self.assertEqual(mine == theirs, one[:end] == other[:end])
