"""The catalog's figures, and the deployments that ship with the package."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from inference_lab.configuration.catalog import (
    catalog_hardware,
    catalog_model,
    hardware_names,
    model_names,
)
from inference_lab.configuration.loader import load, shipped_configs
from inference_lab.configuration.memory import (
    content_bytes_per_token,
    kv_memory,
    state_bytes,
    window_bytes,
)
from inference_lab.configuration.schema import (
    AttentionLayers,
    Layers,
    LinearLayers,
    Link,
    WeightStream,
)

DATA = Path(__file__).parent / "data"


def figures(name: str) -> dict[str, dict[str, Any]]:
    """A file of expected figures."""
    result: dict[str, dict[str, Any]] = json.loads((DATA / name).read_text(encoding="utf-8"))
    return result


def stream_in_short(stream: WeightStream) -> str:
    """``precision active/resident [experts,picked,layers]``."""
    text = f"{stream.precision} {stream.active_params}/{stream.resident_params}"
    if stream.routing is None:
        return text
    routing = stream.routing
    return f"{text} [{routing.routed_experts},{routing.experts_per_tok},{routing.moe_layers}]"


def layers_in_short(layers: Layers) -> str:
    """One class of layers in the notation of the figures."""
    if isinstance(layers, LinearLayers):
        return f"{layers.count}xlinear state {layers.state_bytes}"
    window = f" win{layers.window}" if layers.window else ""
    if isinstance(layers, AttentionLayers):
        shared = " K=V" if layers.kv_shared else ""
        shape = f"h{layers.heads} d{layers.head_dim} kv{layers.kv_heads}"
        return f"{layers.count}xattn {shape}{window}{shared} {layers.kv_precision}"
    text = (
        f"{layers.count}xmla lat{layers.latent_dim} rope{layers.rope_dim} h{layers.heads} "
        f"qk{layers.qk_head_dim} v{layers.v_head_dim} q_lat{layers.q_latent_dim} "
        f"o_lat{layers.o_latent_dim} {layers.kv_precision}{window}"
    )
    if layers.history is None:
        return text
    history, indexer = layers.history, layers.history.indexer
    text += f" hist÷{history.compress_ratio}"
    if history.index_topk:
        text += f" top{history.index_topk}"
    if indexer is not None:
        text += f" ix{indexer.heads}x{indexer.head_dim} kv {indexer.kv_precision}"
        text += f" gemm {indexer.precision or 'attn'}"
    return text


class Models(SynchronousTestCase):
    """Every model against the published figures."""

    def test_every_model_is_there(self) -> None:
        self.assertEqual(list(model_names()), sorted(figures("catalog.json")))

    def test_architectures(self) -> None:
        for key, expected in figures("catalog.json").items():
            with self.subTest(model=key):
                model = catalog_model(key)
                self.assertEqual(model.name, expected["name"])
                self.assertEqual(model.hidden_dim, expected["hidden_dim"])
                self.assertEqual(model.max_seq_len, expected["max_seq_len"])
                self.assertEqual(list(map(stream_in_short, model.weights)), expected["weights"])
                self.assertEqual(list(map(layers_in_short, model.layers)), expected["layers"])
                self.assertEqual(model.attention_precision, "bf16")
                self.assertEqual(model.activation_bytes, 2)

    def test_bytes_of_a_sequence(self) -> None:
        checked = 0
        for key, expected in figures("catalog.json").items():
            if "content_bytes_per_token" not in expected:
                continue
            with self.subTest(model=key):
                model = catalog_model(key)
                content = content_bytes_per_token(model)
                self.assertEqual(content, expected["content_bytes_per_token"])
                full = window_bytes(model, model.max_seq_len)
                self.assertEqual(full, expected["window_bytes"])
                self.assertEqual(state_bytes(model), expected["state_bytes"])
                checked += 1
        self.assertEqual(checked, 13)


class Gpus(SynchronousTestCase):
    """Every GPU against its datasheet."""

    def test_rates_and_memory(self) -> None:
        for key, fp4, fp8, bf16, fp16, bandwidth, memory in (
            ("b200", 9.0e15, 4.5e15, 2.25e15, 2.25e15, 8.0e12, 192e9),
            ("b300", 1.35e16, 4.5e15, 2.25e15, 2.25e15, 8.0e12, 288e9),
            ("gh200", 1.979e15, 1.979e15, 9.89e14, 9.89e14, 4.0e12, 96e9),
            ("h100", None, 1.979e15, 9.895e14, None, 3.35e12, 80e9),
        ):
            with self.subTest(gpu=key):
                gpu = catalog_hardware(key)
                rates = (gpu.flops_fp4, gpu.flops_fp8, gpu.flops_bf16, gpu.flops_fp16)
                self.assertEqual(rates, (fp4, fp8, bf16, fp16))
                self.assertEqual(gpu.memory_bandwidth, bandwidth)
                self.assertEqual(gpu.memory_capacity, memory)

    def test_fabrics(self) -> None:
        for key, node, up, reduces, out in (
            ("b200", 8, 9.0e11, True, 5.0e10),
            ("b300", 8, 9.0e11, True, 1.0e11),
            ("gh200", 4, 4.5e11, False, 2.5e10),
            ("h100", 8, 4.5e11, True, 5.0e10),
        ):
            with self.subTest(gpu=key):
                fabric = catalog_hardware(key).fabric
                assert fabric is not None
                self.assertEqual(fabric.gpus_per_node, node)
                self.assertEqual(
                    fabric.scale_up,
                    Link(bandwidth=up, latency=5e-6, in_network_reduction=reduces),
                )
                self.assertEqual(fabric.scale_out, Link(bandwidth=out, latency=2e-5))

    def test_every_gpu_is_checked_here(self) -> None:
        self.assertEqual(hardware_names(), ("b200", "b300", "gh200", "h100"))


class ShippedDeployments(SynchronousTestCase):
    """The model files that come with the package."""

    def test_each_is_what_its_figures_say_on_every_entry(self) -> None:
        expected = figures("deployments.json")
        names = sorted(name.removesuffix(".toml") for name in os.listdir(shipped_configs()))
        self.assertEqual(names, sorted(expected))
        overridden = {("qwen3-vl-30b-a3b-fp8", "h100"): 1024}
        for name, figure in expected.items():
            path = shipped_configs() / f"{name}.toml"
            (first,) = load([path]).deployments
            self.assertEqual(first.entry, next(iter(figure["hardware"])), name)
            for entry, group in figure["hardware"].items():
                with self.subTest(file=name, entry=entry):
                    loaded = load([path], entry)
                    self.assertEqual(loaded.warnings, ())
                    (deployment,) = loaded.deployments
                    for key in (
                        "max_num_batched_tokens",
                        "policy",
                        "block_size",
                        "gpu_memory_utilization",
                        "kv_cache_capacity",
                    ):
                        self.assertEqual(getattr(deployment.scheduler, key), figure[key])
                    self.assertEqual(
                        deployment.scheduler.max_num_seqs,
                        overridden.get((name, entry), figure["max_num_seqs"]),
                    )
                    shown = f"tp{deployment.tensor_parallel}"
                    if deployment.expert_parallel > 1:
                        shown += f" ep{deployment.expert_parallel}"
                    if deployment.dp_attention:
                        shown += " dpa"
                    self.assertEqual(shown, group)
                    self.assertGreaterEqual(kv_memory(deployment).blocks, 1)

    def test_all_of_them_load_together_on_every_gpu(self) -> None:
        for hardware, count in ((None, 38), ("b200", 34), ("b300", 32), ("gh200", 22), ("h100", 4)):
            with self.subTest(hardware=hardware):
                loaded = load([shipped_configs()], hardware)
                self.assertEqual(len(loaded.deployments), count)
                self.assertEqual(len(loaded.skipped), 38 - count)
                ids = [d.name for d in loaded.deployments]
                ids += [alias for d in loaded.deployments for alias in d.aliases]
                self.assertEqual(len(ids), len(set(ids)))

    def test_models_served_twice_have_names_of_their_own(self) -> None:
        names = {Path(d.source).stem: d.name for d in load([shipped_configs()]).deployments}
        self.assertEqual(names["qwen3.5-9b"], "Qwen3.5-9B")
        self.assertEqual(names["qwen3.5-9b-dottxt"], "Qwen3.5-9B-dottxt")
        self.assertEqual(names["llama-3-70b"], "Llama-3-70B")
        self.assertEqual(names["llama-3-70b-fp8"], "Llama-3-70B-FP8")
        self.assertEqual(names["deepseek-v4-flash"], "DeepSeek-V4-Flash")
        self.assertEqual(names["deepseek-v4-flash-0731"], "DeepSeek-V4-Flash-0731")
