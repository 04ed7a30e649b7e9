"""What to continue."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

from treadle.chat import Chat, ChatMessage
from treadle.requests import chat as chats
from treadle.requests.chat import TemplateOptions
from treadle.requests.part import Part

Input: TypeAlias = str | Sequence[int] | Chat
"""A prompt, a prompt's token ids, or a conversation."""


def exactly_one(**inputs: object) -> None:
    """Raises TypeError unless one of them is given."""
    if sum(given is not None for given in inputs.values()) != 1:
        raise TypeError(f"give exactly one of {', '.join(inputs)}")


def write_one_of_several(message: Part, given: Input, options: TemplateOptions) -> None:
    """The input's kind is its type; of an empty sequence, token ids. The options go with a chat."""
    if isinstance(given, str):
        message.set("prompt", given)
    elif is_chat(given):
        chats.write(message.present("chat"), cast(Chat, given), options)
    else:
        write_token_ids(message, cast(Sequence[int], given))


def write_token_ids(message: Part, token_ids: Sequence[int]) -> None:
    message.present("prompt_token_ids").extend("ids", token_ids)


def is_chat(given: Input) -> bool:
    return isinstance(given, Sequence) and len(given) > 0 and isinstance(given[0], ChatMessage | Mapping)
