"""Text as the model sees it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tokenization:
    """The tokens of a text, in order; `tokens[i]` is what `token_ids[i]` stands for in the vocabulary."""

    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
