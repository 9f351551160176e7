"""The eleven modes send today the very bytes that they always sent."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from tests.record_golden import COUNTS, FAULTS, GOLDEN, record


class GoldenTests(SynchronousTestCase):
    """Head, body with its framing, and what became of the connection."""

    def test_every_byte(self) -> None:
        golden = json.loads(GOLDEN.read_text())
        self.assertEqual(len(golden), len(FAULTS) * len(COUNTS) * 2 * 2)
        sent = record()
        self.assertEqual(sorted(sent), sorted(golden))
        for name, expected in golden.items():
            self.assertEqual(sent[name], expected, name)
