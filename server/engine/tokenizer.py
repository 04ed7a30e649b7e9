"""The Tokenizer: text to token ids and back. Safe to use from several threads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from server.engine.chat import Chat


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    name: str
    content: bytes


class Tokenizer(Protocol):
    @property
    def special_token_ids(self) -> frozenset[int]:
        """Ids that stand for no text, such as an end of sequence; `decode` leaves them out unless told to keep them."""
        ...

    @property
    def byte_fallback_ids(self) -> frozenset[int]:
        """Ids of single bytes whose text `decode` decides only when the run of them has ended (SentencePiece style)."""
        ...

    @property
    def has_chat_template(self) -> bool: ...

    @property
    def takes_tools(self) -> bool:
        """Whether the model's chat template shows tools to the model."""
        ...

    @property
    def allows_request_templates(self) -> bool:
        """Whether a chat may bring a template of its own."""
        ...

    @property
    def longest_token_bytes(self) -> int:
        """Most bytes of UTF-8 that one token stands for."""
        ...

    def files(self) -> tuple[TokenizerFile, ...]:
        """What a directory holds that transformers loads this tokenizer from, chat templates included."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, keep_special_tokens: bool = False) -> str: ...

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes an id stands for where `decode` is the UTF-8 reading (errors replaced) of its ids' bytes joined;
        None for a vocabulary that is not byte-level."""
        ...

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        """What each id stands for in the vocabulary."""
        ...

    def token_text(self, token_id: int) -> str:
        """The decoding of the id by itself, special or not; known at once after the first time."""
        ...

    def render_chat(self, chat: Chat) -> str:
        """The text of a conversation by its template, ready for the assistant's answer, or for more of the final
        message where the chat continues it.

        Raises InvalidArgument with the template's reason where the template refuses, and where it does not use a part
        of the chat, such as the tools; ChatTemplateMissing where the model has none.
        """
        ...
