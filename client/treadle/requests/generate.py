"""GenerateOptions, to a GenerateRequest."""

from collections.abc import Sequence
from typing import Unpack

from treadle.chat import Chat
from treadle.constraint import Constraint
from treadle.requests import chat as chats
from treadle.requests import constraint, output, sampling, stopping
from treadle.requests.chat import TemplateOptions
from treadle.requests.input import exactly_one, write_token_ids
from treadle.requests.output import OutputOptions
from treadle.requests.part import Part, refuse_unknown
from treadle.requests.sampling import SamplingOptions
from treadle.requests.stopping import StoppingOptions
from treadle.v1 import generation_pb2 as pb

SCALARS = ("request_id", "cache_salt", "priority", "truncate_prompt_tokens", "add_special_tokens")


class GenerateOptions(TemplateOptions, SamplingOptions, StoppingOptions, OutputOptions, total=False):
    """What to generate and how. An option left out, or None, takes the server's default: see `model().defaults`."""

    chat: Chat | None
    """A conversation to answer instead of a prompt to continue."""
    prompt_token_ids: Sequence[int] | None
    """A prompt that is tokenized already."""
    truncate_prompt_tokens: int | None
    """Keeps only the last this many tokens of a longer prompt."""
    add_special_tokens: bool | None
    """Whether the tokenizer adds its special tokens to a prompt that is text, as it does where this is left out."""
    constraint: Constraint | None
    """What the output must be an instance of: JsonSchema, JsonObject, Regex, Grammar or Choice."""
    priority: int | None
    """Higher ones are admitted first; from -100 to 100; 0 where it is left out."""
    cache_salt: str | None
    """Shares cached prompt beginnings only with requests that have the same."""
    request_id: str | None
    """The caller's name for the request, in the server's logs; made by the server where it is left out."""


def generate(prompt: str | None = None, **options: Unpack[GenerateOptions]) -> pb.GenerateRequest:
    """Raises InvalidRequest for a value that the message cannot carry.

    Raises TypeError for an unknown option, one that does not go with the input, and unless exactly one input is given.
    """
    refuse_unknown(options, GenerateOptions.__optional_keys__)
    chat, token_ids = options.get("chat"), options.get("prompt_token_ids")
    exactly_one(prompt=prompt, chat=chat, prompt_token_ids=token_ids)
    message = pb.GenerateRequest()
    request = Part(message)
    write_input(request, prompt, options)
    write_parameters(request, options)
    return message


def write_input(request: Part, prompt: str | None, options: GenerateOptions) -> None:
    chat, token_ids = options.get("chat"), options.get("prompt_token_ids")
    if chat is None:
        chats.refuse_without_chat(options)
    else:
        chats.write(request.present("chat"), chat, options)
    if token_ids is not None:
        write_token_ids(request, token_ids)
    request.set("prompt", prompt)


def write_parameters(request: Part, options: GenerateOptions) -> None:
    """All but the input."""
    for name in SCALARS:
        request.set(name, options.get(name))
    sampling.write(request.part("sampling"), options)
    stopping.write(request.part("stopping"), options)
    output.write(request.part("output"), options)
    constraint.write(request, options.get("constraint"))


def generations(request: pb.GenerateRequest) -> int:
    """How many generations of its input the request asks for."""
    return max(request.sampling.n, 1)
