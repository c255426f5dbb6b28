"""The digest of an outer state: a Merkle root over the layers of θ and m, with the data cursors.

Each layer's θ, then its m, is cut into chunks of 1 MiB of little-endian float32. A layer's digest is the root over its
chunks, the model's is the root over its layers. So a peer that holds some layers can name them, and each chunk of a
snapshot is checked against what voters have certified.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from peer.consensus.protocol.encoding import digest_of, pack
from peer.consensus.protocol.merkle import root

CHUNK_BYTES = 1 << 20
FLOAT32_BYTES = 4


def chunks_in(elements: int) -> int:
    """Chunks of one vector of a layer of so many elements."""
    return -(-elements * FLOAT32_BYTES // CHUNK_BYTES)


def chunk_places(sizes_bytes: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Offset and size in bytes of each chunk of vectors of these sizes, one behind the other and each cut by itself."""
    return tuple(
        (at, min(CHUNK_BYTES, end - at))
        for start, end in pairwise(accumulate(sizes_bytes, initial=0))
        for at in range(start, end, CHUNK_BYTES)
    )


def layer_digest(chunks: Sequence[bytes]) -> bytes:
    """Of a layer whose chunks, those of θ and then those of m, have these digests."""
    return root(chunks)


def state_digest(layers: Sequence[bytes], cursors: Iterable[tuple[int, int]]) -> bytes:
    """Of layers with these digests, in model order, and (shard, windows used)."""
    return digest_of(pack((root(layers), tuple(sorted(cursors)))))
