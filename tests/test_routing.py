"""Which target each policy picks."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.configuration.schema import (
    KvAware,
    LeastLoaded,
    PrefixAffinity,
    RoundRobin,
    Router,
)
from inference_lab.engine.routing import Routing


@frozen
class Place:
    requests: int = 0
    queued_prefill_tokens: int = 0
    cached: int = 0

    def cached_tokens(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        return min(self.cached, prompt_tokens)


class RoutingTests(SynchronousTestCase):
    def choose(self, policy: Router, *places: Place) -> int:
        return Routing(policy).choose(places, (1,), 1000)

    def test_round_robin(self) -> None:
        routing = Routing(RoundRobin())
        places = [Place(requests=9), Place(), Place()]
        self.assertEqual([routing.choose(places, (), 1) for _ in range(5)], [0, 1, 2, 0, 1])

    def test_least_loaded(self) -> None:
        self.assertEqual(self.choose(LeastLoaded(), Place(3), Place(2, 900), Place(2, 100)), 2)
        self.assertEqual(self.choose(LeastLoaded(), Place(1), Place(1)), 0)

    def test_prefix_affinity(self) -> None:
        policy = PrefixAffinity()
        self.assertEqual(self.choose(policy, Place(0), Place(9, 0, 64), Place(9, 0, 128)), 2)
        self.assertEqual(self.choose(policy, Place(5, 0, 64), Place(4, 0, 64)), 1)
        self.assertEqual(self.choose(policy, Place(2), Place(1)), 1)

    def test_prefix_affinity_leaves_an_overloaded_holder(self) -> None:
        holder, other = Place(6, 0, 512), Place(2)
        self.assertEqual(self.choose(PrefixAffinity(max_load_ratio=1.5), holder, other), 0)
        self.assertEqual(self.choose(PrefixAffinity(max_load_ratio=1.4), holder, other), 1)

    def test_kv_aware(self) -> None:
        holder, other = Place(3, 500, 400), Place(3, 200)
        self.assertEqual(self.choose(KvAware(load_weight=1.0), holder, other), 0)
        self.assertEqual(self.choose(KvAware(load_weight=2.0), holder, other), 1)
        self.assertEqual(self.choose(KvAware(load_weight=0.0), other, other), 0)
