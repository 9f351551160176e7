"""Weights and KV blocks in a group's memory, worked out by hand."""

from __future__ import annotations

from fractions import Fraction

from inference_lab.configuration.catalog import catalog_model
from inference_lab.configuration.loader import load, shipped_configs
from inference_lab.configuration.memory import (
    attention_parameters,
    auxiliary_blocks,
    block_bytes,
    content_bytes_per_token,
    kv_capacity,
    kv_memory,
    projection_precision,
    ranks,
    resident_bytes,
    state_bytes,
    usable_bytes,
    window_bytes,
)
from inference_lab.configuration.schema import Model
from tests.model_files import ModelFiles, Table, inline

FULL: Table = {"kind": "attention", "count": 2, "heads": 8, "head_dim": 64, "kv_heads": 2}
WINDOWED: Table = {**FULL, "window": 100}
LINEAR: Table = {"kind": "linear", "count": 3, "state_bytes": 1000}


class Blocks(ModelFiles):
    """From layers to blocks."""

    def model(self, *layers: Table) -> Model:
        """A model of these layers."""
        return self.only(inline({"layers": list(layers)})).model

    def test_full_attention_pages_keys_and_values(self) -> None:
        model = self.model(FULL)
        self.assertEqual(content_bytes_per_token(model), 2 * 2 * 2 * 64 * 2)
        self.assertEqual(block_bytes(model, 16), 16 * 1024)
        self.assertEqual(auxiliary_blocks(model, 16, 4096), 0)

    def test_keys_shared_with_values_are_stored_once(self) -> None:
        model = self.model({**FULL, "kv_shared": True, "kv_precision": "fp8"})
        self.assertEqual(content_bytes_per_token(model), 2 * 2 * 64)

    def test_windows_and_states_take_private_blocks(self) -> None:
        model = self.model(FULL, WINDOWED, LINEAR)
        self.assertEqual(block_bytes(model, 16), 16 * 1024)
        self.assertEqual(window_bytes(model, 60), 60 * 1024)
        self.assertEqual(window_bytes(model, 4000), 100 * 1024)
        self.assertEqual(state_bytes(model), 3000)
        self.assertEqual(auxiliary_blocks(model, 16, 1), 1)  # 4024 bytes
        self.assertEqual(auxiliary_blocks(model, 16, 4000), 7)  # 105400 bytes

    def test_a_model_of_windows_has_blocks_of_their_storage(self) -> None:
        self.assertEqual(block_bytes(self.model(WINDOWED), 16), 16 * 1024)
        self.assertEqual(block_bytes(self.model(WINDOWED), 256), 100 * 1024)

    def test_a_model_of_states_has_blocks_of_one_state(self) -> None:
        self.assertEqual(block_bytes(self.model(LINEAR), 16), 3000)

    def test_compressed_history_counts_by_its_ratio(self) -> None:
        history = {
            "compress_ratio": 6,
            "indexer": {"heads": 4, "head_dim": 32, "kv_precision": "fp8"},
        }
        mla = {"kind": "mla", "count": 5, "latent_dim": 48, "rope_dim": 16, "window": 10}
        model = self.model({**mla, "kv_precision": "fp4", "history": history})
        self.assertEqual(content_bytes_per_token(model), Fraction(5 * (32 + 32), 6))
        self.assertEqual(block_bytes(model, 16), 854)  # 853.3
        self.assertEqual(window_bytes(model, 4096), 5 * 32 * 10)

    def test_catalog_models(self) -> None:
        self.assertEqual(auxiliary_blocks(catalog_model("gpt-oss-120b"), 64, 131_072), 2)
        self.assertEqual(auxiliary_blocks(catalog_model("deepseek-v4-flash"), 64, 131_072), 14)
        self.assertEqual(block_bytes(catalog_model("deepseek-v4-pro"), 64), 346_848)


class Weights(ModelFiles):
    """What weights take, and attention's part of them."""

    def test_resident_weights_by_precision(self) -> None:
        (flash,) = load([shipped_configs() / "deepseek-v4-flash.toml"]).deployments
        self.assertEqual(resident_bytes(flash), 278_107_521_024 // 2 + 6_225_000_000)

    def test_grouped_query_projections(self) -> None:
        # Query and output of 32 heads, keys and values of 8, of 128 each, in 32 layers.
        llama = catalog_model("llama-3.1-8b-instruct")
        self.assertEqual(attention_parameters(llama), 32 * 4096 * 128 * (64 + 16))
        # Where keys serve as values there is one projection less.
        gemma = catalog_model("gemma-4-31b-it")
        full, windowed = 10 * 512 * (64 + 4), 50 * 256 * (64 + 16)
        self.assertEqual(attention_parameters(gemma), 5376 * (full + windowed))

    def test_latent_projections(self) -> None:
        kimi = 7168 * 576 + 512 * 64 * (128 + 128)
        kimi += 7168 * 1536 + 1536 * 64 * 192 + 64 * 128 * 7168
        self.assertEqual(attention_parameters(catalog_model("kimi-k2.6")), 61 * kimi)
        flash = 4096 * 576 + 512 * 64 * (512 + 512) + 4096 * 1024 + 1024 * 64 * 576
        flash += 64 * 512 * 1024 + 1024 * 4096
        indexers = 21 * 4096 * 64 * 128
        self.assertEqual(
            attention_parameters(catalog_model("deepseek-v4-flash")), 43 * flash + indexers
        )

    def test_latent_layers_without_heads_count_as_heads_of_128(self) -> None:
        layer = {"kind": "mla", "count": 1, "latent_dim": 96, "rope_dim": 32}
        model = self.only(inline({"layers": [layer]})).model
        projections = 1024 * 128 + 96 * 8 * (96 + 128) + 1024 * 8 * 128 * 2
        self.assertEqual(attention_parameters(model), projections)

    def test_projections_have_the_precision_of_the_largest_unrouted_stream(self) -> None:
        self.assertEqual(projection_precision(catalog_model("kimi-k2.6")), "bf16")
        self.assertEqual(projection_precision(catalog_model("deepseek-v4-pro")), "fp8")
        streams: list[Table] = [
            {"precision": p, "active_params": 10, "resident_params": 10} for p in ("fp32", "bf16")
        ]
        self.assertEqual(
            projection_precision(self.only(inline({"weights": streams})).model), "bf16"
        )
        routing = {"routed_experts": 4, "experts_per_tok": 1, "moe_layers": 1}
        streams[0]["routing"] = routing
        streams[0]["resident_params"] = 20
        self.assertEqual(
            projection_precision(self.only(inline({"weights": streams})).model), "bf16"
        )
        streams[1]["routing"] = routing
        self.assertEqual(
            projection_precision(self.only(inline({"weights": streams})).model), "fp32"
        )


class Capacity(ModelFiles):
    """KV of a whole deployment."""

    def test_what_the_weights_leave(self) -> None:
        (llama,) = load([shipped_configs() / "llama-3.1-8b-instruct.toml"]).deployments
        self.assertEqual(usable_bytes(llama), 86_400_000_000)
        self.assertEqual(kv_capacity(llama), 70_340_000_000)
        memory = kv_memory(llama)
        self.assertEqual(memory.block_bytes, 16 * 131_072)
        self.assertEqual(memory.blocks, 33_540)
        self.assertEqual(memory.tokens, 536_640)

    def test_what_the_operator_says(self) -> None:
        (llama,) = load([shipped_configs() / "llama-3-70b.toml"]).deployments
        self.assertEqual(usable_bytes(llama), 320_000_000_000)
        self.assertEqual(kv_capacity(llama), 2**36)
        self.assertEqual(kv_memory(llama).blocks, 2**36 // (16 * 327_680))

    def test_ranks_divide_what_is_left_beside_their_copies(self) -> None:
        (kimi,) = load([shipped_configs() / "kimi-k2.6.toml"]).deployments
        self.assertEqual(ranks(kimi), 8)
        weights = 1_014_686_023_680 // 2 + 2 * 12_121_179_136
        copies = 7 * 2 * attention_parameters(kimi.model)
        self.assertEqual(resident_bytes(kimi), weights + copies)
        group = int(192e9 * 8 * 0.8) - weights - copies
        self.assertEqual(kv_capacity(kimi), group)
        self.assertEqual(kv_memory(kimi).capacity, group // 8)

    def test_replicas_each_have_their_own(self) -> None:
        one, three = (self.only(inline(replicas=count)) for count in (1, 3))
        self.assertEqual(kv_memory(one), kv_memory(three))
