"""Prompts from messages to token ids: work for a thread. Raises InvalidArgument naming the field."""

from collections.abc import Sequence
from typing import TypeAlias

from treadle.v1 import generation_pb2 as pb

from server.engine.engine import Served
from server.engine.errors import InvalidArgument
from server.engine.model import ModelDescription
from server.rpc.chat_from_wire import rendered_chat
from server.rpc.counts import check_count

AnyInput: TypeAlias = pb.GenerateRequest | pb.Input


def prompt_token_ids(source: AnyInput, asked: pb.GenerateRequest, served: Served) -> tuple[int, ...]:
    """Of the input in `source`, as `asked` wants it: with or without special tokens, whole or its end alone."""
    kind = source.WhichOneof("input")
    if asked.HasField("add_special_tokens") and kind != "prompt":
        raise InvalidArgument("add_special_tokens", _shown(asked.add_special_tokens), "must be unset without a prompt")
    most = asked.truncate_prompt_tokens if asked.HasField("truncate_prompt_tokens") else None
    if most == 0:
        raise InvalidArgument("truncate_prompt_tokens", 0, "must be at least 1")
    token_ids = _token_ids(source, asked, served, is_truncated=most is not None)
    return tuple(token_ids if most is None else token_ids[-most:])


def _token_ids(source: AnyInput, asked: pb.GenerateRequest, served: Served, *, is_truncated: bool) -> Sequence[int]:
    match source.WhichOneof("input"):
        case "prompt":
            add = asked.add_special_tokens if asked.HasField("add_special_tokens") else True
            return text_token_ids("prompt", source.prompt, served, add_special_tokens=add)
        case "prompt_token_ids":
            if not is_truncated:
                check_count("prompt_token_ids", len(source.prompt_token_ids.ids), _most_tokens(served) - 1)
            return source.prompt_token_ids.ids
        case "chat":
            return _chat_token_ids(source.chat, served)
        case _:
            raise InvalidArgument("input", "unset", "one of prompt, prompt_token_ids and chat must be set")


def text_or_chat(message: pb.TokenizeRequest, served: Served) -> Sequence[int]:
    match message.WhichOneof("input"):
        case "text":
            add = message.add_special_tokens if message.HasField("add_special_tokens") else True
            return text_token_ids("text", message.text, served, add_special_tokens=add)
        case "chat":
            if message.HasField("add_special_tokens"):
                limit = "must be unset with a chat, whose template writes the special tokens"
                raise InvalidArgument("add_special_tokens", _shown(message.add_special_tokens), limit)
            return _chat_token_ids(message.chat, served)
        case _:
            raise InvalidArgument("input", "unset", "one of text and chat must be set")


def text_token_ids(field: str, text: str, served: Served, *, add_special_tokens: bool) -> Sequence[int]:
    size, limit = len(text.encode()), max_text_bytes(served)
    if size > limit:
        raise InvalidArgument(field, f"{size} bytes long", f"must be at most {limit}")
    return served.tokenizer.encode(text, add_special_tokens=add_special_tokens)


def max_text_bytes(served: Served) -> int:
    """Longer texts are not worth tokenizing, which takes a hundred times their memory: none of their tokenizations
    could fit."""
    return _most_tokens(served) * served.tokenizer.longest_token_bytes


def check_known(token_ids: Sequence[int], described: ModelDescription) -> None:
    for i, token_id in enumerate(token_ids):
        if token_id >= described.vocabulary_size:
            limit = f"must be below the vocabulary size, {described.vocabulary_size}"
            raise InvalidArgument(f"token_ids[{i}]", token_id, limit)


def _chat_token_ids(message: pb.Chat, served: Served) -> Sequence[int]:
    """The template writes the special tokens itself, so the tokenizer adds none."""
    return text_token_ids("chat", rendered_chat(message, served.tokenizer), served, add_special_tokens=False)


def _most_tokens(served: Served) -> int:
    return served.model.description.max_total_tokens


def _shown(flag: bool) -> str:
    return str(flag).lower()
