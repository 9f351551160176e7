"""`inference_lab.content.lengths` and `.workload`: how long answers are."""

from __future__ import annotations

import math
from statistics import fmean, stdev

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.content.draws import Draws
from inference_lab.content.lengths import OutputLengths, draw_length
from inference_lab.content.prompt import text_prompt
from inference_lab.content.text import answer, rotation
from inference_lab.content.tokens import PieceTokenizer
from inference_lab.content.workload import (
    Fixed,
    LengthDistribution,
    LogNormal,
    Normal,
    Trace,
    Uniform,
    Workload,
    WorkloadError,
    load_workload,
    parse_workload,
)

LENGTHS = """
[input_len_dist]
type = "lognormal"
mean = 6
std_dev = 0.5

[output_len_dist]
type = "uniform"
min = 3
max = 9
"""
QUICK = 'arrival_pattern = "poisson"\nseed = 42\n' + LENGTHS

small = st.floats(-3, 3)
distributions: st.SearchStrategy[LengthDistribution] = st.one_of(
    st.builds(lambda value: Fixed(value=value), st.integers(0, 2**32 - 1)),
    st.builds(lambda a, b: Uniform(min=a, max=a + b), st.integers(0, 99), st.integers(0, 99)),
    st.builds(lambda a, b: Normal(mean=a, std_dev=b), st.floats(-99, 99), st.floats(0, 99)),
    st.builds(lambda a, b: LogNormal(mean=a, std_dev=b), st.floats(-9, 1e6), st.floats(0, 1e3)),
)


def drawn(distribution: LengthDistribution, count: int = 4000) -> list[int]:
    lengths = OutputLengths(distribution, 42)
    return [lengths.length(f"prompt {number}") for number in range(count)]


class LengthTests(SynchronousTestCase):
    @given(distributions, st.integers())
    def test_any_length_is_one_that_can_be_said(
        self, distribution: LengthDistribution, seed: int
    ) -> None:
        length = draw_length(distribution, Draws(seed))
        self.assertIsInstance(length, int)
        self.assertTrue(1 <= length <= 2**26)

    def test_fixed(self) -> None:
        self.assertEqual(set(drawn(Fixed(value=7), 9)), {7})
        self.assertEqual(set(drawn(Fixed(value=0), 9)), {1})

    def test_uniform(self) -> None:
        found = drawn(Uniform(min=3, max=6))
        for length in (3, 4, 5, 6):
            self.assertTrue(900 < found.count(length) < 1100, found.count(length))
        self.assertEqual(len(found), sum(map(found.count, (3, 4, 5, 6))))

    def test_normal(self) -> None:
        found = drawn(Normal(mean=200, std_dev=20))
        # Truncation takes half a token on average; 4000 draws leave a standard error of 0.32.
        self.assertTrue(abs(fmean(found) - 199.5) < 1.5, fmean(found))
        self.assertTrue(abs(stdev(found) - 20) < 1, stdev(found))
        self.assertEqual(min(drawn(Normal(mean=-50, std_dev=1), 99)), 1)

    def test_lognormal(self) -> None:
        logs = [math.log(length + 0.5) for length in drawn(LogNormal(mean=5, std_dev=0.5))]
        self.assertTrue(abs(fmean(logs) - 5) < 0.03, fmean(logs))
        self.assertTrue(abs(stdev(logs) - 0.5) < 0.03, stdev(logs))

    @given(st.text(max_size=20), st.none() | st.integers(0, 99), st.integers(1, 40))
    def test_every_leg_has_the_same_length(self, prompt: str, seed: int | None, k: int) -> None:
        lengths = OutputLengths.of(parse_workload(QUICK.encode(), "x"))
        ours = PieceTokenizer()
        first = text_prompt(prompt, ours, seed)
        leg = text_prompt(prompt + answer(0, k, rotation(seed)), ours, seed)
        self.assertEqual(lengths.length(leg.key, seed), lengths.length(first.key, seed))

    def test_all_that_counts_makes_a_difference(self) -> None:
        wide = Uniform(min=1, max=2**26)
        found = {
            OutputLengths(wide, 1).length("a", 1),
            OutputLengths(wide, 2).length("a", 1),
            OutputLengths(wide, 1).length("a", 2),
            OutputLengths(wide, 1).length("a", None),
            OutputLengths(wide, 1).length("b", 1),
        }
        self.assertEqual(len(found), 5)

    def test_lengths_stay_the_same_over_versions(self) -> None:
        normal = OutputLengths(Normal(mean=100, std_dev=30), 42)
        self.assertEqual([normal.length(key, 7) for key in "abc"], [64, 118, 113])


class WorkloadTests(SynchronousTestCase):
    def refused(self, text: str | bytes, *parts: str) -> None:
        data = text if isinstance(text, bytes) else text.encode()
        with self.assertRaises(WorkloadError, msg=text) as caught:
            parse_workload(data, "w.toml")
        line = str(caught.exception)
        self.assertTrue(line.isprintable(), line)
        for part in ("w.toml: ", *parts):
            self.assertIn(part, line)

    def test_the_least(self) -> None:
        workload = parse_workload(QUICK.encode(), "w.toml")
        self.assertEqual(workload.output_len_dist, Uniform(min=3, max=9))
        self.assertEqual(workload.input_len_dist, LogNormal(mean=6, std_dev=0.5))
        self.assertEqual((workload.seed, workload.arrival_rate), (42, 1.0))

    def test_everything(self) -> None:
        whole = """
            arrival_pattern = "closed_loop"
            arrival_rate = 5
            num_requests = 10
            num_concurrent_users = 4
            closed_loop_jitter_secs = 0.5
            duration_secs = 60
            seed = 18446744073709551615
            dataset_path = "d.jsonl"
            sessions_path = "s.jsonl"
            num_sessions = 3
            stationary_start_sessions = true
            resample_sessions = false
            rate_schedule = { type = "trace", points = [[0, 1], [10, 2.5]] }
        """
        workload = parse_workload((whole + LENGTHS).encode(), "w.toml")
        self.assertEqual(workload.rate_schedule, Trace(points=[(0, 1), (10, 2.5)]))
        for schedule in (
            '{ type = "sine", min = 1, max = 2, period_secs = 60 }',
            '{ type = "square", low = 1, high = 2, period_secs = 60, duty = 0.5 }',
        ):
            parse_workload(f"rate_schedule = {schedule}\n{QUICK}".encode(), "w.toml")
        for pattern in ("uniform", "fixed_rate", "burst", "batched"):
            workload = parse_workload(QUICK.replace("poisson", pattern).encode(), "w.toml")
            self.assertEqual(workload.arrival_pattern, pattern)

    def test_one_line_that_names_file_table_and_key(self) -> None:
        bad = QUICK.replace
        self.refused(bad("seed = 42", ""), "seed: this key is required")
        self.refused(bad("seed = 42", "seed = -1"), "seed: ", ">= 0")
        self.refused(bad("seed = 42", 'seed = "x"'), "seed: expected int, got str")
        self.refused(bad('"poisson"', '"gamma"'), "arrival_pattern: ", "poisson, uniform")
        self.refused("sed = 1\n" + QUICK, "sed: unknown key; known are ", "seed")
        self.refused(bad("min = 3", ""), "[output_len_dist] min: this key is required")
        self.refused(bad("min = 3", "min = 10"), "[output_len_dist] min: ", "at most max (9)")
        self.refused(bad("min = 3", "min = 3\nmode = 1"), "[output_len_dist] mode: ", "min, type")
        self.refused(bad("min = 3", "min = 3.5"), "[output_len_dist] min: expected int, got float")
        self.refused(bad('"uniform"', '"zipf"'), "[output_len_dist] type: ", "fixed, uniform")
        self.refused(bad('type = "uniform"', ""), "[output_len_dist] type: ", "lognormal")
        self.refused(bad('type = "uniform"', "type = 3"), "[output_len_dist] type: ", "fixed")
        self.refused(bad("mean = 6", "mean = nan"), "[input_len_dist] mean: ", "finite")
        self.refused(bad("std_dev = 0.5", "std_dev = -1"), "[input_len_dist] std_dev: ", ">= 0")
        self.refused("output_len_dist = 5\n" + bad("[output_len_dist]", "[x]"), "[output_len_dist]")
        self.refused("arrival_rate = 0\n" + QUICK, "arrival_rate: ", "> 0")
        self.refused("arrival_rate = inf\n" + QUICK, "arrival_rate: ", "finite")
        schedule = 'rate_schedule = { type = "trace", points = [[2, 1], [1, 1]] }\n'
        self.refused(schedule + QUICK, "[rate_schedule] points: ", "in order")
        self.refused(schedule.replace("trace", "saw") + QUICK, "[rate_schedule] type: ", "sine")
        self.refused("a = [\n", "not TOML")
        self.refused(b"a = '\xff'", "not TOML", "UTF-8")
        self.refused("'a\\n`b' = 1\n" + QUICK, "unknown key")

    def test_a_file(self) -> None:
        with self.assertRaises(WorkloadError) as caught:
            load_workload("absent/w.toml")
        self.assertEqual(str(caught.exception), "absent/w.toml: No such file or directory")

    def test_a_workload_is_immutable(self) -> None:
        workload = parse_workload(QUICK.encode(), "w.toml")
        self.assertIsInstance(workload, Workload)
        with self.assertRaises(AttributeError):
            workload.seed = 3  # type: ignore[misc]
