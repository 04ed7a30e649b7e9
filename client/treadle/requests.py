"""What a caller asks for, to request messages."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from treadle.chat import ChatMessage
from treadle.errors import InvalidRequest, Violation
from treadle.v1 import generation_pb2 as pb


class GenerateOptions(TypedDict, total=False):
    """What to generate and how. An option left out, or None, takes the server's default: see `model().defaults`."""

    chat: Sequence[ChatMessage | Mapping[str, str]] | None
    """A conversation to answer instead of a prompt to continue; a mapping has "role" and "content"."""
    prompt_token_ids: Sequence[int] | None
    """A prompt that is tokenized already."""
    temperature: float | None
    """0 takes the most probable token; at most 100."""
    top_p: float | None
    """Keeps the most probable tokens whose probabilities sum to this; above 0, at most 1."""
    top_k: int | None
    """Keeps this many of the most probable tokens; 0 keeps all."""
    seed: int | None
    """The same request with the same seed gets the same tokens; 64 bits, unsigned."""
    max_new_tokens: int | None
    """Most tokens to generate."""
    min_new_tokens: int | None
    """Until this many tokens nothing but max_new_tokens and time_limit ends the generation."""
    stop: str | Sequence[str]
    """Texts that end the generation."""
    stop_token_ids: Sequence[int]
    """Token ids that end the generation."""
    ignore_eos: bool
    """Goes on past the model's end-of-sequence tokens."""
    include_stop_text: bool
    """Leaves what stopped the generation in its text."""
    time_limit: float | None
    """Seconds after which the generation ends with what it has; unlike `timeout`, not an error."""
    cache_salt: str
    """Shares cached prompt beginnings only with requests that have the same."""
    request_id: str | None
    """The caller's name for the request, in the server's logs; made by the server where it is left out."""
    omit_token_ids: bool
    """Leaves the token ids out of the answer."""
    omit_text: bool
    """Leaves the text out of the answer."""


def generate(
    prompt: str | None = None,
    *,
    chat: Sequence[ChatMessage | Mapping[str, str]] | None = None,
    prompt_token_ids: Sequence[int] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    seed: int | None = None,
    max_new_tokens: int | None = None,
    min_new_tokens: int | None = None,
    stop: str | Sequence[str] = (),
    stop_token_ids: Sequence[int] = (),
    ignore_eos: bool = False,
    include_stop_text: bool = False,
    time_limit: float | None = None,
    cache_salt: str = "",
    request_id: str | None = None,
    omit_token_ids: bool = False,
    omit_text: bool = False,
) -> pb.GenerateRequest:
    """Raises InvalidRequest for a value that the message cannot carry; TypeError unless exactly one input is given."""
    _exactly_one(prompt=prompt, chat=chat, prompt_token_ids=prompt_token_ids)
    message = pb.GenerateRequest()
    _set(message, "request_id", request_id)
    _set(message, "cache_salt", cache_salt)
    _set(message, "prompt", prompt)
    if prompt_token_ids is not None:
        message.prompt_token_ids.SetInParent()
        _extend(message.prompt_token_ids, "ids", prompt_token_ids, "prompt_token_ids.")
    if chat is not None:
        _set_chat(message.chat, chat)
    _set(message.sampling, "temperature", temperature, "sampling.")
    _set(message.sampling, "top_p", top_p, "sampling.")
    _set(message.sampling, "top_k", top_k, "sampling.")
    _set(message.sampling, "seed", seed, "sampling.")
    _set(message.stopping, "max_new_tokens", max_new_tokens, "stopping.")
    _set(message.stopping, "min_new_tokens", min_new_tokens, "stopping.")
    _extend(message.stopping, "stop", [stop] if isinstance(stop, str) else stop, "stopping.")
    _extend(message.stopping, "stop_token_ids", stop_token_ids, "stopping.")
    _set(message.stopping, "ignore_eos", ignore_eos, "stopping.")
    _set(message.stopping, "include_stop_text", include_stop_text, "stopping.")
    if time_limit is not None:
        message.stopping.time_limit.CopyFrom(_duration("stopping.time_limit", time_limit))
    _set(message.output, "omit_token_ids", omit_token_ids, "output.")
    _set(message.output, "omit_text", omit_text, "output.")
    return message


def tokenize(text: str | None, chat: Sequence[ChatMessage | Mapping[str, str]] | None) -> pb.TokenizeRequest:
    """Raises as `generate`."""
    _exactly_one(text=text, chat=chat)
    message = pb.TokenizeRequest()
    _set(message, "text", text)
    if chat is not None:
        _set_chat(message.chat, chat)
    return message


def detokenize(token_ids: Sequence[int], keep_special_tokens: bool) -> pb.DetokenizeRequest:
    """Raises as `generate`."""
    message = pb.DetokenizeRequest(keep_special_tokens=keep_special_tokens)
    _extend(message, "token_ids", token_ids)
    return message


def _exactly_one(**inputs: object) -> None:
    if sum(given is not None for given in inputs.values()) != 1:
        raise TypeError(f"give exactly one of {', '.join(inputs)}")


def _set_chat(message: pb.Chat, chat: Sequence[ChatMessage | Mapping[str, str]]) -> None:
    message.SetInParent()
    for i, turn in enumerate(chat):
        role, content = (turn.role, turn.content) if isinstance(turn, ChatMessage) else (turn["role"], turn["content"])
        part = message.messages.add()
        _set(part, "role", role, f"chat.messages[{i}].")
        _set(part, "content", content, f"chat.messages[{i}].")


def _set(message: Message, name: str, value: object, path: str = "") -> None:
    if value is None:
        return
    try:
        setattr(message, name, value)
    except ValueError as error:
        raise _invalid(path + name, value, _limit(message, name)) from error
    except TypeError as error:
        raise TypeError(f"{path}{name} is {value!r}: {error}") from error


def _extend(message: Message, name: str, values: Sequence[object], path: str = "") -> None:
    field = getattr(message, name)
    for i, value in enumerate(values):
        try:
            field.append(value)
        except ValueError as error:
            raise _invalid(f"{path}{name}[{i}]", value, _limit(message, name)) from error
        except TypeError as error:
            raise TypeError(f"{path}{name}[{i}] is {value!r}: {error}") from error


def _limit(message: Message, name: str) -> str:
    """What the field's type takes."""
    match message.DESCRIPTOR.fields_by_name[name].type:
        case FieldDescriptor.TYPE_STRING:
            return "must be valid Unicode, without lone surrogates"
        case FieldDescriptor.TYPE_UINT64:
            return f"must be from 0 to {2**64 - 1}"
        case _:
            return f"must be from 0 to {2**32 - 1}"


def _duration(field: str, seconds: float) -> Duration:
    message = Duration()
    try:
        message.FromNanoseconds(round(seconds * 1e9))
    except (ValueError, OverflowError) as error:
        raise _invalid(field, seconds, "must be a finite number of seconds") from error
    return message


def _invalid(field: str, value: object, limit: str) -> InvalidRequest:
    description = f"is {value!a}: {limit}"
    return InvalidRequest(
        f"{field} {description}",
        code="INVALID_ARGUMENT",
        reason="INVALID_ARGUMENT",
        violations=(Violation(field, description),),
    )
