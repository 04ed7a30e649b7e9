"""CompleteOptions, to a CompleteRequest."""

from collections.abc import Sequence
from typing import Unpack

from treadle.requests import chat as chats
from treadle.requests.generate import GenerateOptions, write_input, write_parameters
from treadle.requests.input import Input, exactly_one, is_chat, write_one_of_several
from treadle.requests.part import Part, refuse_unknown
from treadle.v1 import generation_pb2 as pb


class CompleteOptions(GenerateOptions, total=False):
    """What to generate and how, and which generations to choose."""

    best_of: int | None
    """Makes this many generations and answers with the n of the highest mean log-probability, best first."""


def complete(
    prompt: str | None = None, inputs: Sequence[Input] | None = None, **options: Unpack[CompleteOptions]
) -> pb.CompleteRequest:
    """Raises as `generate`; `inputs` is one more of the inputs of which exactly one is given."""
    refuse_unknown(options, CompleteOptions.__optional_keys__)
    if isinstance(inputs, str):
        raise TypeError(f"inputs is {inputs!r}: must be a sequence of inputs, not one prompt")
    chat, token_ids = options.get("chat"), options.get("prompt_token_ids")
    exactly_one(prompt=prompt, chat=chat, prompt_token_ids=token_ids, inputs=inputs)
    message = pb.CompleteRequest()
    complete = Part(message)
    request = complete.present("generate")
    if inputs is None:
        write_input(request, prompt, options)
    else:
        if not any(map(is_chat, inputs)):
            chats.refuse_without_chat(options)
        for given in inputs:
            write_one_of_several(complete.add("inputs"), given, options)
    write_parameters(request, options)
    request.part("sampling").set("best_of", options.get("best_of"))
    return message
