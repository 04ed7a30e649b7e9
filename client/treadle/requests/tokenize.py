"""Requests between text and tokens."""

from collections.abc import Sequence
from typing import Unpack

from treadle.chat import Chat
from treadle.requests import chat as chats
from treadle.requests.chat import TemplateOptions
from treadle.requests.input import exactly_one
from treadle.requests.part import Part, refuse_unknown
from treadle.v1 import generation_pb2 as pb


class TokenizeOptions(TemplateOptions, total=False):
    """How to tokenize: as the options of the same names would for `generate`."""

    chat: Chat | None
    """A conversation instead of a text."""
    add_special_tokens: bool | None
    """Whether the tokenizer adds its special tokens to a text, as it does where this is left out."""


def tokenize(text: str | None = None, **options: Unpack[TokenizeOptions]) -> pb.TokenizeRequest:
    """Raises as `generate`."""
    refuse_unknown(options, TokenizeOptions.__optional_keys__)
    chat = options.get("chat")
    exactly_one(text=text, chat=chat)
    message = pb.TokenizeRequest()
    request = Part(message)
    request.set("text", text)
    if chat is None:
        chats.refuse_without_chat(options)
    else:
        chats.write(request.present("chat"), chat, options)
    request.set("add_special_tokens", options.get("add_special_tokens"))
    return message


def detokenize(token_ids: Sequence[int], keep_special_tokens: bool) -> pb.DetokenizeRequest:
    """Raises as `generate`."""
    message = pb.DetokenizeRequest(keep_special_tokens=keep_special_tokens)
    Part(message).extend("token_ids", token_ids)
    return message
