"""``inference-lab explain``: the real command's figures, and what it refuses."""

from __future__ import annotations

import json
import subprocess
from math import isclose
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from inference_lab.configuration.deployment import Deployment
from inference_lab.configuration.memory import kv_memory
from inference_lab.configuration.schema import TimeCorrection
from inference_lab.engine.attention import Chunk
from inference_lab.engine.engine import Engine
from inference_lab.explain import Explanation, explain, render
from tests.engines import deployment
from tests.live import PATIENCE, REPOSITORY, program

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "step-cost-vectors.json").read_text()
)

MODEL_FILE = """\
model = "{model}"

[scheduler]
policy = "fcfs"
max_num_batched_tokens = 8192
max_num_seqs = 1024
block_size = 16
enable_chunked_prefill = true

[hardware.{hardware}]
tp = {tp}
ep = {ep}
dp_attention = {dp}
"""

CHOSEN = [
    ("llama-3.1-8b-instruct", "decode B=64 ctx=1024"),
    ("llama-3.1-8b-instruct", "prefill chunk 2048 @6144"),
    ("gpt-oss-120b", "decode B=256 ctx=4096"),
    ("gpt-oss-120b", "mixed 64 dec@1024 + 1024 fresh"),
    ("deepseek-v4-flash", "decode B=1024 ctx=8192"),
    ("deepseek-v4-flash", "prefill chunk 2048 @6144"),
    ("qwen3.6-35b-a3b-fp8", "decode B=256 ctx=4096"),
    ("qwen3.6-35b-a3b-fp8", "prefill 2048 fresh"),
    ("kimi-k2.6", "8 ranks x 16 dec @4096"),
    ("kimi-k2.6", "rank0: 1 dec @65536, others idle"),
]
"""Plain and windowed attention, MLA with compressed history, linear layers, data-parallel."""


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    """The command, from a folder of its own."""
    return subprocess.run(
        [program("inference-lab"), "explain", *flags],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        cwd=REPOSITORY,
    )


def flags_of(vector: dict[str, Any]) -> list[str]:
    """The step of a vector, as an operator would ask for it."""
    rows = vector.get("batch") or [row for rank in vector["ranks"] for row in rank]
    flags = ["--batch", str(sum(count for _, _, prefill, count in rows if not prefill))]
    for resident, new, prefill, _ in rows:
        if prefill:
            flags += ["--prefill", f"{new}@{resident}" if resident else str(new)]
        else:
            flags += ["--context", str(resident)]
    return flags


@pytest.mark.parametrize(("model", "label"), CHOSEN)
def test_the_command_gives_the_figures_of_the_vectors(
    model: str, label: str, tmp_path: Path
) -> None:
    (vector,) = (v for v in VECTORS if (v["model"], v["label"]) == (model, label))
    file = tmp_path / "model.toml"
    dp = str(vector["dp_attention"]).lower()
    file.write_text(MODEL_FILE.format(**{**vector, "dp": dp}))
    done = run("--config", str(file), "--hardware", "b200", *flags_of(vector), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    ours = json.loads(done.stdout)
    theirs = {
        "step_seconds": vector["time_s"],
        "tokens": vector["tokens"],
        "collective_seconds": vector["collectives_s"],
        "skew_seconds": vector.get("skew_s", 0.0),
    }
    assert set(ours) == {*theirs, "streams", "kv_capacity_tokens"}
    for key, value in theirs.items():
        assert isclose(ours[key], value, rel_tol=1e-9, abs_tol=1e-18), (key, ours[key], value)
    assert set(ours["streams"]) == set(vector["streams"])
    for precision, stream in vector["streams"].items():
        figures = {
            "flops": stream["flops"],
            "bytes": stream["bytes"],
            "compute_seconds": stream["compute_s"],
            "memory_seconds": stream["memory_s"],
        }
        assert set(ours["streams"][precision]) == set(figures)
        for key, value in figures.items():
            assert isclose(ours["streams"][precision][key], value, rel_tol=1e-9), (precision, key)


def test_the_shipped_models_need_no_config() -> None:
    # (192 GB x 2 x 0.9 - 61,585,000,000 bytes of weights) in blocks of 64 x 36864 bytes.
    done = run("--model", "gpt-oss-120b", "--hardware", "b200", "--batch", "64", "--json")
    assert json.loads(done.stdout)["kv_capacity_tokens"] == 7_704_384
    table = run("--model", "gpt-oss-120b", "--hardware", "b200", "--batch", "64")
    assert table.returncode == 0
    assert "gpt-oss-120b on b200, tp 2, 64 decodes" in table.stdout
    assert "7,704,384" in table.stdout


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--batch", "x"], "--batch must be a whole number from 0 to 1000000000, not 'x'"),
        (["--context", "-1"], "--context must be a whole number from 0 to 1000000000, not '-1'"),
        (["--prefill", "0"], "--prefill must be N or N@C, N from 1 and C from 0 to 1000000000, "),
        (["--prefill", "5@"], "--prefill must be N or N@C, N from 1 and C from 0 to 1000000000, "),
        (["--batch", "0"], "--batch 0 needs a --prefill: a step has at least one request"),
        (["--model", "gpt-5"], "--model: no such model: 'gpt-5'; allowed are DeepSeek-OCR-2, "),
        ([], "--model is required: there are several models; allowed are DeepSeek-OCR-2, "),
        (["--hardware", "a100"], "there are b200, b300, gh200, h100"),
        (["--config", "missing.toml"], "missing.toml: No such file or directory"),
        (["word"], "unexpected argument 'word'; all settings are flags"),
        (["--what"], "option --what not recognized"),
    ],
)
def test_refusals_are_one_line(flags: list[str], line: str) -> None:
    done = run(*flags)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("inference-lab explain: ")
    assert line in done.stderr


# -- the pure part ---------------------------------------------------------------


def printed(explained: Explanation) -> str:
    """The table on a terminal of 80 columns."""
    console = Console(width=80, highlight=False)
    with console.capture() as capture:
        console.print(render(explained))
    return capture.get()


GPT = deployment("gpt-oss-120b", tp=2, block_size=64)
KIMI = deployment("kimi-k2.6", tp=8, dp_attention=True, block_size=64)


@settings(max_examples=40)
@given(
    st.sampled_from([GPT, KIMI, deployment("deepseek-v4-flash", tp=4)]),
    st.integers(0, 40),
    st.integers(0, 5000),
    st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 2000)), max_size=12),
)
def test_the_ranks_take_the_requests_in_turn(
    where: Deployment, batch: int, context: int, prefills: list[tuple[int, int]]
) -> None:
    chunks = [Chunk(resident, new, prefill=True) for resident, new in prefills]
    if not (batch or chunks):
        return
    explained = explain(where, batch, context, chunks)
    cost = Engine(where).cost
    requests = [Chunk(context)] * batch + chunks
    if where.dp_attention:
        shares = [requests[rank::8] for rank in range(8)]
        assert explained.cost == cost.group_step(shares)
    else:
        assert explained.cost == cost.step(requests)
    assert explained.kv_capacity_tokens == Engine(where).kv_capacity_tokens
    assert explained.tokens_per_second == explained.cost.tokens / explained.cost.step_seconds


def test_a_step_of_nobody() -> None:
    with pytest.raises(ValueError, match="at least one request"):
        explain(GPT, 0, 100)


def test_the_table() -> None:
    vector = next(
        v
        for v in VECTORS
        if v["label"] == "mixed 64 dec@1024 + 1024 fresh" and v["model"] == "gpt-oss-120b"
    )
    lines = printed(explain(GPT, 64, 1024, [Chunk(0, 1024, prefill=True)])).splitlines()
    assert lines[0] == "gpt-oss-120b on b200, tp 2, 64 decodes, 1024 prefill positions"
    rows = {line.split("  ")[0].strip(): line.split() for line in lines}
    assert " ".join(rows["fp4"]) == "fp4 7.8 TFLOP 57.3 GB 433.2 us 3.583 ms memory"
    assert " ".join(rows["bf16"]) == "bf16 3.58 TFLOP 5.84 GB 796.3 us 365.0 us compute"
    assert rows["collectives"][-2:] == ["861.4", "us"]
    assert rows["step"][-2:] == ["5.241", "ms"]
    assert rows["tokens/s, prefill included"][-1] == f"{1088 / vector['time_s']:,.0f}"
    assert rows["tokens/s generated"][-1] == f"{64 / vector['time_s']:,.0f}"
    assert rows["tokens/s per decode"][-1] == f"{1 / vector['time_s']:,.1f}"
    assert not any(line.startswith("Note") for line in lines)


def test_the_table_of_decodes_alone() -> None:
    explained = explain(GPT, 64, 1024)
    rows = {line.split("  ")[0].strip(): line.split() for line in printed(explained).splitlines()}
    assert rows["tokens/s"][-1] == f"{64 / explained.cost.step_seconds:,.0f}"
    assert "tokens/s generated" not in rows


def test_data_parallel_ranks_have_a_kv_cache_each() -> None:
    explained = explain(KIMI, 9, 640)
    assert explained.kv_blocks == kv_memory(KIMI).blocks
    assert explained.kv_blocks_needed == 2 * 11, "rank 0 has two of the nine"
    assert explained.kv_capacity_tokens == 8 * kv_memory(KIMI).tokens
    assert "22 of " in printed(explained)
    assert "(fullest rank)" in printed(explained)


def test_steps_that_no_scheduler_would_make_are_named() -> None:
    small = deployment("llama-3.1-8b-instruct", blocks=10, max_num_seqs=4)
    table = printed(explain(small, 5, 100, [Chunk(0, 9000, prefill=True)]))
    assert "Note: these requests do not fit the KV cache together." in table
    assert "Note: the scheduler's budget is 8,192 new positions a step." in table
    assert "Note: the scheduler runs at most 4 requests." in table


def test_a_time_correction_shows() -> None:
    plain = deployment("llama-3.1-8b-instruct")
    corrected = evolve(plain, time_correction=TimeCorrection(alpha=1.25, beta=0.002))
    before, after = explain(plain, 1, 0), explain(corrected, 1, 0)
    assert isclose(after.cost.step_seconds, 1.25 * before.cost.step_seconds + 0.002)
    assert "x 1.25 + 2.000 ms" in printed(after)
    assert "time correction" not in printed(before)
