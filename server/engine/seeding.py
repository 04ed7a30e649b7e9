"""Random numbers that depend on a seed and a position alone, never on what was drawn before or beside them."""

import struct
from hashlib import blake2b


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), one of 2**53 evenly spaced, for the token at `position` of a generation.

    Counter-based: the BLAKE2b hash of (seed, position), as in Salmon et al. 2011, "Parallel random numbers: as easy as
    1, 2, 3", with a hash of the standard library in place of their block cipher. `seed` and `position` are below 2**64.
    """
    digest = blake2b(struct.pack("<QQ", seed, position), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def sibling_seed(seed: int, index: int) -> int:
    """The seed of the generation with this index, of several that a request with this seed asks for.

    The first has the request's own, so that asking for more generations changes nothing of it.
    """
    if index == 0:
        return seed
    digest = blake2b(struct.pack("<QQ", seed, index), digest_size=8, person=b"sibling").digest()
    return int.from_bytes(digest, "little")
