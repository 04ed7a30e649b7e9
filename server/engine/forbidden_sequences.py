"""Forbidden sequences: runs of tokens that must not appear in an output."""

from collections.abc import Sequence


def completing_tokens(forbidden: Sequence[Sequence[int]], output: Sequence[int]) -> set[int]:
    """The tokens that would complete a forbidden sequence as the next one of the output."""
    return {run[-1] for run in forbidden if _ends_with(output, run[:-1])}


def _ends_with(output: Sequence[int], run: Sequence[int]) -> bool:
    start = len(output) - len(run)
    return start >= 0 and list(output[start:]) == list(run)
