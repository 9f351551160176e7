"""Eight schedules, step by step, from an independent implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from inference_lab.engine.engine import Engine
from tests.engines import Arrival, Trace, deployment, run
from tests.oracle import Oracle

TIMELINES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "scheduler-timelines.json").read_text()
)


class TimelineTests(SynchronousTestCase):
    def check(self, kind: type[Engine] | type[Oracle]) -> None:
        self.assertEqual([timeline["title"][0] for timeline in TIMELINES], list("ABCDEFGH"))
        for timeline in TIMELINES:
            on_gpt_oss = timeline["title"][0] in "GH"
            engine = kind(
                deployment(
                    "gpt-oss-120b" if on_gpt_oss else "llama-3.1-8b-instruct",
                    tp=2 if on_gpt_oss else 1,
                    # A million stands for plenty, which a hundredth of it is as well.
                    blocks=min(timeline["total_blocks"], 10_000),
                    max_num_batched_tokens=timeline["budget"],
                    max_num_seqs=timeline["max_num_seqs"],
                    block_size=timeline["block_size"],
                    long_prefill_token_threshold=timeline["threshold"],
                )
            )
            trace = run(
                engine,
                [Arrival(r["arrival"], r["prompt"], r["target"]) for r in timeline["requests"]],
            )
            self.compare(timeline, trace)

    def compare(self, timeline: dict[str, Any], trace: Trace) -> None:
        title = timeline["title"]
        self.assertEqual(len(trace.steps), timeline["n_steps"], title)
        for (end, batch), (their_end, their_batch) in zip(
            trace.steps, timeline["steps"], strict=True
        ):
            self.assertEqual((round(end * 1e6, 4), batch), (their_end, their_batch), title)
        for request, theirs in zip(trace.requests, timeline["requests"], strict=True):
            self.assertEqual(request is None, theirs["rejected"], title)
            if request is None:
                continue
            first, finished = request.first_token_at, request.finished_at
            assert first is not None and finished is not None
            self.assertEqual(round(first * 1e6, 4), theirs["first_us"], title)
            self.assertEqual(round(finished * 1e6, 4), theirs["done_us"], title)
            self.assertEqual(request.preemptions, theirs["preemptions"], title)

    def test_engine(self) -> None:
        self.check(Engine)

    def test_oracle(self) -> None:
        self.check(Oracle)
