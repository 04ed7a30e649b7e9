"""The Detokenizer: token ids to text as they come, never split inside a character.

Whatever the vocabulary, the pieces joined are the tokenizer's own `decode` of all the ids, but for the special ones
that are not kept.
"""

import codecs
from collections.abc import Set
from typing import Protocol

from server.engine.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer(Protocol):
    def push(self, token_id: int) -> str:
        """Takes the next id and returns the text that is certain now; it may be empty."""
        ...

    def flush(self) -> str:
        """Returns the rest when no id will follow; an incomplete character becomes a replacement character."""
        ...


def detokenizer_for(tokenizer: Tokenizer, kept_special_token_ids: Set[int] = frozenset()) -> Detokenizer:
    """Special tokens have no text, but for those that are kept."""
    silent = tokenizer.special_token_ids - kept_special_token_ids
    if tokenizer.token_bytes(0) is None:
        return WindowDetokenizer(tokenizer, silent)
    return ByteDetokenizer(tokenizer, silent)


class ByteDetokenizer:
    """For byte-level vocabularies: the ids' bytes through an incremental UTF-8 decoder."""

    def __init__(self, tokenizer: Tokenizer, silent: Set[int]) -> None:
        self._tokenizer, self._silent = tokenizer, silent
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        if token_id in self._silent:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id) or b"")

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any other vocabulary: decodes the newest ids together with those before them, and returns the difference.

    The ids before are needed because a piece's text may depend on its left neighbour, as the leading space of
    SentencePiece does; the method is the one of text-generation-inference's `decode_token`.
    """

    def __init__(self, tokenizer: Tokenizer, silent: Set[int]) -> None:
        self._tokenizer, self._silent = tokenizer, silent
        self._context: list[int] = []
        self._context_text = ""
        self._new: list[int] = []

    def push(self, token_id: int) -> str:
        if token_id in self._silent:
            return ""
        self._new.append(token_id)
        if token_id in self._tokenizer.byte_fallback_ids:
            return ""
        text = self._decode(self._context + self._new)
        if text.endswith(REPLACEMENT):
            return ""
        return self._release(text)

    def flush(self) -> str:
        return self._release(self._decode(self._context + self._new)) if self._new else ""

    def _release(self, text: str) -> str:
        piece = text[len(self._context_text) :]
        self._context, self._new = self._new, []
        self._context_text = self._decode(self._context)
        return piece

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, keep_special_tokens=True)
