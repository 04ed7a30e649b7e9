"""The TokenHistory: which tokens a sequence has, for the penalties on them."""

from collections.abc import Iterable


class TokenHistory:
    """The distinct ids of a prompt and its output, in order of appearance, and how often each is in the output."""

    def __init__(self, prompt: Iterable[int]) -> None:
        self._index_of: dict[int, int] = {}
        self._output_counts: list[int] = []
        for token_id in prompt:
            self._index(token_id)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self._index_of)

    @property
    def output_counts(self) -> tuple[int, ...]:
        return tuple(self._output_counts)

    def append(self, token_id: int) -> None:
        """Takes the next token of the output."""
        self._output_counts[self._index(token_id)] += 1

    def _index(self, token_id: int) -> int:
        index = self._index_of.setdefault(token_id, len(self._output_counts))
        if index == len(self._output_counts):
            self._output_counts.append(0)
        return index
