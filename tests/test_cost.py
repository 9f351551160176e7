"""The price of a step, against figures from an independent implementation."""

from __future__ import annotations

import json
from math import isclose
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.configuration.catalog import (
    catalog_hardware,
    catalog_model,
    hardware_names,
    model_names,
)
from inference_lab.configuration.schema import (
    AttentionLayers,
    Fabric,
    LinearLayers,
    Link,
    MlaLayers,
    Model,
    TimeCorrection,
    WeightStream,
)
from inference_lab.engine.attention import Chunk, attention_profile
from inference_lab.engine.collectives import all_reduce, all_to_all, collective_seconds
from inference_lab.engine.cost import CostModel, StepCost

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "step-cost-vectors.json").read_text()
)


def chunks(rows: list[list[Any]]) -> list[Chunk]:
    """Rows of (resident, new, prefill, count)."""
    return [Chunk(*row) for row in rows]


class VectorTests(SynchronousTestCase):
    """Every figure of every vector, to 1e-9."""

    def same(self, ours: float, theirs: float, what: str) -> None:
        self.assertTrue(isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-18), (what, ours, theirs))

    def price(self, vector: dict[str, Any]) -> StepCost:
        cost = CostModel(
            catalog_model(vector["model"]),
            catalog_hardware(vector["hardware"]),
            tp=vector["tp"],
            ep=vector["ep"],
            dp_attention=vector["dp_attention"],
        )
        if "ranks" in vector:
            return cost.group_step([chunks(rows) for rows in vector["ranks"]])
        return cost.step(chunks(vector["batch"]))

    def test_vectors(self) -> None:
        self.assertEqual(len(VECTORS), 35)
        for vector in VECTORS:
            name = f"{vector['model']} {vector['label']}"
            cost = self.price(vector)
            self.assertEqual(cost.tokens, vector["tokens"], name)
            self.same(cost.step_seconds, vector["time_s"], name)
            self.same(cost.collective_seconds, vector["collectives_s"], name)
            self.same(cost.skew_seconds, vector.get("skew_s", 0.0), name)
            self.assertEqual(set(cost.flops), set(vector["streams"]), name)
            for precision, stream in vector["streams"].items():
                self.same(cost.flops[precision], stream["flops"], name)
                self.same(cost.bytes[precision], stream["bytes"], name)
                self.same(cost.compute_seconds[precision], stream["compute_s"], name)
                self.same(cost.memory_seconds[precision], stream["memory_s"], name)


class CostModelTests(SynchronousTestCase):
    def llama(self, **options: Any) -> CostModel:
        return CostModel(
            catalog_model("llama-3.1-8b-instruct"), catalog_hardware("b200"), **options
        )

    def test_time_correction(self) -> None:
        plain = self.llama().step([Chunk(100)]).step_seconds
        correction = TimeCorrection(alpha=1.5, beta=0.001)
        corrected = self.llama(time_correction=correction).step([Chunk(100)])
        self.assertAlmostEqual(corrected.step_seconds, 1.5 * plain + 0.001, places=15)
        self.assertEqual(corrected.roofline_seconds, plain)

    def test_mean_context_rounds_half_a_chunk_up(self) -> None:
        self.assertEqual(Chunk(10).context, 11)
        self.assertEqual(Chunk(10, 4, True).context, 12)
        self.assertEqual(Chunk(10, 5, True).context, 13)

    def test_missing_rate_is_named(self) -> None:
        error = self.assertRaises(
            ValueError, CostModel, catalog_model("gpt-oss-120b"), catalog_hardware("h100"), tp=4
        )
        self.assertIn("fp4", str(error))

    def test_utilisation_is_at_most_one(self) -> None:
        cost = self.llama().step([Chunk(0, 2048, True)])
        self.assertEqual(cost.flops_utilisation, 1.0)
        self.assertTrue(0 < cost.bandwidth_utilisation < 0.2)

    def test_cascade_reads_the_common_prefix_once(self) -> None:
        cost = self.llama()
        batch = [Chunk(1023, count=4)]
        apart, together = cost.step(batch), cost.step(batch, common_prefix=512)
        saved = 3 * 512 * 131072
        self.assertEqual(apart.bytes["bf16"] - together.bytes["bf16"], saved)
        self.assertEqual(apart.flops, together.flops)

    def test_every_model_prices_on_every_gpu_with_its_rates(self) -> None:
        for hardware in map(catalog_hardware, hardware_names()):
            for name in model_names():
                try:
                    cost = CostModel(catalog_model(name), hardware, tp=4)
                except ValueError:
                    self.assertEqual(hardware.flops_fp4, None, name)
                    continue
                self.assertTrue(cost.step([Chunk(500, count=3)]).step_seconds > 0, name)

    @given(
        st.sampled_from(sorted(model_names())),
        st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 700), st.booleans()), max_size=5),
    )
    def test_equal_requests_may_be_counted_instead_of_listed(
        self, name: str, rows: list[tuple[int, int, bool]]
    ) -> None:
        cost = CostModel(catalog_model(name), catalog_hardware("b200"), tp=2)
        listed = [Chunk(*row) for row in rows for _ in range(3)] or [Chunk(1)]
        counted = [Chunk(*row, count=3) for row in rows] or [Chunk(1, count=1)]
        self.assertEqual(cost.step(listed), cost.step(counted))


class AttentionProfileTests(SynchronousTestCase):
    def test_fractional_bytes_are_rounded_per_request(self) -> None:
        model = Model(
            name="odd",
            hidden_dim=64,
            max_seq_len=4096,
            weights=(WeightStream(precision="bf16", active_params=1, resident_params=1),),
            layers=(
                MlaLayers(count=1, latent_dim=3, kv_precision="fp4"),
                LinearLayers(count=2, state_bytes=10),
            ),
        )
        profile = attention_profile(model)
        self.assertFalse(profile.additive)
        self.assertEqual(profile.state_bytes, 20)
        self.assertEqual([profile.kv_read_bytes(t) for t in (1, 2, 3)], [1, 3, 4])

    def test_window_caps_what_is_read_and_computed(self) -> None:
        layer = AttentionLayers(count=2, heads=4, head_dim=8, kv_heads=1, window=100)
        model = Model(
            name="window",
            hidden_dim=64,
            max_seq_len=4096,
            weights=(WeightStream(precision="bf16", active_params=1, resident_params=1),),
            layers=(layer,),
        )
        profile = attention_profile(model)
        self.assertEqual(profile.kv_read_bytes(50), 2 * 50 * 2 * 8 * 2)
        self.assertEqual(profile.kv_read_bytes(5000), 2 * 100 * 2 * 8 * 2)
        self.assertEqual(profile.flops(5000, 1, False), {"bf16": 2 * 4 * 4 * 8 * 100})


class CollectiveTests(SynchronousTestCase):
    fabric = Fabric(
        gpus_per_node=8,
        scale_up=Link(bandwidth=1e11, latency=1e-6),
        scale_out=Link(bandwidth=1e10, latency=1e-5),
    )

    def test_ring_all_reduce(self) -> None:
        self.assertAlmostEqual(all_reduce(self.fabric, 4, 1e6), 1e-6 + 1.5e-5, places=12)

    def test_wider_than_a_node(self) -> None:
        inside = 2 * (1e-6 + 7 / 8 * 1e-5)
        between = 1e-5 + 1.0 * (1e6 / 8) / 1e10
        self.assertAlmostEqual(all_reduce(self.fabric, 16, 1e6), inside + between, places=12)
        self.assertAlmostEqual(
            all_to_all(self.fabric, 16, 1e6), 1e-5 + 8 / 16 * 1e6 / 1e10, places=12
        )

    def test_no_scale_out_link_is_an_error(self) -> None:
        lonely = msgspec.structs.replace(self.fabric, scale_out=None)
        self.assertRaises(ValueError, all_reduce, lonely, 16, 1.0)

    def test_expert_parallel_only_talks_with_data_parallel_attention(self) -> None:
        model = catalog_model("deepseek-v4-pro")
        fabric = catalog_hardware("b200").fabric

        def seconds(ep: int, dp_attention: bool) -> float:
            return collective_seconds(model, fabric, 64, tp=8, ep=ep, dp_attention=dp_attention)

        self.assertEqual(seconds(1, False), seconds(8, False))
        self.assertNotEqual(seconds(1, True), seconds(8, True))
        self.assertEqual(collective_seconds(model, None, 64, tp=8, ep=1, dp_attention=False), 0)
