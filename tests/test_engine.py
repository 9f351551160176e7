"""The engine's door: who is let in, what a driver gets told, and how requests leave."""

from __future__ import annotations

import ast
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import inference_lab.engine
from inference_lab.configuration.schema import LeastLoaded, PrefixAffinity, RoundRobin
from inference_lab.engine.engine import Engine
from inference_lab.engine.replica import Replica
from inference_lab.engine.requests import (
    ContextTooLong,
    Handle,
    QueueFull,
    RequestState,
    TooLargeForKV,
)
from tests.engines import deployment
from tests.test_scheduler import Lab

LLAMA = "llama-3.1-8b-instruct"


def drain(replica: Replica, now: float = 0.0) -> float:
    """Step until there is no work; the end of the last step."""
    while (plan := replica.begin_step(now)) is not None:
        replica.commit(plan)
        now = plan.end
    return now


class SubmitTests(SynchronousTestCase):
    def test_context_length(self) -> None:
        engine = Engine(deployment(LLAMA, max_model_len=100))
        engine.submit("fits", 60, 40, arrival=0.0)
        for prompt, output in ((60, 41), (100, 1), (200, 1)):
            error = self.assertRaises(
                ContextTooLong, engine.submit, "", prompt, output, arrival=0.0
            )
            self.assertEqual(
                (error.prompt_tokens, error.max_tokens, error.limit), (prompt, output, 100)
            )
        self.assertEqual(engine.stats().waiting, 1)

    def test_larger_than_the_cache(self) -> None:
        engine = Engine(deployment(LLAMA, blocks=16))
        error = self.assertRaises(TooLargeForKV, engine.submit, "", 250, 10, arrival=0.0)
        self.assertEqual((error.needed, error.total), (17, 16))
        # By what it will compute: its last token is never fed back.
        engine.submit("", 247, 10, arrival=0.0)

    def test_queue_is_bounded(self) -> None:
        engine = Engine(deployment(LLAMA, max_num_seqs=1), max_waiting=2)
        engine.submit("runs", 10, 5, arrival=0.0)
        plan = engine.replicas[0].begin_step(0.0)
        assert plan is not None
        engine.submit("waits", 10, 5, arrival=0.0)
        last = engine.submit("waits", 10, 5, arrival=0.0)
        error = self.assertRaises(QueueFull, engine.submit, "", 10, 5, arrival=0.0)
        self.assertEqual(error.limit, 2)
        engine.abort(last)
        engine.submit("waits", 10, 5, arrival=0.0)

    def test_an_empty_prompt_is_a_mistake(self) -> None:
        self.assertRaises(ValueError, Engine(deployment(LLAMA)).submit, "", 0, 5, arrival=0.0)

    def test_target_is_clamped(self) -> None:
        engine = Engine(deployment(LLAMA))
        handles = [
            engine.submit("", 10, most, target=target, arrival=0.0)
            for most, target in ((5, None), (5, 3), (5, 9), (5, 0), (0, None))
        ]
        self.assertEqual([handle.target for handle in handles], [5, 3, 5, 1, 1])
        self.assertEqual(
            [handle.finish_reason for handle in handles],
            ["length", "stop", "length", "stop", "length"],
        )

    def test_hardware_that_cannot_run_the_model(self) -> None:
        impossible = deployment("gpt-oss-120b", tp=4, hardware="h100")
        self.assertRaises(ValueError, Engine, impossible)


class LifeTests(SynchronousTestCase):
    def test_states_and_times(self) -> None:
        lab = Lab(max_num_batched_tokens=100)
        handle = lab.submit(150, 3, arrival=-0.5)
        states = [handle.state]
        ends = []
        for _ in range(4):
            lab.step()
            states.append(handle.state)
            ends.append(lab.now)
        self.assertEqual(
            [state.value for state in states],
            ["waiting", "prefill", "decode", "decode", "finished"],
        )
        self.assertEqual(handle.arrival, -0.5)
        self.assertEqual(handle.scheduled_at, 0.0)
        self.assertEqual(handle.first_token_at, ends[1])
        self.assertEqual(handle.finished_at, ends[3])
        self.assertIsNone(lab.replica.begin_step(lab.now))

    def test_result_tells_who_begins_decodes_and_finishes(self) -> None:
        lab = Lab()
        long, short = lab.submit(10, 3), lab.submit(10, 1)
        result = lab.step()
        self.assertEqual(result.first, [long, short])
        self.assertEqual(result.finished, [(short, "length")])
        self.assertEqual((result.decoded, result.joined, result.left), (0, [long], []))
        members = result.members
        self.assertEqual(list(members), [long])
        result = lab.step()
        self.assertEqual((result.first, result.decoded, result.joined), ([], 1, []))
        result = lab.step()
        self.assertEqual((result.decoded, result.left), (1, [long]))
        self.assertEqual(result.finished, [(long, "length")])
        self.assertEqual(list(members), [])
        self.assertEqual((long.produced, short.produced), (3, 1))

    def test_produced_moves_with_the_commit(self) -> None:
        lab = Lab()
        handle = lab.submit(10, 10)
        seen = []
        for _ in range(4):
            plan = lab.begin()
            seen.append(handle.produced)
            lab.now = plan.end
            lab.replica.commit(plan)
        self.assertEqual(seen, [0, 1, 2, 3])
        self.assertEqual(handle.produced, 4)

    def test_one_step_at_a_time(self) -> None:
        lab = Lab()
        lab.submit(10, 10)
        plan = lab.begin()
        self.assertTrue(lab.replica.stepping)
        self.assertRaises(RuntimeError, lab.replica.begin_step, 0.0)
        lab.replica.commit(plan)
        self.assertFalse(lab.replica.stepping)
        self.assertRaises(RuntimeError, lab.replica.commit, plan)

    def test_stats(self) -> None:
        lab = Lab(blocks=16, max_num_seqs=1)
        lab.submit(100, 3)
        lab.submit(50, 1)
        lab.step()
        stats = lab.engine.stats()
        self.assertEqual((stats.running, stats.waiting), (1, 1))
        self.assertEqual(stats.kv_usage, 7 / 16)
        self.assertEqual((stats.prompt_tokens, stats.generation_tokens), (100, 1))
        self.assertEqual((stats.iteration_tokens, stats.steps), (100, 1))
        drain(lab.replica, lab.now)
        stats = lab.engine.stats()
        self.assertEqual((stats.running, stats.waiting, stats.kv_usage), (0, 0, 0.0))
        self.assertEqual((stats.prompt_tokens, stats.generation_tokens), (150, 4))
        self.assertEqual((stats.iteration_tokens, stats.steps), (152, 4))


class AbortTests(SynchronousTestCase):
    def gone(self, lab: Lab, handle: Handle) -> None:
        produced = handle.produced
        self.assertTrue(lab.engine.abort(handle))
        self.assertFalse(lab.engine.abort(handle))
        self.assertIs(handle.state, RequestState.FINISHED)
        stats = lab.engine.stats()
        self.assertEqual((stats.running, stats.waiting, stats.kv_usage), (0, 0, 0.0))
        self.assertEqual(stats.aborted, 1)
        self.assertEqual(lab.replica.queued_prefill_tokens, 0)
        drain(lab.replica, lab.now)
        self.assertEqual(handle.produced, produced)
        self.assertIsNone(handle.finished_at)

    def test_waiting(self) -> None:
        lab = Lab()
        self.gone(lab, lab.submit(100, 10))

    def test_between_chunks(self) -> None:
        lab = Lab(max_num_batched_tokens=64)
        handle = lab.submit(100, 10)
        lab.step()
        self.gone(lab, handle)

    def test_decoding(self) -> None:
        lab = Lab()
        handle = lab.submit(100, 10)
        lab.step()
        lab.step()
        self.gone(lab, handle)

    def test_in_the_middle_of_a_step(self) -> None:
        for steps_before in (0, 1, 2):
            lab = Lab(max_num_batched_tokens=64)
            handle = lab.submit(100, 2)
            for _ in range(steps_before):
                lab.step()
            plan = lab.begin()
            before = handle.produced
            lab.engine.abort(handle)
            self.assertEqual(lab.engine.stats().kv_usage, 0.0)
            result = lab.replica.commit(plan)
            self.assertEqual((result.first, result.finished, result.decoded), ([], [], 0))
            self.assertEqual(handle.produced, before)
            self.assertIsNone(lab.replica.begin_step(plan.end))

    def test_others_go_on(self) -> None:
        lab = Lab()
        stays, goes = lab.submit(100, 5), lab.submit(100, 5)
        lab.step()
        lab.engine.abort(goes)
        self.assertEqual(lab.step().left, [goes])
        self.assertEqual(lab.order(), [stays.id])

    def test_a_finished_request_cannot_be_aborted(self) -> None:
        lab = Lab()
        handle = lab.submit(10, 1)
        lab.step()
        self.assertFalse(lab.engine.abort(handle))
        self.assertEqual(lab.engine.stats().aborted, 0)

    def test_a_thousand_waiting_requests_may_leave_in_any_order(self) -> None:
        lab = Lab(max_num_seqs=1)
        handles = [lab.submit(10, 1) for _ in range(1000)]
        for handle in handles[::3] + handles[1::3]:
            lab.engine.abort(handle)
        self.assertEqual(lab.order(), [handle.id for handle in handles[2::3]])


class ReplicaTests(SynchronousTestCase):
    def test_replicas_work_side_by_side(self) -> None:
        engine = Engine(deployment(LLAMA, replicas=2, router=RoundRobin()))
        handles = [engine.submit("", 100, 3, arrival=0.0) for _ in range(4)]
        self.assertEqual([handle.replica for handle in handles], [0, 1, 0, 1])
        ends = {drain(replica) for replica in engine.replicas}
        self.assertEqual(len(ends), 1)
        self.assertEqual(engine.stats().generation_tokens, 12)
        self.assertEqual(engine.stats().kv_blocks, 2 * engine.replicas[0].stats().kv_blocks)

    def test_least_loaded_sees_what_is_there(self) -> None:
        engine = Engine(deployment(LLAMA, replicas=2, router=LeastLoaded()))
        first = engine.submit("", 100, 50, arrival=0.0)
        self.assertEqual(engine.submit("", 100, 1, arrival=0.0).replica, 1)
        drain(engine.replicas[1])
        engine.abort(first)
        self.assertEqual(engine.submit("", 100, 1, arrival=0.0).replica, 0)

    def test_affinity_follows_the_prefix(self) -> None:
        engine = Engine(deployment(LLAMA, replicas=3, router=PrefixAffinity()))
        engine.submit("", 100, 1, arrival=0.0)
        holder = engine.submit("", 100, 1, block_hashes=(1, 2, 3), arrival=0.0)
        self.assertEqual(holder.replica, 1)
        drain(engine.replicas[1])
        again = engine.submit("", 100, 1, block_hashes=(1, 2, 9), arrival=0.0)
        drain(engine.replicas[1])
        self.assertEqual((again.replica, again.cached_tokens), (1, 32))

    def test_data_parallel_ranks_share_a_step_and_not_a_cache(self) -> None:
        engine = Engine(deployment("kimi-k2.6", tp=8, dp_attention=True, blocks=100))
        self.assertEqual(engine.kv_capacity_tokens, 8 * 100 * 16)
        handles = [engine.submit("", 100, 3, arrival=0.0) for _ in range(9)]
        self.assertEqual([handle.rank for handle in handles], [0, 1, 2, 3, 4, 5, 6, 7, 0])
        plan = engine.replicas[0].begin_step(0.0)
        assert plan is not None
        self.assertEqual((plan.tokens, len(plan.chunks)), (900, 9))
        self.assertEqual([rank.kv.free for rank in engine.replicas[0].ranks], [86] + [93] * 7)
        result = engine.replicas[0].commit(plan)
        self.assertEqual(set(result.members), set(handles))
        plan = engine.replicas[0].begin_step(plan.end)
        assert plan is not None
        self.assertEqual(plan.n_decode, 9)
        self.assertEqual(engine.replicas[0].commit(plan).decoded, 9)

    def test_capacity_in_tokens(self) -> None:
        self.assertEqual(Engine(deployment(LLAMA, blocks=50)).kv_capacity_tokens, 800)


class PurityTests(SynchronousTestCase):
    def test_imports_neither_twisted_nor_a_clock(self) -> None:
        folder = Path(inference_lab.engine.__file__).parent
        modules = sorted(folder.glob("*.py"))
        self.assertGreater(len(modules), 5)
        for path in modules:
            for node in ast.walk(ast.parse(path.read_text())):
                names: list[str] = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    names = [node.module or ""]
                for name in names:
                    self.assertNotIn(name.split(".")[0], {"twisted", "time", "datetime", "random"})
                    if name.startswith("inference_lab"):
                        room = name.split(".")[1]
                        self.assertIn(room, {"engine", "configuration"}, f"{path.name}: {name}")
