"""Prefix keys: names for the contents of full KV blocks, so that equal prefixes can share them.

A block's keys and values depend on its own tokens and on all before them. So a block's key is the hash of its tokens
and of the key before it, and the first key hangs on the request's salt: equal keys mean equal contents, and blocks of
different salts never meet. The hash is cryptographic, since a collision would show one client's prompt to another.
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b

DIGEST_BYTES = 16


def root_key(salt: str) -> bytes:
    """The key before the first block."""
    return blake2b(salt.encode(), digest_size=DIGEST_BYTES, person=b"salt").digest()


def next_key(before: bytes, token_ids: Sequence[int]) -> bytes:
    """The key of the block that holds these tokens, after the block with the key `before`."""
    return blake2b(before + struct.pack(f"<{len(token_ids)}I", *token_ids), digest_size=DIGEST_BYTES).digest()
