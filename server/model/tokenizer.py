"""The engine's Tokenizer over the `tokenizers` library, which transformers' fast tokenizers are made of.

Text and ids go through the library's batch calls even one at a time: those let other threads run meanwhile, its
single calls do not.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer as BackendTokenizer
from transformers import PreTrainedTokenizerBase

from server.engine.chat import Chat
from server.engine.errors import ChatTemplateMissing
from server.engine.tokenizer import TokenizerFile
from server.model.chat_template import ChatTemplate
from server.model.errors import ModelNotServable
from server.model.request_template import render_apart

DEFAULT_TEMPLATE, TOOL_USE_TEMPLATE = "default", "tool_use"
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


class TransformersTokenizer:
    """Raises ModelNotServable for a tokenizer that has no backend of the `tokenizers` library."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, allows_request_templates: bool = False) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, BackendTokenizer):
            raise ModelNotServable(f"its tokenizer, {type(tokenizer).__name__}, is not a fast one")
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.allows_request_templates = allows_request_templates
        self._special_tokens = tokenizer.special_tokens_map
        self._templates = _templates(tokenizer)
        added = backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        decoders = _decoder_types(backend)
        self._is_byte_level = decoders == ["ByteLevel"]
        vocabulary = backend.get_vocab(with_added_tokens=True)
        byte_tokens = {i for token, i in vocabulary.items() if BYTE_TOKEN.fullmatch(token)}
        self.byte_fallback_ids = frozenset(byte_tokens if "ByteFallback" in decoders else ())
        self.highest_token_id = max(vocabulary.values())
        self.longest_token_bytes = max(len(token if self._is_byte_level else token.encode()) for token in vocabulary)
        self._token_texts: dict[int, str] = {}

    @property
    def definition(self) -> str:
        """All of it, in the tokenizers library's JSON."""
        return self._backend.to_str()

    @property
    def has_chat_template(self) -> bool:
        return self._template(with_tools=True) is not None

    @property
    def takes_tools(self) -> bool:
        template = self._template(with_tools=True)
        return template is not None and template.takes_tools

    def files(self) -> tuple[TokenizerFile, ...]:
        sources = {name: template.source for name, template in self._templates.items()}
        templates: object = [{"name": name, "template": source} for name, source in sources.items()]
        if list(sources) == [DEFAULT_TEMPLATE]:
            templates = sources[DEFAULT_TEMPLATE]
        settings: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast", **self._special_tokens}
        if sources:
            settings["chat_template"] = templates
        return (
            TokenizerFile("tokenizer.json", self.definition.encode()),
            TokenizerFile("tokenizer_config.json", json.dumps(settings).encode()),
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, token_ids: Sequence[int], *, keep_special_tokens: bool = False) -> str:
        return self._backend.decode_batch([list(token_ids)], skip_special_tokens=not keep_special_tokens)[0]

    def token_bytes(self, token_id: int) -> bytes | None:
        if not self._is_byte_level:
            return None
        token = self._backend.id_to_token(token_id) or ""
        if all(character in BYTE_OF_CHARACTER for character in token):
            return bytes(BYTE_OF_CHARACTER[character] for character in token)
        return token.encode()  # the decoder takes a token with any other character in it, an added one, as it stands

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        return [self._backend.id_to_token(token_id) or "" for token_id in token_ids]

    def token_text(self, token_id: int) -> str:
        text = self._token_texts.get(token_id)
        if text is None:
            text = self._token_texts[token_id] = self.decode([token_id], keep_special_tokens=True)
        return text

    def render_chat(self, chat: Chat) -> str:
        template = self._template(with_tools=bool(chat.tools))
        if template is None:
            reason = "none of its chat templates is the default" if self._templates else "it has no chat template"
            raise ChatTemplateMissing(f"the model takes no such chat: {reason}")
        if chat.template is not None:
            return render_apart(chat.template, self._special_tokens, chat)
        return template.render(chat)

    def _template(self, with_tools: bool) -> ChatTemplate | None:
        """Of a model with several, the one that transformers' get_chat_template takes."""
        default = self._templates.get(DEFAULT_TEMPLATE)
        return self._templates.get(TOOL_USE_TEMPLATE, default) if with_tools else default


def _templates(tokenizer: PreTrainedTokenizerBase) -> dict[str, ChatTemplate]:
    sources: str | dict[str, str] | None = tokenizer.chat_template
    named = {DEFAULT_TEMPLATE: sources} if isinstance(sources, str) else sources or {}
    return {name: ChatTemplate(source, tokenizer.special_tokens_map) for name, source in named.items()}


def _decoder_types(backend: BackendTokenizer) -> list[str]:
    """The types of the decoder's parts, in order."""
    if backend.decoder is None:
        return []
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    parts = state["decoders"] if state["type"] == "Sequence" else [state]
    return [part["type"] for part in parts]


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet of bytes: printable Latin-1 characters stand for themselves, the others begin at U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHARACTER = _byte_of_character()
