"""The decode batch of one scheduler, whose step costs what changes, not what stays.

Every member advances one position per step. A member with next context ``t`` is kept as
``base = t - steps``, which never changes while it stays. What a step costs depends on
the members only through sums of ``min(t // ratio, cap)``, one sum per term of the
attention profile; stepping all members raises such a sum by the number of members whose
``t // ratio`` ticks over. Those are the members of one residue class of bases, so a
count per class says it, and a calendar takes members out as they reach the cap. New KV
blocks come by residue class too; finishing and growth beside the content by calendar.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from inference_lab.engine.attention import Term
from inference_lab.engine.kv_cache import BlockTable
from inference_lab.engine.requests import Handle

_Calendar = dict[int, dict[Handle, int]]


class _Sum:
    """The sum of one term over the members."""

    __slots__ = ("cap", "counts", "full_at", "leaving", "ratio", "total")

    def __init__(self, term: Term) -> None:
        self.ratio = term.ratio
        self.cap = term.cap
        self.full_at = None if term.cap is None else term.cap * term.ratio
        self.total = 0
        self.counts = [0] * term.ratio
        self.leaving: dict[int, int] = {}

    def add(self, base: int, context: int, sign: int) -> None:
        """Count a member of that base in (``sign`` 1) or out (-1)."""
        if self.full_at is None:
            self.total += sign * (context // self.ratio)
        elif context < self.full_at:
            self.total += sign * (context // self.ratio)
            when = self.full_at - base
            # Bases of one step and residue are alike: a count is enough to retire them.
            self.leaving[when] = self.leaving.get(when, 0) + sign
        else:
            self.total += sign * (self.full_at // self.ratio)
            return
        self.counts[base % self.ratio] += sign

    def advance(self, steps: int) -> None:
        """Go on to step number ``steps``."""
        self.total += self.counts[-steps % self.ratio]
        if self.leaving and (count := self.leaving.pop(steps, 0)):
            # They all have base = full_at - steps.
            self.counts[-steps % self.ratio] -= count


class DecodeBatch:
    """The members that decode, and the sums that price them.

    ``steps`` is how many steps this batch has made. While a step is in flight,
    ``reserved`` says that members hold the block their new position needs.
    ``members`` may be shared with the batches of other ranks; ``size`` is of this one.
    """

    def __init__(
        self, terms: Sequence[Term], table: BlockTable, members: dict[Handle, None]
    ) -> None:
        self.steps = 0
        self.size = 0
        self.reserved = False
        self.members = members
        self.joined: list[Handle] = []
        self.left: list[Handle] = []
        self._table = table
        self._block_counts = [0] * table.block_size
        self._sums = [_Sum(term) for term in terms]
        self._finishing: _Calendar = {}
        self._growing: _Calendar = {}

    @property
    def totals(self) -> list[int]:
        """Per term, the sum of its positions over the members' next contexts."""
        return [each.total for each in self._sums]

    def blocks_needed(self) -> int:
        """KV blocks that the next step of all members takes."""
        needed = self._block_counts[(1 - self.steps) % self._table.block_size]
        if self._growing:
            growing = self._growing.get(self.steps)
            if growing:
                needed += sum(growing.values())
        return needed

    def wanting(self, order: Iterable[Handle]) -> list[tuple[int, Handle]]:
        """Those of ``order``, with their index, who may need blocks in the next step.

        All who are not members, and the members that `blocks_needed` counts.
        """
        size = self._table.block_size
        residue = (1 - self.steps) % size
        growing = self._growing.get(self.steps, {})
        return [
            (index, handle)
            for index, handle in enumerate(order)
            if handle.batch is None or handle.base % size == residue or handle in growing
        ]

    def holding(self, handle: Handle) -> int:
        """KV blocks that a member holds."""
        return self._table.blocks(handle.resident + self.reserved)

    def join(self, handle: Handle) -> None:
        """Take in a request whose prompt is computed, between two steps."""
        context = handle.computed + 1
        base = handle.base = context - self.steps
        handle.batch = self
        self.members[handle] = None
        self.joined.append(handle)
        self.size += 1
        self._block_counts[base % self._table.block_size] += 1
        for each in self._sums:
            each.add(base, context, 1)
        self._finishing.setdefault(handle.last_context - base, {})[handle] = 1
        if self._table.growth:
            self._schedule_growth(handle, context)

    def _schedule_growth(self, handle: Handle, context: int) -> None:
        index = bisect_left(self._table.growth, context)
        if index < len(self._table.growth):
            when = self._table.growth[index] - handle.base
            self._growing.setdefault(when, {})[handle] = self._table.increments[index]

    def leave(self, handle: Handle) -> None:
        """Let a member go; its progress is its own again."""
        base, context = handle.base, handle.base + self.steps
        handle.kv.count = max(handle.kv.count, self.holding(handle))
        handle.produced = handle.produced
        handle.computed = context - 1
        handle.batch = None
        del self.members[handle]
        self.left.append(handle)
        self.size -= 1
        self._block_counts[base % self._table.block_size] -= 1
        for each in self._sums:
            each.add(base, context, -1)
        when = handle.last_context - base
        finishing = self._finishing[when]
        del finishing[handle]
        if not finishing:
            del self._finishing[when]
        if self._table.growth:
            self._cancel_growth(handle, context)

    def _cancel_growth(self, handle: Handle, context: int) -> None:
        index = bisect_left(self._table.growth, context)
        if index < len(self._table.growth):
            when = self._table.growth[index] - handle.base
            growing = self._growing[when]
            del growing[handle]
            if not growing:
                del self._growing[when]

    def finishing(self) -> list[Handle]:
        """The members that the step in flight completes."""
        finishing = self._finishing.get(self.steps)
        return list(finishing) if finishing else []

    def advance(self) -> None:
        """The step is over: every member has one position more."""
        grown = self._growing.pop(self.steps, None) if self._growing else None
        self.steps += 1
        self.reserved = False
        for each in self._sums:
            each.advance(self.steps)
        if grown:
            for handle in grown:
                self._schedule_growth(handle, handle.base + self.steps)
