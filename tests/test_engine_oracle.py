"""The engine that serves does what the plain one does, on random workloads.

Every workload is a function of its number, so a failure names what to run again.
"""

from __future__ import annotations

from math import isclose
from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from inference_lab.configuration.catalog import catalog_model
from inference_lab.configuration.deployment import Deployment
from inference_lab.configuration.memory import auxiliary_blocks
from inference_lab.configuration.schema import Model, TimeCorrection
from inference_lab.engine.engine import Engine
from tests.engines import ODD, Arrival, Trace, deployment, run
from tests.oracle import Oracle

MODELS: list[tuple[str | Model, dict[str, Any]]] = [
    ("llama-3.1-8b-instruct", {}),
    ("gpt-oss-120b", {"tp": 2}),
    ("deepseek-v4-flash", {"tp": 4}),
    ("qwen3.6-35b-a3b-fp8", {}),
    ("gemma-4-31b-it", {"tp": 2}),
    ("kimi-k2.6", {"tp": 4, "dp_attention": True}),
    (ODD, {}),
]
POLICIES = ("fcfs", "priority", "sif", "lif", "sof", "lof", "stf", "ltf")
WORKLOADS = 280


def random_deployment(number: int, random: Random) -> Deployment:
    """Kinds of models and policies in turn, the rest at random."""
    model, group = MODELS[number % len(MODELS)]
    block_size = random.choice((4, 16, 64))
    chunked = random.random() < 0.8
    resolved = catalog_model(model) if isinstance(model, str) else model
    auxiliary = auxiliary_blocks(resolved, block_size, 200)
    if random.random() < 0.8:  # room for one or two of the largest
        blocks = random.randint(160 // block_size, 400 // block_size) + 2 * auxiliary
    else:
        blocks = 6000 // block_size + 30 * auxiliary
    return deployment(
        model,
        **group,
        blocks=blocks,
        block_size=block_size,
        policy=POLICIES[number // len(MODELS) % len(POLICIES)],
        max_num_batched_tokens=random.choice((4, 30, 300, 2048)),
        max_num_seqs=random.choice((3, 64, 64)),
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=random.choice((0, 0, 20, 100)),
        max_num_partial_prefills=random.choice((1, 2)),
        max_model_len=random.choice((None, 700, 4000)),
        enable_preemption_free=random.random() < 0.1,
        enable_cascade_attention=random.random() < 0.2,
        time_correction=random.choice((TimeCorrection(), TimeCorrection(alpha=1.3, beta=0.001))),
    )


def random_arrivals(random: Random) -> list[Arrival]:
    """Bursts and stragglers, some with a prefix in common, some that leave early."""
    arrivals: list[Arrival] = []
    now = 0.0
    shared, most = random.random() < 0.6, random.choice((20, 40, 200))
    for index in range(random.randint(4, 24)):
        if random.random() < 0.3:
            now += random.expovariate(1 / 0.02)
        prompt = random.choice((random.randint(1, 40), random.randint(1, most)))
        output = random.randint(1, random.choice((8, 100, 150)))
        hashes: tuple[int, ...] = ()
        if shared and random.random() < 0.8:
            # One of two conversations, up to a random depth, then on its own.
            family, depth = random.randint(1, 2), random.randint(0, 60)
            hashes = tuple(
                family * 1000 + i if i < depth else (index + 10) * 1000 + i for i in range(120)
            )
        arrivals.append(
            Arrival(
                at=now,
                prompt_tokens=prompt,
                max_tokens=output,
                target=random.choice((None, random.randint(1, output))),
                priority=random.randint(0, 2),
                hashes=hashes,
                abort_at=now + random.expovariate(1 / 0.1) if random.random() < 0.15 else None,
            )
        )
    return arrivals


class AgreementTests(SynchronousTestCase):
    def close(self, ours: float | None, theirs: float | None) -> bool:
        if ours is None or theirs is None:
            return ours is theirs
        return isclose(ours, theirs, rel_tol=1e-9)

    def compare(self, ours: Trace, theirs: Trace, name: str) -> None:
        self.assertEqual(len(ours.steps), len(theirs.steps), name)
        self.assertEqual([b for _, b in ours.steps], [b for _, b in theirs.steps], name)
        for mine, other in zip(ours.results(), theirs.results(), strict=True):
            if mine is None or other is None:
                self.assertIs(mine, other, name)
                continue
            self.assertEqual((mine[0], *mine[3:]), (other[0], *other[3:]), name)
            self.assertTrue(self.close(mine[1], other[1]), (name, mine, other))
            self.assertTrue(self.close(mine[2], other[2]), (name, mine, other))
        self.assertEqual((ours.free, ours.prefix_hits), (theirs.free, theirs.prefix_hits), name)

    def agree(self, numbers: range) -> None:
        preemptions = hits = refused = aborted = 0
        for number in numbers:
            random = Random(number)
            where = random_deployment(number, random)
            arrivals = random_arrivals(random)
            engine = Engine(where)
            ours, theirs = run(engine, arrivals), run(Oracle(where), arrivals)
            self.compare(ours, theirs, f"workload {number}: {where.name}, {where.scheduler}")
            stats = engine.stats()
            self.assertEqual(stats.kv_blocks_free, stats.kv_blocks, f"workload {number} leaks")
            self.assertEqual((stats.running, stats.waiting), (0, 0))
            self.assertEqual(engine.replicas[0].queued_prefill_tokens, 0)
            preemptions += stats.preemptions
            aborted += stats.aborted
            hits += stats.prefix_hits
            refused += sum(request is None for request in ours.requests)
        # The workloads are worth something only if these things happen in them.
        for happened in (preemptions, hits, refused, aborted):
            self.assertGreater(happened, 10)

    def test_first_quarter(self) -> None:
        self.agree(range(WORKLOADS // 4))

    def test_second_quarter(self) -> None:
        self.agree(range(WORKLOADS // 4, WORKLOADS // 2))

    def test_third_quarter(self) -> None:
        self.agree(range(WORKLOADS // 2, 3 * WORKLOADS // 4))

    def test_last_quarter(self) -> None:
        self.agree(range(3 * WORKLOADS // 4, WORKLOADS))
