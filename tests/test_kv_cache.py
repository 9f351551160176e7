"""Blocks: how many a sequence takes, who holds them, and which prefixes stay findable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.configuration.catalog import catalog_model, model_names
from inference_lab.configuration.memory import auxiliary_blocks
from inference_lab.engine.kv_cache import BlockTable, Holding, KvCache

LLAMA = catalog_model("llama-3.1-8b-instruct")


def cache(total: int) -> KvCache:
    """A cache of ``total`` blocks of 4 positions, without windows or states."""
    return KvCache(BlockTable(LLAMA, 4), total)


def hold(kv: KvCache, tokens: int, *hashes: int) -> Holding:
    """Admit a prompt of ``tokens`` whole."""
    holding = Holding(hashes)
    assert kv.admit(holding, kv.lookup(holding, tokens), tokens, tokens)
    return holding


class BlockTableTests(SynchronousTestCase):
    @given(
        st.sampled_from(sorted(model_names())),
        st.sampled_from([16, 64]),
        st.one_of(st.integers(0, 300), st.integers(0, 5000)),
    )
    def test_matches_the_arithmetic(self, name: str, block_size: int, context: int) -> None:
        model = catalog_model(name)
        expected = -(-context // block_size) + auxiliary_blocks(model, block_size, context)
        self.assertEqual(BlockTable(model, block_size).blocks(context), expected)

    def test_growth_names_every_context_at_which_the_rest_grows(self) -> None:
        model = catalog_model("gemma-4-31b-it")
        table = BlockTable(model, 64)
        grows = {
            t: auxiliary_blocks(model, 64, t) - auxiliary_blocks(model, 64, t - 1)
            for t in range(1, 1200)
        }
        expected = [(t, by) for t, by in grows.items() if by]
        self.assertEqual(list(zip(table.growth, table.increments, strict=True)), expected)


class KvCacheTests(SynchronousTestCase):
    def test_blocks_are_counted(self) -> None:
        kv = cache(10)
        holding = hold(kv, 9)
        self.assertEqual((holding.count, kv.free), (3, 7))
        kv.grow(holding, 12)
        self.assertEqual((holding.count, kv.free), (3, 7))
        kv.grow(holding, 13)
        self.assertEqual((holding.count, kv.free), (4, 6))
        kv.release(holding)
        self.assertEqual((holding.count, kv.free), (0, 10))

    def test_admission_needs_room_for_the_whole_prompt(self) -> None:
        kv, holding = cache(3), Holding()
        self.assertFalse(kv.admit(holding, [], 4, whole=13))
        self.assertEqual((holding.count, kv.free), (0, 3))
        self.assertTrue(kv.admit(holding, [], 4, whole=12))
        self.assertEqual((holding.count, kv.free), (1, 2))

    def test_shared_blocks_cost_nothing_while_held(self) -> None:
        kv = cache(10)
        hold(kv, 12, 1, 2, 3)
        hold(kv, 12, 1, 2, 4)
        self.assertEqual(kv.free, 10 - 3 - 1)

    def test_last_token_is_always_computed(self) -> None:
        kv = cache(10)
        hold(kv, 8, 1, 2)
        self.assertEqual(kv.cached_tokens((1, 2), 8), 4)
        self.assertEqual(kv.cached_tokens((1, 2), 9), 8)

    def test_full_blocks_can_be_found_from_allocation_on(self) -> None:
        kv, holding = cache(10), Holding((1, 2, 3))
        kv.admit(holding, [], 6, whole=12)
        self.assertEqual(kv.cached_tokens((1, 2, 3), 13), 4)
        kv.grow(holding, 12)
        self.assertEqual(kv.cached_tokens((1, 2, 3), 13), 12)

    def test_a_hit_ends_at_the_first_block_that_is_missing(self) -> None:
        kv = cache(10)
        hold(kv, 8, 1, 2)
        self.assertEqual(kv.cached_tokens((1, 9, 2), 13), 4)

    def test_freed_prefixes_are_revived_for_one_block_each(self) -> None:
        kv = cache(10)
        kv.release(hold(kv, 8, 1, 2))
        self.assertEqual(kv.free, 10)
        hold(kv, 12, 1, 2, 3)
        self.assertEqual(kv.free, 7)

    def test_least_recently_used_is_recycled_first_and_from_its_end(self) -> None:
        kv = cache(4)
        old, young = hold(kv, 8, 1, 2), hold(kv, 8, 3, 4)
        kv.release(old)
        kv.release(young)
        hold(kv, 4)
        self.assertEqual(kv.cached_tokens((1, 2), 9), 4)
        self.assertEqual(kv.cached_tokens((3, 4), 9), 8)
        hold(kv, 8)
        self.assertEqual(kv.cached_tokens((1, 2), 9), 0)
        self.assertEqual(kv.cached_tokens((3, 4), 9), 4)

    def test_recomputed_block_takes_over_the_name_of_a_free_copy(self) -> None:
        kv = cache(6)
        kv.release(hold(kv, 4, 1))
        again = hold(kv, 4, 1)  # a prompt of one block cannot hit it
        hold(kv, 20)  # recycles all that is free
        self.assertEqual(kv.free, 0)
        self.assertEqual(kv.cached_tokens((1,), 5), 4)
        kv.release(again)
        self.assertEqual(kv.cached_tokens((1,), 5), 4)

    @given(st.data())
    def test_no_block_is_lost_or_doubled(self, data: st.DataObject) -> None:
        kv = cache(12)
        held: list[Holding] = []
        for _ in range(data.draw(st.integers(1, 25))):
            releases = data.draw(st.booleans())
            if held and releases:
                kv.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
                continue
            tokens = data.draw(st.integers(1, 30))
            holding = Holding(data.draw(st.sampled_from([(), (1, 2, 3), (1, 2, 4), (5, 6, 7)])))
            if kv.admit(holding, kv.lookup(holding, tokens), tokens, tokens):
                held.append(holding)
            blocks = {id(block) for each in held for block in each.blocks}
            nameless = sum(each.count - len(each.blocks) for each in held)
            self.assertEqual(kv.free + len(blocks) + nameless, kv.total)
        for holding in held:
            kv.release(holding)
        kv.take(kv.total)
        self.assertEqual(kv.free, 0)
        self.assertEqual(kv.cached_tokens((1, 2, 3), 99), 0)
