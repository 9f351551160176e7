"""What is scraped, against a record of every token that an engine produced.

The engine runs in a plain loop here, as fast as it computes, and reports to the metrics
what a driver would.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from math import isclose, isinf
from random import Random
from typing import Any

from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.configuration.deployment import Deployment
from inference_lab.engine.engine import Engine
from inference_lab.engine.replica import Replica, StepPlan
from inference_lab.engine.requests import Handle, RequestState
from inference_lab.metrics import DeploymentMetrics, Histogram, Metrics, length_buckets
from tests.engines import deployment

NAME = "Llama-3.1-8B-Instruct"

FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
REQUEST = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60,
    120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
GAP = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
STEP = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
LENGTH = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000,
)  # fmt: skip

HISTOGRAMS = {
    "time_to_first_token_seconds": FIRST_TOKEN,
    "inter_token_latency_seconds": GAP,
    "e2e_request_latency_seconds": REQUEST,
    "request_queue_time_seconds": REQUEST,
    "request_prefill_time_seconds": REQUEST,
    "request_decode_time_seconds": REQUEST,
    "request_prompt_tokens": LENGTH,
    "request_generation_tokens": LENGTH,
    "iteration_tokens_total": STEP,
}
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
COUNTERS = (
    "prompt_tokens",
    "generation_tokens",
    "num_preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
)


@define
class Lab:
    """An engine in a loop, its metrics, and a record of each token's time."""

    deployment: Deployment
    engine: Engine = field(init=False)
    figures: DeploymentMetrics = field(init=False)
    metrics: Metrics = field(init=False)
    handles: list[Handle] = field(factory=list)
    tokens: dict[Handle, list[float]] = field(factory=dict)
    steps: list[int] = field(factory=list)
    flying: dict[Replica, StepPlan] = field(factory=dict)
    now: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.engine = Engine(self.deployment)
        self.figures = DeploymentMetrics(self.deployment.name, self.engine)
        self.metrics = Metrics([self.figures])

    def submit(self, prompt: int, output: int, arrival: float | None = None, **more: Any) -> Handle:
        """Queue a request, by default at this moment."""
        at = self.now if arrival is None else arrival
        handle = self.engine.submit(str(len(self.handles)), prompt, output, arrival=at, **more)
        self.handles.append(handle)
        self.tokens[handle] = []
        return handle

    def abort(self, handle: Handle) -> None:
        """As when a client leaves."""
        if self.engine.abort(handle):
            self.figures.aborted(handle)

    def step(self, *leaving: Handle) -> bool:
        """To the end of the step that ends first; those ``leaving`` go in its midst."""
        for replica in self.engine.replicas:
            if replica not in self.flying:
                plan = replica.begin_step(self.now)
                if plan is not None:
                    self.flying[replica] = plan
        for handle in leaving:
            self.abort(handle)
        if not self.flying:
            return False
        replica = min(self.flying, key=lambda each: self.flying[each].end)
        plan = self.flying.pop(replica)
        result = replica.commit(plan)
        self.now = plan.end
        self.steps.append(plan.tokens)
        for handle, times in self.tokens.items():
            times += [plan.end] * (handle.produced - len(times))
        self.figures.stepped(replica, plan, result)
        for handle, reason in result.finished:
            self.figures.finished(handle, reason)
        return True

    def run(self) -> None:
        """Until nothing is left to do."""
        while self.step():
            pass

    def scrape(self) -> Scrape:
        """What Prometheus would read."""
        text = self.metrics.render().decode()
        return Scrape({family.name: family for family in text_string_to_metric_families(text)})


@define
class Scrape:
    """A parsed exposition."""

    families: dict[str, Metric]

    def value(self, name: str, **labels: str) -> float:
        """The one sample of that name and these labels."""
        found = [
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) == 1, (name, labels, found)
        return found[0]

    def buckets(self, name: str) -> dict[float, int]:
        """Cumulative counts by upper bound, infinity included."""
        return {
            float(sample.labels["le"]): int(sample.value)
            for sample in self.families[name].samples
            if sample.name == f"{name}_bucket"
        }


class MetricsTestCase(SynchronousTestCase):
    def holds(
        self, scrape: Scrape, name: str, bounds: Sequence[float], values: Sequence[float]
    ) -> None:
        """The histogram has counted exactly ``values``."""
        name = f"vllm:{name}"
        expected = {bound: sum(v <= bound for v in values) for bound in (*bounds, float("inf"))}
        self.assertEqual(scrape.buckets(name), expected, name)
        self.assertEqual(scrape.value(f"{name}_count"), len(values), name)
        total = scrape.value(f"{name}_sum")
        self.assertTrue(isclose(total, sum(values), rel_tol=1e-9, abs_tol=1e-12), (name, total))


class NamesTests(MetricsTestCase):
    """Names, types, labels and buckets, as dashboards made for vLLM expect them."""

    def test_names(self) -> None:
        scrape = Lab(deployment("llama-3.1-8b-instruct")).scrape()
        types = {name: family.type for name, family in scrape.families.items()}
        expected = {f"vllm:{name}": "histogram" for name in HISTOGRAMS}
        expected |= {f"vllm:{name}": "gauge" for name in GAUGES}
        expected |= {f"vllm:{name}": "counter" for name in (*COUNTERS, "request_success")}
        ours = {
            "inference_lab_steps": "counter",
            "inference_lab_pacing_slips": "counter",
            "inference_lab_pacing_slipped_seconds": "counter",
            "inference_lab_open_streams": "gauge",
            "inference_lab_faults": "counter",
            "inference_lab_drain_timeouts": "counter",
        }
        theirs = {name: kind for name, kind in types.items() if name.startswith("vllm:")}
        self.assertEqual(theirs, expected)
        self.assertEqual({n: types[n] for n in ours}, ours)

    def test_nothing_has_happened_yet(self) -> None:
        scrape = Lab(deployment("llama-3.1-8b-instruct")).scrape()
        for name in GAUGES:
            self.assertEqual(scrape.value(f"vllm:{name}", model_name=NAME), 0)
        for name in COUNTERS:
            self.assertEqual(scrape.value(f"vllm:{name}_total", model_name=NAME), 0)
        for reason in ("stop", "length", "abort"):
            value = scrape.value(
                "vllm:request_success_total", model_name=NAME, finished_reason=reason
            )
            self.assertEqual(value, 0)
        for name, bounds in HISTOGRAMS.items():
            self.holds(scrape, name, bounds, [])

    def test_every_sample_names_its_model(self) -> None:
        lab = Lab(deployment("llama-3.1-8b-instruct"))
        lab.submit(100, 3)
        lab.run()
        for name, family in lab.scrape().families.items():
            if name.startswith("vllm:"):
                for sample in family.samples:
                    self.assertEqual(sample.labels["model_name"], NAME, sample)

    def test_several_models_share_the_families(self) -> None:
        labs = [Lab(deployment(model)) for model in ("llama-3.1-8b-instruct", "gpt-oss-20b")]
        labs[1].submit(50, 4)
        labs[1].run()
        text = Metrics([lab.figures for lab in labs]).render().decode()
        self.assertEqual(text.count("# TYPE vllm:generation_tokens_total counter"), 1)
        families = {f.name: f for f in text_string_to_metric_families(text)}
        scrape = Scrape(families)
        name = "vllm:generation_tokens_total"
        self.assertEqual(scrape.value(name, model_name=NAME), 0)
        self.assertEqual(scrape.value(name, model_name="gpt-oss-20b"), 4)

    def test_lengths_go_as_far_as_the_context(self) -> None:
        self.assertEqual(length_buckets(131072), LENGTH)
        self.assertEqual(length_buckets(4096), LENGTH[:11])
        self.assertEqual(length_buckets(200), LENGTH[:8])


class HistogramTests(SynchronousTestCase):
    @given(
        st.lists(st.tuples(st.sampled_from([0.1, 0.25, 1.0, 3.5, 9.0]), st.integers(0, 9))),
        st.sets(st.sampled_from([0.1, 0.25, 0.5, 1.0, 2.0, 5.0]), min_size=1),
    )
    def test_counts_a_value_many_times(
        self, values: list[tuple[float, int]], bounds: set[float]
    ) -> None:
        histogram = Histogram(sorted(bounds))
        for value, times in values:
            histogram.observe(value, times)
        family = histogram.family("h", "doc", "model")
        for sample in family.samples:
            if sample.name == "h_bucket":
                bound = float(sample.labels["le"])
                expected = sum(times for value, times in values if value <= bound)
                self.assertEqual(sample.value, expected, bound)
                self.assertEqual(isinf(bound), sample.labels["le"] == "+Inf")
            elif sample.name == "h_sum":
                self.assertTrue(isclose(sample.value, sum(v * t for v, t in values)))


class OneRequestTests(MetricsTestCase):
    """Figures that can be read off a timeline."""

    def test_an_answer(self) -> None:
        lab = Lab(deployment("llama-3.1-8b-instruct"))
        lab.now = 5.0
        handle = lab.submit(10_000, 4, arrival=4.5)
        lab.step()
        during = lab.scrape()
        self.assertEqual(during.value("vllm:num_requests_running"), 1)
        usage = during.value("vllm:kv_cache_usage_perc")
        total = lab.engine.stats().kv_blocks
        self.assertTrue(isclose(usage, (8192 // 16) / total), usage)
        lab.run()
        after = lab.scrape()
        # The known timeline of 10,000 prompt tokens in a budget of 8192, begun at 5 s.
        first, done = 5.0830286222, 5.0895427405
        self.assertTrue(isclose(lab.tokens[handle][0], first, abs_tol=1e-9))
        for name, value in {
            "time_to_first_token_seconds": first - 4.5,
            "e2e_request_latency_seconds": done - 4.5,
            "request_queue_time_seconds": 0.5,
            "request_prefill_time_seconds": first - 5.0,
            "request_decode_time_seconds": done - first,
        }.items():
            self.assertTrue(isclose(after.value(f"vllm:{name}_sum"), value, abs_tol=1e-9), name)
            self.assertEqual(after.value(f"vllm:{name}_count"), 1)
        self.holds(after, "request_prompt_tokens", LENGTH, [10_000])
        self.holds(after, "request_generation_tokens", LENGTH, [4])
        self.holds(after, "iteration_tokens_total", STEP, [8192, 1808, 1, 1, 1])
        self.assertEqual(after.value("vllm:prompt_tokens_total"), 10_000)
        self.assertEqual(after.value("vllm:generation_tokens_total"), 4)
        self.assertEqual(after.value("inference_lab_steps_total"), 5)
        self.assertEqual(after.value("vllm:num_requests_running"), 0)
        self.assertEqual(after.value("vllm:kv_cache_usage_perc"), 0)

    def test_reasons(self) -> None:
        lab = Lab(deployment("llama-3.1-8b-instruct"))
        lab.submit(10, 3)
        lab.submit(10, 9, target=2)
        lab.submit(10, 9, target=4)
        lab.run()
        scrape = lab.scrape()
        for reason, count in {"length": 1, "stop": 2, "abort": 0}.items():
            self.assertEqual(
                scrape.value("vllm:request_success_total", finished_reason=reason), count
            )

    def test_waiting(self) -> None:
        lab = Lab(deployment("llama-3.1-8b-instruct", max_num_seqs=1))
        for _ in range(4):
            lab.submit(10, 3)
        lab.step()
        scrape = lab.scrape()
        self.assertEqual(scrape.value("vllm:num_requests_running"), 1)
        self.assertEqual(scrape.value("vllm:num_requests_waiting"), 3)

    def test_prefix_cache(self) -> None:
        lab = Lab(deployment("llama-3.1-8b-instruct"))
        names = tuple(range(100, 106))
        for _ in range(2):
            lab.submit(100, 3, block_hashes=names)
            lab.run()
        scrape = lab.scrape()
        self.assertEqual(scrape.value("vllm:prefix_cache_queries_total"), 200)
        self.assertEqual(scrape.value("vllm:prefix_cache_hits_total"), 96)

    def test_an_abort_enters_no_histogram_of_whole_answers(self) -> None:
        lab = Lab(deployment("llama-3.1-8b-instruct"))
        early, late, waiting = lab.submit(3000, 50), lab.submit(2000, 50), lab.submit(8000, 50)
        lab.step(early)
        lab.step(waiting)
        lab.step()
        lab.abort(late)
        lab.abort(late)
        self.assertFalse(lab.step())
        scrape = lab.scrape()
        self.assertEqual(scrape.value("vllm:request_success_total", finished_reason="abort"), 3)
        for name in ("e2e_request_latency_seconds", "request_generation_tokens"):
            self.assertEqual(scrape.value(f"vllm:{name}_count"), 0)
        self.assertEqual(scrape.value("vllm:time_to_first_token_seconds_count"), 1)
        self.assertEqual(scrape.value("vllm:inter_token_latency_seconds_count"), 2)
        for name in GAUGES:
            self.assertEqual(scrape.value(f"vllm:{name}"), 0, name)

    def test_who_comes_while_the_engine_is_late_did_not_wait(self) -> None:
        """Then the wall is ahead of the step that takes them in."""
        lab = Lab(deployment("llama-3.1-8b-instruct"))
        handle = lab.submit(100, 5, arrival=0.7)
        lab.run()
        assert handle.finished_at is not None
        scrape = lab.scrape()
        self.assertEqual(scrape.value("vllm:request_queue_time_seconds_sum"), 0)
        self.holds(scrape, "time_to_first_token_seconds", FIRST_TOKEN, lab.tokens[handle][:1])
        self.holds(scrape, "e2e_request_latency_seconds", REQUEST, [handle.finished_at])

    def test_slips(self) -> None:
        lab = Lab(deployment("llama-3.1-8b-instruct"))
        lab.figures.slipped(1.5)
        lab.figures.slipped(2.0)
        scrape = lab.scrape()
        self.assertEqual(scrape.value("inference_lab_pacing_slips_total", model_name=NAME), 2)
        self.assertEqual(
            scrape.value("inference_lab_pacing_slipped_seconds_total", model_name=NAME), 3.5
        )


class OursTests(MetricsTestCase):
    def test_faults_and_streams(self) -> None:
        lab = Lab(deployment("llama-3.1-8b-instruct"))
        lab.metrics.watch_streams(lambda: 7)
        lab.metrics.fault_ended("reset", "rst")
        lab.metrics.fault_ended("reset", "rst")
        lab.metrics.fault_ended("stall", "client_left")
        lab.metrics.undelivered()
        scrape = lab.scrape()
        self.assertEqual(scrape.value("inference_lab_open_streams"), 7)
        name = "inference_lab_faults_total"
        self.assertEqual(scrape.value(name, mode="reset", end="rst"), 2)
        self.assertEqual(scrape.value(name, mode="stall", end="client_left"), 1)
        self.assertEqual(scrape.value("inference_lab_drain_timeouts_total"), 1)


# -- against a record of every token -------------------------------------------

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("llama-3.1-8b-instruct", {}),
    ("gpt-oss-20b", {}),
    ("qwen3.6-35b-a3b-fp8", {}),
    ("llama-3.1-8b-instruct", {"tp": 2, "dp_attention": True}),
    ("llama-3.1-8b-instruct", {"replicas": 2}),
]
WORKLOADS = 200


def random_lab(number: int, random: Random) -> Lab:
    """Little memory, so that requests are preempted, and small budgets, so that they wait."""
    model, group = KINDS[number % len(KINDS)]
    roomy = deployment(model, block_size=16)
    one = Engine(roomy).replicas[0].ranks[0].kv.table.blocks(260)
    return Lab(
        deployment(
            model,
            **group,
            blocks=one + random.randint(0, one),
            policy=random.choice(("fcfs", "priority", "lof", "sif")),
            max_num_batched_tokens=random.choice((8, 40, 500)),
            max_num_seqs=random.choice((4, 16)),
        )
    )


def play(lab: Lab, random: Random) -> None:
    """Arrivals in bursts; some clients leave, mid-step or between two."""
    count = random.randint(3, 20)
    while True:
        while len(lab.handles) < count and random.random() < 0.4:
            lab.submit(
                random.randint(1, 80),
                random.randint(1, 170),
                priority=random.randint(0, 2),
                target=random.choice((None, 7)),
            )
        alive = [h for h in lab.handles if h.state is not RequestState.FINISHED and not h.aborted]
        leaving = [h for h in alive if random.random() < 0.004]
        if random.random() < 0.5:
            for handle in leaving:
                lab.abort(handle)
            leaving = []
        if not lab.step(*leaving) and len(lab.handles) >= count:
            return


class RecordTests(MetricsTestCase):
    """Random workloads with preemptions, leavers and idle replicas."""

    def test_every_figure_is_that_of_the_record(self) -> None:
        preempted = interrupted = left = 0
        for number in range(WORKLOADS):
            random = Random(number)
            lab = random_lab(number, random)
            play(lab, random)
            self.figures_are_those_of_the_record(lab)
            preempted += sum(handle.preemptions for handle in lab.handles)
            interrupted += sum(
                1 for handle in lab.handles if handle.preemptions and handle.produced > 1
            )
            left += sum(handle.aborted for handle in lab.handles)
        # The workloads are what they are meant to be.
        self.assertGreater(preempted, 200)
        self.assertGreater(interrupted, 100)
        self.assertGreater(left, 50)

    def figures_are_those_of_the_record(self, lab: Lab) -> None:
        scrape = lab.scrape()
        times = list(lab.tokens.values())
        begun = [handle for handle in lab.handles if lab.tokens[handle]]
        whole = [handle for handle in lab.handles if handle.finished_at is not None]
        gaps = [b - a for each in times for a, b in pairwise(each)]
        self.near(scrape, "inter_token_latency_seconds", GAP, gaps)
        starts = [handle.scheduled_at or 0.0 for handle in begun]
        firsts = [lab.tokens[handle][0] for handle in begun]
        arrivals = [handle.arrival for handle in begun]
        for name, bounds, values in (
            (
                "time_to_first_token_seconds",
                FIRST_TOKEN,
                [b - a for a, b in zip(arrivals, firsts, strict=True)],
            ),
            (
                "request_queue_time_seconds",
                REQUEST,
                [b - a for a, b in zip(arrivals, starts, strict=True)],
            ),
            (
                "request_prefill_time_seconds",
                REQUEST,
                [b - a for a, b in zip(starts, firsts, strict=True)],
            ),
            (
                "e2e_request_latency_seconds",
                REQUEST,
                [lab.tokens[handle][-1] - handle.arrival for handle in whole],
            ),
            (
                "request_decode_time_seconds",
                REQUEST,
                [lab.tokens[handle][-1] - lab.tokens[handle][0] for handle in whole],
            ),
            ("request_prompt_tokens", LENGTH, [handle.prompt_tokens for handle in whole]),
            ("request_generation_tokens", LENGTH, [handle.target for handle in whole]),
            ("iteration_tokens_total", STEP, lab.steps),
        ):
            limit = lab.deployment.max_model_len
            own = length_buckets(limit) if bounds is LENGTH else bounds
            self.near(scrape, name, own, values)
        for name, value in {
            "prompt_tokens": sum(handle.prompt_tokens for handle in begun),
            "generation_tokens": sum(map(len, times)),
            "num_preemptions": sum(handle.preemptions for handle in lab.handles),
        }.items():
            self.assertEqual(scrape.value(f"vllm:{name}_total"), value, name)
        for reason, count in {
            "abort": sum(handle.aborted for handle in lab.handles),
            "length": sum(handle.target == handle.max_tokens for handle in whole),
            "stop": sum(handle.target < handle.max_tokens for handle in whole),
        }.items():
            self.assertEqual(
                scrape.value("vllm:request_success_total", finished_reason=reason), count
            )
        for name in GAUGES:
            self.assertEqual(scrape.value(f"vllm:{name}"), 0, name)
        for gaps_of in lab.figures._gaps:
            self.assertEqual((gaps_of.interrupted, gaps_of.resumed), ({}, {}), "nothing leaks")

    def near(
        self, scrape: Scrape, name: str, bounds: Sequence[float], values: Sequence[float]
    ) -> None:
        """`holds`, after a check that no value is so near a bound that rounding decides."""
        for value in values:
            if isinstance(value, float):
                at = bisect_left(bounds, value)
                for bound in bounds[max(0, at - 1) : at + 1]:
                    self.assertFalse(isclose(value, bound, rel_tol=1e-12), (name, value))
        self.holds(scrape, name, bounds, values)
