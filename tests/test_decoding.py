"""A batch that is never looked through knows what looking through it would tell."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.configuration.catalog import catalog_model
from inference_lab.configuration.schema import Model
from inference_lab.engine.attention import attention_profile
from inference_lab.engine.decoding import DecodeBatch
from inference_lab.engine.kv_cache import BlockTable, Holding
from inference_lab.engine.requests import Handle
from tests.engines import ODD

MODELS: dict[str, Model] = {
    name: catalog_model(name)
    for name in ("llama-3.1-8b-instruct", "gpt-oss-120b", "deepseek-v4-flash", "gemma-4-31b-it")
} | {"odd": ODD}
TABLES = {name: BlockTable(model, 16) for name, model in MODELS.items()}


def request(prompt: int, output: int) -> Handle:
    """A request whose prompt is computed."""
    handle = Handle(
        id="",
        prompt_tokens=prompt,
        max_tokens=output,
        target=output,
        priority=0,
        arrival=0.0,
        kv=Holding(),
    )
    handle.computed, handle.produced = prompt, 1
    return handle


class DecodeBatchTests(SynchronousTestCase):
    @given(st.sampled_from(sorted(MODELS)), st.data())
    def test_sums_equal_the_sum_over_the_members(self, name: str, data: st.DataObject) -> None:
        profile, table = attention_profile(MODELS[name]), TABLES[name]
        members: dict[Handle, None] = {}
        batch = DecodeBatch(profile.terms, table, members)
        resident: dict[Handle, int] = {}
        for _ in range(data.draw(st.integers(1, 12))):
            for _ in range(data.draw(st.integers(0, 2))):
                near = data.draw(st.sampled_from([1, 15, 120, 190, 1020, 2040]))
                handle = request(near + data.draw(st.integers(0, 12)), data.draw(st.integers(2, 9)))
                batch.join(handle)
                resident[handle] = handle.computed
            leaves = data.draw(st.booleans())
            if resident and leaves:
                handle = data.draw(st.sampled_from(list(resident)))
                batch.leave(handle)
                self.assertEqual(handle.computed, resident.pop(handle))
            contexts = [computed + 1 for computed in resident.values()]
            self.assertEqual(
                batch.totals, [sum(map(term.positions, contexts)) for term in profile.terms]
            )
            self.assertEqual(
                batch.blocks_needed(), sum(table.blocks(t) - table.blocks(t - 1) for t in contexts)
            )
            self.assertEqual(set(members), set(resident))
            for handle, computed in resident.items():
                self.assertEqual(handle.resident, computed)
                self.assertEqual(handle.produced, computed - handle.prompt_tokens + 1)
            finishing = batch.finishing()
            self.assertEqual(
                set(finishing), {h for h, c in resident.items() if c + 1 == h.last_context}
            )
            for handle in finishing:
                batch.leave(handle)
                del resident[handle]
            batch.advance()
            resident = {handle: computed + 1 for handle, computed in resident.items()}

    def test_held_blocks_count_what_a_step_in_flight_reserved(self) -> None:
        batch = DecodeBatch((), TABLES["llama-3.1-8b-instruct"], {})
        handle = request(16, 5)
        batch.join(handle)
        self.assertEqual(batch.holding(handle), 1)
        batch.reserved = True
        self.assertEqual(batch.holding(handle), 2)
        batch.advance()
        self.assertEqual(batch.holding(handle), 2)
        batch.leave(handle)
        self.assertEqual(handle.kv.count, 2)
