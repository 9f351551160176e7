"""Relations between values: what is refused, and what would be right."""

from __future__ import annotations

from typing import Any

from tests.model_files import FABRIC, MODEL, SCHEDULER, ModelFiles, Table, by_name, inline

ATTENTION: Table = MODEL["layers"][0]
MLA: Table = {"kind": "mla", "count": 4, "latent_dim": 512}
INDEXER: Table = {"heads": 4, "head_dim": 64}


def weights(**changes: object) -> Table:
    """A model's ``weights`` key: one bf16 stream of 1e9 parameters, with changes."""
    stream = {"precision": "bf16", "active_params": 10**9, "resident_params": 10**9, **changes}
    return {"weights": [stream]}


class Groups(ModelFiles):
    """``tp``, ``ep`` and ``dp_attention`` against each other and the fabric."""

    def test_ep_must_divide_tp(self) -> None:
        self.assertEqual(
            self.refusal(inline(spec={"fabric": FABRIC}, tp=2, ep=3)),
            "x.toml: [hardware.own] ep: expected a divisor of tp = 2 (1, 2), got 3",
        )
        self.assertEqual(
            self.refusal(by_name(hardware={"b200": {"ep": 2}})),
            "x.toml: [hardware.b200] ep: expected a divisor of tp = 1 (1), got 2",
        )
        self.assertEqual(
            self.only(by_name(hardware={"b200": {"tp": 8, "ep": 4}})).expert_parallel, 4
        )

    def test_ep_beside_an_absurd_tp_is_refused_at_once(self) -> None:
        line = self.refusal(by_name(hardware={"b200": {"tp": 2**62, "ep": 3}}))
        self.assertIn(f"[hardware.b200] ep: expected a divisor of tp = {2**62}, got 3", line)

    def test_dp_attention_needs_a_group(self) -> None:
        self.assertEqual(
            self.refusal(by_name(hardware={"b200": {"dp_attention": True}})),
            "x.toml: [hardware.b200] dp_attention: expected false, or tp >= 2: "
            "one GPU has no ranks",
        )

    def test_a_group_needs_a_fabric(self) -> None:
        self.assertEqual(
            self.refusal(inline(tp=2)),
            "x.toml: [hardware.own] tp: expected at most 1, got 2: "
            "Small has no [fabric] to join GPUs",
        )
        self.assertEqual(self.only(inline(spec={"fabric": FABRIC}, tp=2)).tensor_parallel, 2)

    def test_a_group_wider_than_a_node_needs_scale_out(self) -> None:
        self.assertEqual(
            self.refusal(inline(spec={"fabric": FABRIC}, tp=4)),
            "x.toml: [hardware.own] tp: expected at most 2, got 4: "
            "Small has 2 GPUs to a node and no scale_out link between nodes",
        )
        wide = {**FABRIC, "scale_out": {"bandwidth": 1e10}}
        self.assertEqual(self.only(inline(spec={"fabric": wide}, tp=4)).tensor_parallel, 4)


class Precisions(ModelFiles):
    """The GPU must have a FLOP rate for whatever the model computes in."""

    def test_weights(self) -> None:
        self.assertEqual(
            self.refusal(by_name(model="gpt-oss-20b"), "h100"),
            "x.toml: [hardware.h100] spec: H100 has no FLOP rate for fp4, in which gpt-oss-20b "
            "computes its weights; it has fp8, bf16, fp16, fp32",
        )

    def test_attention(self) -> None:
        self.assertEqual(
            self.refusal(inline({"attention_precision": "fp8"})),
            "x.toml: [hardware.own] spec: Small has no FLOP rate for fp8, in which Tiny "
            "computes its attention; it has bf16, fp16, fp32",
        )

    def test_indexer(self) -> None:
        history = {"compress_ratio": 4, "indexer": {**INDEXER, "precision": "fp4"}}
        line = self.refusal(inline({"layers": [ATTENTION, {**MLA, "history": history}]}))
        self.assertIn("[hardware.own] spec: Small has no FLOP rate for fp4, in which Tiny ", line)
        self.assertIn("computes its indexer; it has bf16, fp16, fp32", line)

    def test_an_indexer_without_a_precision_of_its_own_uses_that_of_attention(self) -> None:
        history = {"compress_ratio": 4, "indexer": INDEXER}
        self.only(inline({"layers": [ATTENTION, {**MLA, "history": history}]}))

    def test_hardware_without_any_rate(self) -> None:
        file = inline()
        del file["hardware"]["own"]["spec"]["flops_bf16"]
        self.assertIn("no FLOP rate for bf16", self.refusal(file))
        self.assertIn("it has none at all", self.refusal(file))

    def test_sixteen_bit_formats_stand_in_for_each_other_and_for_half_of_fp32(self) -> None:
        for given in ("bf16", "fp16"):
            for used in ("bf16", "fp16", "fp32"):
                with self.subTest(given=given, used=used):
                    file = inline(weights(precision=used))
                    spec = file["hardware"]["own"]["spec"]
                    del spec["flops_bf16"]
                    spec[f"flops_{given}"] = 1e14
                    rate = self.only(file).hardware.flop_rate(used)
                    self.assertEqual(rate, 5e13 if used == "fp32" else 1e14)

    def test_fp16_has_its_own_rate_where_one_is_given(self) -> None:
        hardware = self.only(inline(spec={"flops_fp16": 2e14})).hardware
        self.assertEqual(hardware.flop_rate("bf16"), 1e14)
        self.assertEqual(hardware.flop_rate("fp16"), 2e14)
        self.assertEqual(hardware.flop_rate("fp32"), 1e14)


class Memory(ModelFiles):
    """Weights and KV must fit into the group."""

    def kv(self, capacity: int, **entry: Any) -> Table:
        """A deployment of 2 GB of weights on 10 GB GPUs with explicit KV."""
        file = inline(spec={"fabric": {**FABRIC, "scale_out": {"bandwidth": 1e10}}}, **entry)
        file["scheduler"]["kv_cache_capacity"] = capacity
        return file

    def test_weights_beyond_the_gpu(self) -> None:
        file = by_name(model="llama-3-70b", hardware={"h100": {}})
        self.assertEqual(
            self.refusal(file),
            "x.toml: [hardware.h100] tp: 140.0 GB of weights and one KV block of 5.2 MB per "
            "scheduler do not fit into 72.0 GB of memory on 1 H100; the smallest tp that fits is 2",
        )
        self.only(by_name(model="llama-3-70b", hardware={"h100": {"tp": 2}}))

    def test_explicit_kv_counts(self) -> None:
        kv = {**SCHEDULER, "kv_cache_capacity": 64 * 2**30}
        file = by_name(model="llama-3-70b", hardware={"h100": {"tp": 2}}, scheduler=kv)
        self.assertEqual(
            self.refusal(file),
            "x.toml: [hardware.h100] tp: 140.0 GB of weights and 68.7 GB of KV do not fit into "
            "160.0 GB of memory on 2 H100; the smallest tp that fits is 3",
        )
        file["hardware"]["h100"]["tp"] = 3
        self.only(file)

    def test_explicit_kv_may_use_all_of_the_memory(self) -> None:
        self.only(self.kv(8 * 10**9))
        self.assertIn("the smallest tp that fits is 2", self.refusal(self.kv(8 * 10**9 + 1)))

    def test_the_smallest_tp_named_is_a_multiple_of_ep(self) -> None:
        line = self.refusal(self.kv(25 * 10**9, tp=2, ep=2))
        self.assertIn("the smallest tp that fits is 4", line)
        self.only(self.kv(25 * 10**9, tp=4, ep=2))

    def test_where_no_group_can_hold_it(self) -> None:
        line = self.refusal(inline(weights(active_params=1, resident_params=10**10)))
        self.assertIn("20.0 GB of weights", line)
        self.assertIn("on 1 Small; no tp fits", line)

    def test_the_leftover_must_hold_one_block(self) -> None:
        # Of 10 GB 9 are usable. Keys and values of 16 tokens, 2 heads of 64, 8 layers, in bf16.
        layers = {"layers": [ATTENTION]}
        block = 16 * 8 * 2 * 2 * 64 * 2
        for spare, fits in ((block, True), (block - 2, False)):
            params = (9 * 10**9 - spare) // 2
            file = inline({**layers, **weights(active_params=1, resident_params=params)})
            if fits:
                self.only(file)
            else:
                self.assertIn("one KV block of", self.refusal(file))

    def test_explicit_kv_must_hold_one_block_per_rank(self) -> None:
        file = self.kv(131_071, tp=2, dp_attention=True)
        file["model"]["layers"] = [ATTENTION]
        self.assertEqual(
            self.refusal(file),
            "x.toml: [scheduler] kv_cache_capacity: expected at least 131072 bytes, "
            "one KV block per scheduler, got 131071",
        )
        file["scheduler"]["kv_cache_capacity"] = 131_072
        self.only(file)

    def test_data_parallel_attention_copies_its_weights_to_every_rank(self) -> None:
        # One copy more of 1024 * 64 * (2*8 + 2*2) * 8 bf16 attention parameters: 20.97 MB.
        copy = 1024 * 64 * 20 * 8 * 2
        for spare, fits in ((copy, True), (copy - 1, False)):
            file = self.kv(18 * 10**9 - spare, tp=2, dp_attention=True)
            file["model"]["layers"] = [ATTENTION]
            if fits:
                self.only(file)
            else:
                self.assertIn("the smallest tp that fits is 3", self.refusal(file))

    def test_an_absurd_group_is_refused_or_served_but_never_counted_out(self) -> None:
        self.only(self.kv(10**9, tp=2**40))


class Models(ModelFiles):
    """What an inline model must agree with itself about."""

    def test_resident_parameters_include_the_active_ones(self) -> None:
        self.assertEqual(
            self.refusal(inline(weights(resident_params=5))),
            "x.toml: [[model.weights]] #1 resident_params: expected at least "
            "active_params = 1000000000, got 5",
        )

    def test_a_token_cannot_pick_more_experts_than_there_are(self) -> None:
        routing = {"routed_experts": 4, "experts_per_tok": 8, "moe_layers": 2}
        self.assertEqual(
            self.refusal(inline(weights(routing=routing))),
            "x.toml: [[model.weights]] #1 routing.routed_experts: expected 0 or at least "
            "experts_per_tok = 8, got 4",
        )
        for experts in (0, 8, 64):
            self.only(inline(weights(routing={**routing, "routed_experts": experts})))

    def test_latent_heads_come_all_three_or_not_at_all(self) -> None:
        shape = {"heads": 8, "qk_head_dim": 192, "v_head_dim": 128}
        self.only(inline({"layers": [ATTENTION, {**MLA, **shape}]}))
        for given, missing in (
            (("qk_head_dim", "v_head_dim"), "heads"),
            (("heads", "v_head_dim"), "qk_head_dim"),
            (("heads", "qk_head_dim"), "v_head_dim"),
            (("heads",), "qk_head_dim"),
            (("v_head_dim",), "heads"),
        ):
            with self.subTest(given=given):
                partial = {key: shape[key] for key in given}
                self.assertEqual(
                    self.refusal(inline({"layers": [ATTENTION, {**MLA, **partial}]})),
                    f"x.toml: [[model.layers]] #2 {missing}: missing; "
                    "give heads, qk_head_dim and v_head_dim, or none of the three",
                )

    def test_a_latent_of_nothing(self) -> None:
        self.assertEqual(
            self.refusal(inline({"layers": [{**MLA, "latent_dim": 0}]})),
            "x.toml: [[model.layers]] #1 latent_dim: expected latent_dim + rope_dim >= 1, got 0",
        )
        self.only(inline({"layers": [{**MLA, "latent_dim": 0, "rope_dim": 64}]}))


class Doubts(ModelFiles):
    """What is served, but hardly meant."""

    def test_a_context_beyond_the_models(self) -> None:
        file = by_name(scheduler={**SCHEDULER, "max_model_len": 200_000})
        loaded = self.load(file)
        (warning,) = loaded.warnings
        self.assertIn("x.toml: [scheduler] max_model_len: 200000 is beyond what ", warning)
        self.assertIn("its context ends at 131072", warning)
        self.assertEqual(loaded.deployments[0].max_model_len, 131_072)

    def test_prompts_that_no_single_step_can_prefill(self) -> None:
        (warning,) = self.load(
            by_name(scheduler={**SCHEDULER, "enable_chunked_prefill": False})
        ).warnings
        self.assertIn("x.toml: [scheduler] max_num_batched_tokens: ", warning)
        self.assertIn("no prompt beyond 8192 tokens", warning)
        budget = {"enable_chunked_prefill": False, "max_num_batched_tokens": 131_072}
        self.only(by_name(scheduler={**SCHEDULER, **budget}))
