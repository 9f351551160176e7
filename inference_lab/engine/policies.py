"""Who is admitted next, and who is preempted: the scheduling policies.

All keys are things a client has shown, such as ``max_tokens``; none is the length an
answer will really have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

from inference_lab.engine.requests import Handle, RequestState

Key = tuple[float, ...]

_ADMISSION: dict[str, Callable[[Handle], Key]] = {
    "fcfs": lambda handle: (handle.place,),
    "priority": lambda handle: (handle.priority, handle.arrival, handle.place),
    "sif": lambda handle: (handle.prompt_tokens, handle.place),
    "lif": lambda handle: (-handle.prompt_tokens, -handle.place),
    "sof": lambda handle: (handle.max_tokens, handle.place),
    "lof": lambda handle: (-handle.max_tokens, -handle.place),
    "stf": lambda handle: (handle.prompt_tokens + handle.max_tokens, handle.place),
    "ltf": lambda handle: (-handle.prompt_tokens - handle.max_tokens, -handle.place),
}
"""The least is admitted. Of equals the shortest-first policies and ``priority`` take the
first in the queue, the longest-first ones the last."""

_VICTIM: dict[str, Callable[[Handle], Key]] = {
    "fcfs": lambda handle: (),
    "priority": lambda handle: (handle.priority, handle.arrival),
    "sif": lambda handle: (handle.prompt_tokens,),
    "lif": lambda handle: (handle.prompt_tokens,),
    "sof": lambda handle: (handle.max_tokens - handle.produced,),
    "lof": lambda handle: (handle.max_tokens - handle.produced,),
    "stf": lambda handle: (handle.prompt_tokens + handle.max_tokens - handle.resident,),
    "ltf": lambda handle: (handle.prompt_tokens + handle.max_tokens - handle.resident,),
}
"""The greatest is preempted, of equals the one admitted last."""


def victim(policy: str, candidates: Sequence[Handle]) -> Handle:
    """Whom to preempt of ``candidates``, given in the order of their admission."""
    return max(reversed(candidates), key=_VICTIM[policy])


class WaitingQueue:
    """The requests that wait, as a heap in the order of the policy.

    A place in the queue is an integer: newcomers get the next one, preempted requests
    one before all others. Leaving early only marks the heap's entry as stale.
    """

    def __init__(self, policy: str) -> None:
        self._key = _ADMISSION[policy]
        self._heap: list[tuple[Key, Handle]] = []
        self._count = 0
        self._back = 0
        self._front = 0

    def __len__(self) -> int:
        return self._count

    def append(self, handle: Handle) -> None:
        """Queue a new request behind all others."""
        self._back += 1
        self._push(handle, self._back)

    def push_front(self, handle: Handle) -> None:
        """Queue a preempted request before all others."""
        self._front -= 1
        self._push(handle, self._front)

    def _push(self, handle: Handle, place: int) -> None:
        handle.place = place
        handle.state = RequestState.WAITING
        self._count += 1
        heappush(self._heap, (self._key(handle), handle))

    def peek(self) -> Handle:
        """The request to admit next. The queue must not be empty."""
        while self._heap[0][1].state is not RequestState.WAITING:
            heappop(self._heap)
        return self._heap[0][1]

    def pop(self) -> Handle:
        """Take out the request to admit next; its state is the caller's to change."""
        handle = self.peek()
        heappop(self._heap)
        self._count -= 1
        return handle

    def discard(self, handle: Handle) -> None:
        """Take out a waiting request for good, wherever it stands."""
        handle.state = RequestState.FINISHED
        self._count -= 1
        if len(self._heap) > 64 + 2 * self._count:
            self._heap = [e for e in self._heap if e[1].state is RequestState.WAITING]
            heapify(self._heap)
