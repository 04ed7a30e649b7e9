"""Writes outputs by a random walk over what a constraint allows."""

import random
from collections.abc import Set

from server.engine.constraint import ConstraintState


def bits(mask: bytes) -> set[int]:
    return {8 * i + bit for i, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1}


def walk(
    state: ConstraintState, ends: Set[int], rng: random.Random, most_tokens: int, closing: Set[int] = frozenset()
) -> list[int] | None:
    """The ids of a whole output, of which many are `closing`; None where it has no end within `most_tokens`."""
    output: list[int] = []
    while len(output) < most_tokens:
        allowed = bits(state.allowed(ends, frozenset()).result())
        assert allowed, (output, state.failure)
        if ends <= allowed and (rng.random() < 0.5 or allowed == ends):
            assert state.is_instance()
            return output
        choices = allowed & closing if allowed & closing and rng.random() < 0.4 else allowed - ends
        output.append(rng.choice(sorted(choices)))
        state.advance(output[-1])
        assert state.failure is None
    return None
