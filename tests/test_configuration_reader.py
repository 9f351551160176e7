"""What each mistake in a model file is told, and that nothing else comes of one."""

from __future__ import annotations

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.configuration.loader import ConfigError, load
from tests.model_files import GPU, MODEL, SCHEDULER, ModelFiles, Table, by_name, inline


class Refusing(ModelFiles):
    """Each kind of mistake, with its whole line."""

    def spoiled(self, path: str, value: object, file: Table | None = None) -> str:
        """The refusal of a file with the key at ``path`` set to ``value``; None removes it."""
        table = by_name() if file is None else file
        *into, last = path.split("/")
        at = table
        for key in into:
            at = at[int(key)] if isinstance(at, list) else at[key]
        if value is None:
            del at[last]
        else:
            at[last] = value
        return self.refusal(table)

    def test_values_of_the_wrong_type_or_range(self) -> None:
        cases: list[tuple[str, object, str]] = [
            ("model", 5, "model: expected a string or a table, got 5"),
            ("served_name", "", 'served_name: expected a non-empty string, got ""'),
            ("scheduler", [], "scheduler: expected a table, got an empty array"),
            (
                "hardware",
                {},
                "hardware: expected a table with at least one entry, got an empty table",
            ),
            ("fault", 3, "fault: expected a table, got 3"),
            ("hardware/b200", 3, "[hardware] b200: expected a table, got 3"),
            (
                "scheduler/max_num_seqs",
                "many",
                '[scheduler] max_num_seqs: expected a whole number >= 1, got "many"',
            ),
            (
                "scheduler/max_num_seqs",
                0,
                "[scheduler] max_num_seqs: expected a whole number >= 1, got 0",
            ),
            (
                "scheduler/max_num_seqs",
                True,
                "[scheduler] max_num_seqs: expected a whole number >= 1, got true",
            ),
            (
                "scheduler/max_num_seqs",
                8.0,
                "[scheduler] max_num_seqs: expected a whole number >= 1, got 8.0",
            ),
            (
                "scheduler/max_num_seqs",
                2**63,
                "[scheduler] max_num_seqs: expected a whole number <= 9223372036854775807, "
                "got a whole number of 64 bits",
            ),
            (
                "scheduler/kv_cache_capacity",
                0.5,
                "[scheduler] kv_cache_capacity: expected a whole number >= 0, got 0.5",
            ),
            (
                "scheduler/policy",
                "fifo",
                "[scheduler] policy: expected one of fcfs, lif, lof, ltf, priority, sif, sof, stf, "
                'got "fifo"',
            ),
            (
                "scheduler/enable_chunked_prefill",
                1,
                "[scheduler] enable_chunked_prefill: expected true or false, got 1",
            ),
            (
                "scheduler/gpu_memory_utilization",
                1.5,
                "[scheduler] gpu_memory_utilization: expected a number > 0 and <= 1, got 1.5",
            ),
            ("hardware/b200/tp", 0, "[hardware.b200] tp: expected a whole number >= 1, got 0"),
            ("hardware/b200/ep", 0, "[hardware.b200] ep: expected a whole number >= 1, got 0"),
            (
                "hardware/b200/replicas",
                -1,
                "[hardware.b200] replicas: expected a whole number >= 1, got -1",
            ),
            (
                "hardware/b200/scheduler",
                {"block_size": 0},
                "[hardware.b200.scheduler] block_size: expected a whole number >= 1, got 0",
            ),
            (
                "hardware/b200/time_correction",
                {"alpha": 0},
                "[hardware.b200.time_correction] alpha: expected a number > 0, got 0",
            ),
            (
                "hardware/b200/time_correction",
                {"beta": -0.1},
                "[hardware.b200.time_correction] beta: expected a number >= 0, got -0.1",
            ),
            (
                "router",
                {"policy": "random"},
                "[router] policy: expected one of round_robin, least_loaded, prefix_affinity, "
                'kv_aware, got "random"',
            ),
            (
                "router",
                {},
                "[router] policy: missing, expected one of round_robin, least_loaded, "
                "prefix_affinity, kv_aware",
            ),
        ]
        for path, value, line in cases:
            with self.subTest(path=path, value=value):
                self.assertEqual(self.spoiled(path, value), f"x.toml: {line}")

    def test_values_inside_inline_tables_and_arrays(self) -> None:
        cases: list[tuple[str, object, str]] = [
            ("model/hidden_dim", 0, "[model] hidden_dim: expected a whole number >= 1, got 0"),
            (
                "model/weights",
                [],
                "[model] weights: expected an array of at least one table, got an empty array",
            ),
            (
                "model/layers",
                [{}, 5],
                "[[model.layers]] #1 kind: missing, expected one of attention, mla, linear",
            ),
            ("model/weights", [5], "[[model.weights]] #1: expected a table, got 5"),
            (
                "model/layers/1/latent_dim",
                "x",
                '[[model.layers]] #2 latent_dim: expected a whole number >= 0, got "x"',
            ),
            (
                "model/layers/1/history",
                {"compress_ratio": 0},
                "[[model.layers]] #2 history.compress_ratio: expected a whole number >= 1, got 0",
            ),
            (
                "model/layers/0/kind",
                "conv",
                '[[model.layers]] #1 kind: expected one of attention, mla, linear, got "conv"',
            ),
            (
                "model/weights/0/precision",
                "int4",
                "[[model.weights]] #1 precision: expected one of bf16, fp16, fp32, fp4, fp8, "
                'got "int4"',
            ),
            (
                "hardware/own/spec/memory_bandwidth",
                float("inf"),
                "[hardware.own.spec] memory_bandwidth: expected a number > 0, got inf",
            ),
            (
                "hardware/own/spec/flops_bf16",
                float("nan"),
                "[hardware.own.spec] flops_bf16: expected a number > 0, got nan",
            ),
            (
                "hardware/own/spec/fabric",
                {"gpus_per_node": 8, "scale_up": {"bandwidth": 1, "latency": -1}},
                "[hardware.own.spec.fabric.scale_up] latency: expected a number >= 0, got -1",
            ),
        ]
        for path, value, line in cases:
            with self.subTest(path=path, value=value):
                self.assertEqual(self.spoiled(path, value, inline()), f"x.toml: {line}")

    def test_missing_keys_are_named(self) -> None:
        for path, line in (
            ("model", "model: missing, expected a string or a table"),
            ("scheduler", "scheduler: missing, expected a table"),
            ("hardware", "hardware: missing, expected a table with at least one entry"),
            (
                "scheduler/block_size",
                "[scheduler] block_size: missing, expected a whole number >= 1",
            ),
            (
                "scheduler/policy",
                "[scheduler] policy: missing, expected one of fcfs, lif, lof, ltf, priority, sif, "
                "sof, stf",
            ),
        ):
            with self.subTest(path=path):
                self.assertEqual(self.spoiled(path, None), f"x.toml: {line}")
        for path, line in (
            ("model/layers", "[model] layers: missing, expected an array of at least one table"),
            (
                "model/layers/2/state_bytes",
                "[[model.layers]] #3 state_bytes: missing, expected a whole number >= 1",
            ),
            (
                "model/layers/0/kind",
                "[[model.layers]] #1 kind: missing, expected one of attention, mla, linear",
            ),
            (
                "hardware/own/spec/memory_capacity",
                "[hardware.own.spec] memory_capacity: missing, expected a whole number >= 1",
            ),
        ):
            with self.subTest(path=path):
                self.assertEqual(self.spoiled(path, None, inline()), f"x.toml: {line}")

    def test_unknown_keys_are_named_beside_the_allowed_ones(self) -> None:
        line = self.spoiled("scheduler/max_num_seq", 5)
        self.assertIn(
            'x.toml: [scheduler] max_num_seq: unknown key, did you mean "max_num_seqs"? '
            "allowed are max_num_batched_tokens, max_num_seqs, policy, ",
            line,
        )
        line = self.spoiled("zzz", 5)
        self.assertIn("x.toml: zzz: unknown key; allowed are model, scheduler, hardware, ", line)
        line = self.spoiled("hardware/b200/scheduler", {"zzz": 5})
        self.assertIn("x.toml: [hardware.b200.scheduler] zzz: unknown key; allowed are ", line)
        line = self.spoiled("hardware/b200/time_correction", {"gamma": 5})
        self.assertIn("[hardware.b200.time_correction] gamma: unknown key", line)
        line = self.spoiled("router", {"policy": "round_robin", "load_weight": 1})
        self.assertIn("[router] load_weight: unknown key; allowed are policy", line)
        for path in ("layers/2/window", "weights/0/routing"):
            line = self.spoiled(f"model/{path}", {"windo": 5}, inline())
            self.assertIn("unknown key", line)

    def test_keys_that_are_not_bare_stay_on_the_line(self) -> None:
        self.assertIn('x.toml: "a\\nb c": unknown key; ', self.spoiled("a\nb c", 1))

    def test_models_that_are_not_in_the_catalog(self) -> None:
        line = self.spoiled("model", "llama-3.1-8b")
        self.assertIn('x.toml: model: "llama-3.1-8b" is not in the catalog, did you mean "', line)
        self.assertIn("allowed are deepseek-ocr-2, ", line)
        self.assertIn("or a table", line)
        self.assertIn("is not in the catalog", self.spoiled("model", "../hardware/b200"))


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.sampled_from(["fcfs", "mla", "b200", "gpt-oss-20b", "bf16", "kv_aware", "1979-05-27"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*SCHEDULER, *MODEL, *GPU, "kind", "tp", "é\n"]), inner)
    ),
    max_leaves=6,
).filter(lambda value: value is not None)


def places(table: object) -> list[tuple[Table | list[object], str | int]]:
    """Every key and index anywhere in ``table``, with the container it is in."""
    pairs = enumerate(table) if isinstance(table, list) else table.items()  # type: ignore[attr-defined]
    found: list[tuple[Table | list[object], str | int]] = []
    for key, value in pairs:
        found.append((table, key))  # type: ignore[arg-type]
        if isinstance(value, dict | list):
            found.extend(places(value))
    return found


class Garbage(ModelFiles):
    """Whatever is in a file, it loads or it is refused in one line."""

    def check(self, content: Table | bytes) -> None:
        path = self.write(content)
        try:
            loaded = load([path])
        except ConfigError as error:
            self.assertTrue(self.line(error).startswith("x.toml: "), str(error))
        else:
            (deployment,) = loaded.deployments
            attrs.asdict(deployment)
            for warning in loaded.warnings:
                self.assertEqual(warning.splitlines(), [warning])

    @settings(max_examples=300, deadline=None)
    @given(st.data())
    def test_one_value_anywhere_replaced_by_junk(self, data: st.DataObject) -> None:
        file = data.draw(st.sampled_from([by_name, inline]))()
        container, key = data.draw(st.sampled_from(places(file)), label="place")
        container[key] = data.draw(JUNK, label="junk")  # type: ignore[index]
        self.check(file)

    @settings(max_examples=100, deadline=None)
    @given(
        st.dictionaries(
            st.sampled_from(["model", "scheduler", "hardware", "router", "memory", "\x7f"]), JUNK
        )
    )
    def test_junk_from_the_top(self, file: Table) -> None:
        self.check(file)

    @settings(max_examples=100, deadline=None)
    @given(st.binary(max_size=40))
    def test_any_bytes(self, content: bytes) -> None:
        self.check(content)
