"""Names for the full blocks of a prompt, by which a KV cache finds them again."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b


def block_hashes(ids: Sequence[int], block_size: int) -> tuple[int, ...]:
    """One hash per full block of ``block_size`` token ids, each chained to those before it.

    Equal hashes therefore mean equal prompts up to the end of that block. A rest shorter
    than a block has no hash. Ids are 64-bit: OverflowError beyond.
    """
    if block_size < 1:
        raise ValueError("block_size must be at least 1")
    tokens = memoryview(array("q", ids)).cast("B")
    chain, hashes = b"", []
    stride = block_size * 8
    for end in range(stride, len(tokens) + 1, stride):
        chain = blake2b(tokens[end - stride : end], digest_size=16, key=chain).digest()
        hashes.append(int.from_bytes(chain, "little"))
    return tuple(hashes)
