"""What a server has done, as Prometheus scrapes it.

Names, labels and buckets of the engine's figures are vLLM's, so that a dashboard
made for vLLM fits; all their times are in the engine's seconds. What is ours
alone is called ``inference_lab_*``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import define, field
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from inference_lab.engine.engine import Engine
from inference_lab.engine.replica import Replica, Stats, StepPlan, StepResult
from inference_lab.engine.requests import Handle

FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
"""Seconds."""

GAP_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
"""Seconds between two tokens of one request."""

REQUEST_BUCKETS = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60,
    120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
"""Seconds of a request, or of one of its phases."""

STEP_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""New positions of one step."""


def length_buckets(limit: int) -> tuple[int, ...]:
    """1, 2, 5, 10, ... tokens, as far as ``limit``."""
    buckets: list[int] = []
    power = 1
    while power <= limit:
        buckets += [digit * power for digit in (1, 2, 5) if digit * power <= limit]
        power *= 10
    return tuple(buckets)


class Histogram:
    """Counts per bucket that can take the same value many times at once."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value`` in, ``times`` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def family(self, name: str, documentation: str, model: str) -> HistogramMetricFamily:
        """As Prometheus has it: cumulative, up to infinity."""
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), total))
        family = HistogramMetricFamily(name, documentation, labels=["model_name"])
        family.add_metric([model], buckets, self._sum)
        return family


@define
class _Gaps:
    """The times between two tokens of one request, on one replica.

    In a step all who decode get a token, and nearly all had their last one when
    it began: they are counted together. Only those whose answer was interrupted
    are looked at one by one.
    """

    histogram: Histogram
    interrupted: dict[Handle, float] = field(factory=dict)
    resumed: dict[Handle, float] = field(factory=dict)

    def stepped(self, plan: StepPlan, result: StepResult) -> None:
        """Count the gaps that a step has closed."""
        finished = {handle for handle, _ in result.finished}
        for handle in result.left:
            if handle in finished:
                continue
            since = self.resumed.pop(handle) if handle in self.resumed else plan.start
            if not handle.aborted:
                self.interrupted[handle] = since
        for since in self.resumed.values():
            self.histogram.observe(plan.end - since)
        if together := result.decoded - len(self.resumed):
            self.histogram.observe(plan.end - plan.start, together)
        self.resumed.clear()
        for handle in result.joined:
            if handle in self.interrupted:
                self.resumed[handle] = self.interrupted.pop(handle)

    def aborted(self, handle: Handle) -> None:
        """A request that was interrupted never goes on."""
        self.interrupted.pop(handle, None)


class DeploymentMetrics(Collector):
    """The figures of one model; the `Observer` of its driver."""

    def __init__(self, model: str, engine: Engine) -> None:
        lengths = length_buckets(engine.deployment.max_model_len)
        self._model = model
        self._engine = engine
        self._first_token = Histogram(FIRST_TOKEN_BUCKETS)
        self._gap = Histogram(GAP_BUCKETS)
        self._gaps = [_Gaps(self._gap) for _ in engine.replicas]
        self._whole = Histogram(REQUEST_BUCKETS)
        self._queue = Histogram(REQUEST_BUCKETS)
        self._prefill = Histogram(REQUEST_BUCKETS)
        self._decode = Histogram(REQUEST_BUCKETS)
        self._prompt = Histogram(lengths)
        self._generation = Histogram(lengths)
        self._step = Histogram(STEP_BUCKETS)
        self._ended = {"stop": 0, "length": 0, "abort": 0}
        self._slips = 0
        self._slipped_seconds = 0.0

    # -- the driver's side -------------------------------------------------

    def stepped(self, replica: Replica, plan: StepPlan, result: StepResult) -> None:
        """A step has ended."""
        self._step.observe(plan.tokens)
        if result.decoded or result.left or result.joined:
            self._gaps[replica.index].stepped(plan, result)
        for handle in result.first:
            assert handle.first_token_at is not None
            assert handle.scheduled_at is not None
            self._first_token.observe(handle.first_token_at - _arrival(handle))
            self._queue.observe(handle.scheduled_at - _arrival(handle))
            self._prefill.observe(handle.first_token_at - handle.scheduled_at)

    def finished(self, handle: Handle, reason: str) -> None:
        """An answer is complete."""
        assert handle.finished_at is not None
        assert handle.first_token_at is not None
        self._ended[reason] += 1
        self._whole.observe(handle.finished_at - _arrival(handle))
        self._decode.observe(handle.finished_at - handle.first_token_at)
        self._prompt.observe(handle.prompt_tokens)
        self._generation.observe(handle.produced)

    def aborted(self, handle: Handle) -> None:
        """A client left before its answer was complete."""
        self._ended["abort"] += 1
        self._gaps[handle.replica].aborted(handle)

    def slipped(self, seconds: float) -> None:
        """Pacing was given up for so many wall seconds."""
        self._slips += 1
        self._slipped_seconds += seconds

    # -- Prometheus' side --------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Everything, as of now."""
        stats = self._engine.stats()
        yield from self._gauges(stats)
        yield from self._counters(stats)
        for name, documentation, histogram in (
            ("time_to_first_token_seconds", "From arrival to the first token.", self._first_token),
            ("inter_token_latency_seconds", "Between two tokens of a request.", self._gap),
            ("e2e_request_latency_seconds", "From arrival to the last token.", self._whole),
            ("request_queue_time_seconds", "From arrival to the first step.", self._queue),
            ("request_prefill_time_seconds", "First step to first token.", self._prefill),
            ("request_decode_time_seconds", "From the first token to the last.", self._decode),
            ("request_prompt_tokens", "Prompt tokens of a request.", self._prompt),
            ("request_generation_tokens", "Generated tokens of a request.", self._generation),
            ("iteration_tokens_total", "New positions of a step.", self._step),
        ):
            yield histogram.family(f"vllm:{name}", documentation, self._model)

    def _gauges(self, stats: Stats) -> Iterator[Metric]:
        for name, documentation, value in (
            ("num_requests_running", "Requests on the GPU.", stats.running),
            ("num_requests_waiting", "Requests in the queue.", stats.waiting),
            ("kv_cache_usage_perc", "Share of KV blocks in use; 1 is all.", stats.kv_usage),
        ):
            gauge = GaugeMetricFamily(f"vllm:{name}", documentation, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge

    def _counters(self, stats: Stats) -> Iterator[Metric]:
        for name, documentation, value in (
            ("vllm:prompt_tokens", "Prompt tokens prefilled.", stats.prompt_tokens),
            ("vllm:generation_tokens", "Tokens generated.", stats.generation_tokens),
            ("vllm:num_preemptions", "Preemptions.", stats.preemptions),
            ("vllm:prefix_cache_queries", "Prompt tokens looked up.", stats.prefix_queries),
            ("vllm:prefix_cache_hits", "Prompt tokens found cached.", stats.prefix_hits),
            ("inference_lab_steps", "Engine steps.", stats.steps),
            ("inference_lab_pacing_slips", "Times that pacing was given up.", self._slips),
            (
                "inference_lab_pacing_slipped_seconds",
                "Wall time by which everything came later.",
                self._slipped_seconds,
            ),
        ):
            counter = CounterMetricFamily(name, documentation, labels=["model_name"])
            counter.add_metric([self._model], value)
            yield counter
        ended = CounterMetricFamily(
            "vllm:request_success",
            "Requests that ended, by reason.",
            labels=["model_name", "finished_reason"],
        )
        for reason, count in self._ended.items():
            ended.add_metric([self._model, reason], count)
        yield ended


def _arrival(handle: Handle) -> float:
    """When the request came, in the engine's time.

    When the engine is late, wall time is ahead of the step that takes a request in:
    for the engine it came when that step began.
    """
    assert handle.scheduled_at is not None
    return min(handle.arrival, handle.scheduled_at)


class _Deployments(Collector):
    """Joins the families of all models: each name may be exposed once."""

    def __init__(self, deployments: Iterable[DeploymentMetrics]) -> None:
        self._deployments = tuple(deployments)

    def collect(self) -> Iterator[Metric]:
        """One family a name, a sample a model."""
        families: dict[str, Metric] = {}
        for deployment in self._deployments:
            for family in deployment.collect():
                joined = families.setdefault(family.name, family)
                if joined is not family:
                    joined.samples += family.samples
        yield from families.values()


class Metrics:
    """The figures of one server."""

    def __init__(self, deployments: Iterable[DeploymentMetrics] = ()) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Deployments(deployments))
        self._open = Gauge(
            "inference_lab_open_streams", "Event streams that are open.", registry=self._registry
        )
        self._faults = Counter(
            "inference_lab_faults",
            "Faults played, by mode and by how the connection ended.",
            ["mode", "end"],
            registry=self._registry,
        )
        self._undelivered = Counter(
            "inference_lab_drain_timeouts",
            "Deaths whose reader took nothing for the drain timeout.",
            registry=self._registry,
        )

    def watch_streams(self, count: Callable[[], int]) -> None:
        """Ask ``count`` how many streams are open whenever that is scraped."""
        self._open.set_function(count)

    def fault_ended(self, mode: str, end: str) -> None:
        """A fault has been played to its end."""
        self._faults.labels(mode, end).inc()

    def undelivered(self) -> None:
        """A death came before all of its bytes had arrived."""
        self._undelivered.inc()

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)
