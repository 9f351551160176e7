"""How much CPU the engine takes: ``python benchmarks/engine.py``.

Decode steps at several batch sizes, a closed loop of 256 users, and the same loop, cut
short, on the plain engine of the tests. Nothing waits for simulated time here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from inference_lab.configuration.deployment import Deployment
from inference_lab.engine.engine import Engine
from tests.engines import deployment
from tests.oracle import Oracle, Request

BATCHES = (1, 64, 256, 1024, 4096)
STEPS = 3000
USERS, REQUESTS = 256, 2000
OUTPUT = (1000, 2860)
ORACLE_REQUESTS = 20

GROUPS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b-instruct": {},
    "gpt-oss-120b": {"tp": 2, "block_size": 64},
    "deepseek-v4-flash": {"tp": 4, "block_size": 64, "gpu_memory_utilization": 0.8},
}
PLENTY = 10**14
"""KV bytes no batch here fills: the decode figures are to be without preemption."""


def case(name: str, **settings: Any) -> Deployment:
    """One of the models on b200, for up to 4096 requests at once."""
    return deployment(name, **{"max_num_seqs": 4096, **GROUPS[name], **settings})


def decode_microseconds(where: Deployment, batch: int) -> float:
    """CPU per pure decode step of ``batch`` requests, scheduled, priced and committed."""
    engine, random = Engine(where), Random(batch)
    replica = engine.replicas[0]
    for index in range(batch):
        engine.submit(str(index), random.randint(50, 150), STEPS + 5000, arrival=0.0)
    now = 0.0
    while len(replica.members) < batch:
        plan = replica.begin_step(now)
        assert plan is not None
        replica.commit(plan)
        now = plan.end
    start = process_time()
    for _ in range(STEPS):
        plan = replica.begin_step(now)
        assert plan is not None
        replica.commit(plan)
        now = plan.end
    spent = process_time() - start
    assert plan is not None and plan.n_decode == batch
    return spent / STEPS * 1e6


def closed_loop(engine: Engine | Oracle, requests: int) -> tuple[int, int, float, float]:
    """Steps, tokens, simulated and CPU seconds of ``requests`` by 256 users in turn."""
    random = Random(1)
    begun = steps = tokens = 0
    now = 0.0

    def submit() -> None:
        nonlocal begun, tokens
        output = random.randint(*OUTPUT)
        engine.submit(str(begun), random.randint(100, 2000), output, arrival=now)
        begun += 1
        tokens += output

    start = process_time()
    for _ in range(min(USERS, requests)):
        submit()
    while True:
        if isinstance(engine, Engine):
            plan = engine.replicas[0].begin_step(now)
            if plan is None:
                break
            finished = len(engine.replicas[0].commit(plan).finished)
            now = plan.end
        else:
            end = engine.begin_step(now)
            if end is None:
                break
            done: list[Request] = engine.commit(end)
            finished, now = len(done), end
        steps += 1
        for _ in range(min(finished, requests - begun)):
            submit()
    return steps, tokens, now, process_time() - start


def main() -> None:
    """Print the tables."""
    print("CPU microseconds per decode step")
    print(f"{'model':24}" + "".join(f"{batch:>9}" for batch in BATCHES))
    for name in GROUPS:
        where = case(name, kv_cache_capacity=PLENTY)
        figures = [decode_microseconds(where, batch) for batch in BATCHES]
        print(f"{name:24}" + "".join(f"{figure:9.2f}" for figure in figures), flush=True)
    low, high = OUTPUT
    print(f"\nclosed loop, {USERS} users, {REQUESTS} requests, 100-2000 in, {low}-{high} out")
    for name in GROUPS:
        where = case(name)
        steps, tokens, simulated, cpu = closed_loop(Engine(where), REQUESTS)
        print(
            f"{name:24}{steps:8} steps {cpu:8.3f} s {steps / cpu:10,.0f} steps/s"
            f" {tokens / cpu:13,.0f} tokens/s {simulated / cpu:8.1f} x real time",
            flush=True,
        )
    print(f"\nthe same with {ORACLE_REQUESTS} requests, against the oracle")
    for name in GROUPS:
        where = case(name)
        _, _, end, cpu = closed_loop(Engine(where), ORACLE_REQUESTS)
        steps, _, oracle_end, oracle_cpu = closed_loop(Oracle(where), ORACLE_REQUESTS)
        assert abs(end - oracle_end) <= 1e-9 * end
        print(
            f"{name:24}{cpu:8.3f} s, oracle {oracle_cpu:8.3f} s ({steps / oracle_cpu:,.0f}"
            f" steps/s): {oracle_cpu / cpu:.0f} times as fast",
            flush=True,
        )


if __name__ == "__main__":
    main()
