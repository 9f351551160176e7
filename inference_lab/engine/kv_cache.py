"""The paged KV cache of one scheduler: blocks, who holds them, and whose prefix they are.

Only blocks with a prefix hash have an identity. All others are alike, so they are
counted: a request holds a number of them, and the free list keeps them in runs.

The free list is least recently used first. A freed block stays findable by its hash
until its turn to be recycled comes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence

from attrs import define, field

from inference_lab.configuration.deployment import Deployment
from inference_lab.configuration.memory import auxiliary_blocks, kv_memory
from inference_lab.configuration.schema import LinearLayers, Model


@define(eq=False, slots=True)
class Block:
    """One block of a prompt. ``hash`` is None when another block has that name already."""

    hash: int | None
    users: int = 1


@define(eq=False, slots=True)
class Holding:
    """What one request holds: ``count`` blocks in all, of which ``blocks`` open its prompt.

    ``hashes`` name the full blocks of its prompt, as far as they are known.
    """

    hashes: Sequence[int] = ()
    blocks: list[Block] = field(factory=list)
    count: int = 0


@define(eq=False, slots=True)
class _Run:
    """A stretch of free blocks without a name."""


class BlockTable:
    """How many blocks a sequence takes: pages of content, and windows and states beside it.

    The auxiliary part grows while its windows fill; ``growth`` are the contexts at which
    it does, ``increments`` by how many blocks.
    """

    def __init__(self, model: Model, block_size: int) -> None:
        self.block_size = block_size
        widest = max(
            (layer.window for layer in model.layers if not isinstance(layer, LinearLayers)),
            default=0,
        )
        self.growth: list[int] = []
        self.increments: list[int] = []
        self._auxiliary = [auxiliary_blocks(model, block_size, 0)]
        context = 0
        while self._auxiliary[-1] < auxiliary_blocks(model, block_size, widest):
            low, high = context, widest  # auxiliary(low) is the known value, high is beyond it
            while high - low > 1:
                middle = (low + high) // 2
                if auxiliary_blocks(model, block_size, middle) > self._auxiliary[-1]:
                    high = middle
                else:
                    low = middle
            context, blocks = high, auxiliary_blocks(model, block_size, high)
            self.growth.append(context)
            self.increments.append(blocks - self._auxiliary[-1])
            self._auxiliary.append(blocks)

    def blocks(self, context: int) -> int:
        """Blocks held by a sequence of ``context`` positions."""
        content = -(-context // self.block_size)
        return content + self._auxiliary[bisect_right(self.growth, context)]


class KvCache:
    """The blocks of one scheduler. ``free`` of ``total`` can be taken."""

    def __init__(self, table: BlockTable, total: int) -> None:
        self.table = table
        self.total = self.free = total
        self._list: OrderedDict[Block | _Run, int] = OrderedDict({_Run(): total})
        self._known: dict[int, Block] = {}

    @classmethod
    def of(cls, deployment: Deployment) -> KvCache:
        """The cache that ``deployment`` gives each of its schedulers."""
        memory = kv_memory(deployment)
        return cls(BlockTable(deployment.model, memory.block_size), memory.blocks)

    def lookup(self, holding: Holding, prompt_tokens: int) -> list[Block]:
        """The cached blocks that a prompt of ``prompt_tokens`` begins with.

        Never all of the prompt: its last position must be computed to go on from it.
        """
        found: list[Block] = []
        for name in holding.hashes[: (prompt_tokens - 1) // self.table.block_size]:
            block = self._known.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def cached_tokens(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        """How many tokens of a prompt a lookup would find."""
        return len(self.lookup(Holding(hashes), prompt_tokens)) * self.table.block_size

    def admit(self, holding: Holding, hits: list[Block], context: int, whole: int) -> bool:
        """Give a new sequence its ``hits`` and what else ``context`` positions need.

        Refused, with nothing changed, unless ``whole`` positions would fit as well.
        """
        revived = sum(1 for block in hits if not block.users)
        if self.table.blocks(whole) - len(hits) + revived > self.free:
            return False
        for block in hits:
            if not block.users:
                del self._list[block]
            block.users += 1
        self.free -= revived
        holding.blocks = hits
        holding.count = len(hits)
        self.grow(holding, context)
        return True

    def missing(self, holding: Holding, context: int) -> int:
        """Blocks to take before ``holding`` has room for ``context`` positions."""
        return self.table.blocks(context) - holding.count

    def grow(self, holding: Holding, context: int) -> None:
        """Make room for ``context`` positions; prompt blocks now full can be found.

        The caller has seen to it that enough blocks are free.
        """
        blocks = self.table.blocks(context)
        if blocks > holding.count:
            self.take(blocks - holding.count)
            holding.count = blocks
        if len(holding.blocks) < len(holding.hashes):
            full = context // self.table.block_size
            for name in holding.hashes[len(holding.blocks) : full]:
                holding.blocks.append(self._name(name))

    def _name(self, name: int) -> Block:
        known = self._known.get(name)
        if known is not None and known.users:
            return Block(None)
        if known is not None:
            known.hash = None
        block = self._known[name] = Block(name)
        return block

    def take(self, count: int) -> None:
        """Take ``count`` free blocks; whatever prefix they were is forgotten."""
        self.free -= count
        while count:
            entry = next(iter(self._list))
            there = self._list[entry]
            if there > count:
                self._list[entry] = there - count
                return
            del self._list[entry]
            count -= there
            if isinstance(entry, Block) and entry.hash is not None:
                del self._known[entry.hash]

    def release(self, holding: Holding) -> None:
        """Free all that ``holding`` has, the end of the sequence first in line for reuse."""
        self._append_unnamed(holding.count - len(holding.blocks))
        for block in reversed(holding.blocks):
            block.users -= 1
            if block.users:
                continue
            if block.hash is None:
                self._append_unnamed(1)
            else:
                self._list[block] = 1
                self.free += 1
        holding.blocks = []
        holding.count = 0

    def _append_unnamed(self, count: int) -> None:
        if not count:
            return
        self.free += count
        last = next(reversed(self._list), None)
        if isinstance(last, _Run):
            self._list[last] += count
        else:
            self._list[_Run()] = count
