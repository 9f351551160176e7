"""What the scheduler does where requests compete for budget, slots and blocks."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from inference_lab.engine.engine import Engine
from inference_lab.engine.policies import victim
from inference_lab.engine.replica import StepPlan, StepResult
from inference_lab.engine.requests import ContextTooLong, Handle, RequestState, TooLargeForKV
from inference_lab.engine.scheduler import prefill_threshold
from tests.engines import deployment


class Lab:
    """One llama on one b200, and its clock."""

    def __init__(self, **settings: Any) -> None:
        self.engine = Engine(deployment("llama-3.1-8b-instruct", **settings))
        self.replica = self.engine.replicas[0]
        self.now = 0.0
        self.count = 0

    def submit(self, prompt: int, output: int, **options: Any) -> Handle:
        self.count += 1
        options.setdefault("arrival", self.now)
        return self.engine.submit(f"r{self.count}", prompt, output, **options)

    def begin(self) -> StepPlan:
        plan = self.replica.begin_step(self.now)
        assert plan is not None
        return plan

    def step(self) -> StepResult:
        plan = self.begin()
        self.now = plan.end
        return self.replica.commit(plan)

    def chunks(self) -> dict[str, int]:
        """The prompt chunks of the next step, which is then made."""
        plan = self.begin()
        self.now = plan.end
        self.replica.commit(plan)
        return {handle.id: new for handle, new in plan.chunks}

    def order(self) -> list[str]:
        """The ids in the order of their last tokens, when all is done."""
        finished: list[str] = []
        while (plan := self.replica.begin_step(self.now)) is not None:
            self.now = plan.end
            finished += [handle.id for handle, _ in self.replica.commit(plan).finished]
        return finished


class BudgetTests(SynchronousTestCase):
    def test_decodes_come_before_a_chunk_of_a_new_prompt(self) -> None:
        lab = Lab(max_num_batched_tokens=100)
        lab.submit(40, 10)
        lab.step()
        lab.submit(500, 10)
        plan = lab.begin()
        self.assertEqual((plan.n_decode, [new for _, new in plan.chunks]), (1, [99]))
        self.assertEqual(plan.tokens, 100)

    def test_threshold_caps_each_prompt(self) -> None:
        lab = Lab(long_prefill_token_threshold=64)
        lab.submit(100, 1)
        lab.submit(50, 1)
        self.assertEqual(lab.chunks(), {"r1": 64, "r2": 50})
        self.assertEqual(lab.chunks(), {"r1": 36})

    def test_threshold_defaults_to_four_percent_of_the_context(self) -> None:
        several: dict[str, Any] = {"max_num_partial_prefills": 2, "max_model_len": 1010}
        lengths = [
            prefill_threshold(deployment("llama-3.1-8b-instruct", **settings))
            for settings in (
                several,
                {**several, "long_prefill_token_threshold": 7},
                {**several, "max_num_partial_prefills": 1},
                {**several, "enable_chunked_prefill": False},
            )
        ]
        self.assertEqual(lengths, [40, 7, 0, 0])

    def test_without_chunks_a_prompt_waits_for_a_step_that_holds_it(self) -> None:
        lab = Lab(max_num_batched_tokens=100, enable_chunked_prefill=False)
        for prompt in (60, 60, 30):
            lab.submit(prompt, 1)
        # The second does not fit beside the first, and the third stays behind it.
        self.assertEqual(lab.chunks(), {"r1": 60})
        self.assertEqual(lab.chunks(), {"r2": 60, "r3": 30})

    def test_without_chunks_a_prompt_no_step_holds_is_refused(self) -> None:
        lab = Lab(max_num_batched_tokens=100, enable_chunked_prefill=False)
        error = self.assertRaises(ContextTooLong, lab.submit, 101, 1)
        self.assertEqual(error.limit, 100)

    def test_what_is_recomputed_may_be_chunked_where_no_step_would_hold_it(self) -> None:
        lab = Lab(max_num_batched_tokens=32, enable_chunked_prefill=False, blocks=6)
        lab.submit(30, 40)
        second = lab.submit(20, 40)
        while not second.preemptions:
            lab.step()
        self.assertGreater(second.prefill_length, 32)
        self.assertEqual(lab.order(), ["r1", "r2"])

    def test_slots_are_bounded(self) -> None:
        lab = Lab(max_num_seqs=2)
        handles = [lab.submit(10, 2) for _ in range(3)]
        lab.step()
        self.assertEqual(lab.engine.stats().running, 2)
        self.assertIs(handles[2].state, RequestState.WAITING)
        lab.step()
        lab.step()
        self.assertEqual(handles[2].produced, 1)


class PolicyTests(SynchronousTestCase):
    def admitted(self, policy: str, *requests: tuple[int, int, int]) -> list[str]:
        """Order of completion of (prompt, output, priority) one at a time."""
        lab = Lab(policy=policy, max_num_seqs=1)
        for prompt, output, priority in requests:
            lab.submit(prompt, output, priority=priority)
        return lab.order()

    def test_admission(self) -> None:
        requests = [(30, 9, 1), (20, 5, 0), (90, 1, 2), (20, 5, 0)]
        for policy, expected in {
            "fcfs": ["r1", "r2", "r3", "r4"],
            "priority": ["r2", "r4", "r1", "r3"],
            "sif": ["r2", "r4", "r1", "r3"],
            "lif": ["r3", "r1", "r4", "r2"],
            "sof": ["r3", "r2", "r4", "r1"],
            "lof": ["r1", "r4", "r2", "r3"],
            "stf": ["r2", "r4", "r1", "r3"],
            "ltf": ["r3", "r1", "r4", "r2"],
        }.items():
            self.assertEqual(self.admitted(policy, *requests), expected, policy)

    def test_length_policies_do_not_peek_at_the_target(self) -> None:
        lab = Lab(policy="sof", max_num_seqs=1)
        lab.submit(10, 50, target=1)
        lab.submit(10, 20)
        self.assertEqual(lab.order(), ["r2", "r1"])

    def test_victims(self) -> None:
        lab = Lab()
        one = lab.submit(50, 10, priority=1)
        two = lab.submit(20, 90, priority=1, arrival=-1.0)
        three = lab.submit(50, 20, priority=0)
        for policy, expected in {
            "fcfs": three,
            "priority": one,
            "sif": three,
            "lif": three,
            "sof": two,
            "stf": two,
        }.items():
            self.assertIs(victim(policy, [one, two, three]), expected, policy)


class PreemptionTests(SynchronousTestCase):
    def test_important_request_takes_the_place_of_one_already_served(self) -> None:
        lab = Lab(policy="priority", blocks=4)
        low = lab.submit(32, 20, priority=5)
        lab.step()
        high = lab.submit(15, 20, priority=0)
        lab.step()  # low takes its third block, high the fourth
        self.assertEqual((high.produced, low.produced), (1, 2))
        lab.step()  # 16 positions
        result = lab.step()  # high needs a second block, and low was served before it
        self.assertEqual(result.preempted, [low])
        self.assertEqual((high.produced, low.produced), (3, 3))
        self.assertEqual(result.decoded, 1)
        self.assertEqual(lab.order(), ["r2", "r1"])

    def test_what_a_served_victim_had_in_the_pass_is_given_back(self) -> None:
        lab = Lab(policy="priority", blocks=6, max_num_batched_tokens=16)
        low = lab.submit(46, 20, priority=5)
        for _ in range(3):
            lab.step()
        high = lab.submit(15, 20, priority=0)
        lab.step()
        lab.submit(32, 1, priority=1)
        self.assertEqual(lab.chunks(), {"r3": 14})
        # Now low takes the last block, high wants one more, and r3 all budget there is.
        plan = lab.begin()
        self.assertEqual(plan.preempted, [low])
        self.assertEqual((plan.n_decode, plan.tokens), (1, 16))
        self.assertEqual([new for _, new in plan.chunks], [15])
        lab.now = plan.end
        lab.replica.commit(plan)
        self.assertEqual(high.produced, 3)
        self.assertEqual(sorted(lab.order()), ["r1", "r2", "r3"])
        self.assertEqual(lab.engine.stats().kv_usage, 0.0)

    def test_preempted_request_loses_no_token_and_repeats_none(self) -> None:
        lab = Lab(blocks=16)
        lab.submit(120, 20)
        second = lab.submit(120, 20)
        tokens = []
        while (plan := lab.replica.begin_step(lab.now)) is not None:
            lab.now = plan.end
            lab.replica.commit(plan)
            tokens.append(second.produced)
        self.assertEqual(second.preemptions, 1)
        self.assertEqual(sorted(set(tokens)), list(range(1, 21)))
        self.assertEqual(tokens, sorted(tokens))

    def test_no_admission_beside_a_preemption(self) -> None:
        lab = Lab(blocks=16)
        lab.submit(120, 20)
        lab.submit(120, 20)
        while not lab.engine.stats().preemptions:
            late = lab.submit(8, 1)
            lab.engine.abort(late)
            late = lab.submit(8, 1)
            plan = lab.begin()
            lab.now = plan.end
            lab.replica.commit(plan)
            if not plan.preempted:
                lab.engine.abort(late)
        self.assertEqual(plan.chunks, [])

    def test_admission_waits_for_room_for_the_whole_prompt(self) -> None:
        lab = Lab(blocks=10, max_num_batched_tokens=64)
        lab.submit(60, 40)
        lab.step()
        lab.submit(120, 5)
        self.assertEqual(lab.chunks(), {})

    def test_preemption_free_admits_only_what_is_sure_to_finish(self) -> None:
        lab = Lab(blocks=20, enable_preemption_free=True)
        for _ in range(3):
            lab.submit(60, 68)  # 8 blocks in the end, 4 at first
        lab.step()
        self.assertEqual(lab.engine.stats().running, 2)
        self.assertEqual(lab.order(), ["r1", "r2", "r3"])
        self.assertEqual(lab.engine.stats().preemptions, 0)

    def test_preemption_free_refuses_by_what_was_asked_for(self) -> None:
        lab = Lab(blocks=20, enable_preemption_free=True)
        error = self.assertRaises(TooLargeForKV, lab.submit, 60, 300, target=5)
        self.assertEqual((error.needed, error.total), (23, 20))


class PrefixCacheTests(SynchronousTestCase):
    def test_a_repeated_prompt_is_cheaper(self) -> None:
        lab = Lab()
        hashes = tuple(range(62))
        cold = lab.submit(1000, 1, block_hashes=hashes)
        lab.step()
        warm = lab.submit(1000, 1, block_hashes=hashes)
        self.assertEqual(lab.chunks(), {"r2": 8})
        self.assertEqual((cold.cached_tokens, warm.cached_tokens), (0, 992))
        stats = lab.engine.stats()
        self.assertEqual((stats.prefix_queries, stats.prefix_hits), (2000, 992))

    def test_cached_tokens_are_those_of_the_first_admission(self) -> None:
        lab = Lab(blocks=16)
        lab.submit(120, 20)
        second = lab.submit(120, 20, block_hashes=range(100, 107))
        lab.order()
        self.assertEqual((second.preemptions, second.cached_tokens), (1, 0))
        self.assertGreater(lab.engine.stats().prefix_hits, 0)

    def test_cascade_reads_a_common_prefix_once(self) -> None:
        ends = []
        for cascade in (False, True):
            lab = Lab(enable_cascade_attention=cascade)
            for index in range(2):
                lab.submit(1600, 3, block_hashes=(*range(90), *range(index * 100, index * 100 + 9)))
            lab.step()
            start = lab.now
            lab.step()
            ends.append(lab.now - start)
        saved = 90 * 16 * 131072 / 8e12
        self.assertAlmostEqual(ends[0] - ends[1], saved, places=12)
