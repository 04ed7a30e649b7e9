"""What a message asks for, as the engine's requests. Raises InvalidArgument naming the field as the client knows it."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from treadle.v1 import generation_pb2 as pb

from server.engine.constraint import Constraint
from server.engine.engine import Served
from server.engine.errors import InvalidArgument
from server.engine.model import ModelDescription
from server.engine.request import MAX_STOP_SEQUENCES, MAX_STOP_TOKEN_IDS, Request, Stopping
from server.engine.sampling import Sampling
from server.engine.seeding import sibling_seed
from server.engine.tokenizer import Tokenizer
from server.parsing.marker_tokens import marker_tokens
from server.rpc.counts import check_count
from server.rpc.duration import seconds
from server.rpc.generation_writer import ShownPrompt
from server.rpc.output import Output, output
from server.rpc.prompt_from_wire import AnyInput, prompt_token_ids
from server.rpc.sampling_from_wire import GenerationCounts, generation_counts, sampling

REASONING_BEGINS = "<think>"
TAIL_TOKENS = 16
"""Tokens at the end of a prompt that REASONING_BEGINS and whitespace may take."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """The call that a message came with."""

    request_id: str
    is_id_claimed: bool
    """Whether the client claims the id for this call alone."""
    at: float
    """On time.monotonic's clock."""


@dataclass(frozen=True, slots=True)
class Asked:
    """All that a message asks for."""

    requests: tuple[Request, ...]
    """By input, then by index."""
    prompts: tuple[ShownPrompt, ...]
    """Of each request."""
    output: Output
    counts: GenerationCounts


@contextmanager
def fields_of(parent: str, *, but_not: str) -> Iterator[None]:
    """Names the fields of what happens inside as the fields of `parent`, but for the field `but_not` beside it."""
    try:
        yield
    except InvalidArgument as error:
        if error.field.startswith(but_not):
            raise
        raise type(error)(f"{parent}.{error.field}", error.value, error.limit) from error


@contextmanager
def _of_input(i: int | None) -> Iterator[None]:
    """Names the fields of an input of several, and what is in them."""
    try:
        yield
    except InvalidArgument as error:
        outermost = re.split(r"[.\[]", error.field)[0]
        if i is None or outermost not in ("input", "prompt", "prompt_token_ids", "chat"):
            raise
        raise InvalidArgument(f"inputs[{i}].{error.field}", error.value, error.limit) from error


def asked(
    message: pb.GenerateRequest,
    inputs: Sequence[pb.Input],
    arrival: Arrival,
    served: Served,
    constraint: Constraint | None,
    max_generations: int,
) -> Asked:
    """Fills in what the message leaves unset, and tokenizes: work for a thread, not for the event loop.

    `inputs` stand in place of the message's own input where there are any.
    """
    shown = output(message.output)
    counts = generation_counts(message.sampling, max_generations)
    made = counts.made
    if len(inputs) * made > max_generations:
        limit = f"must be at most {max_generations} with all their generations"
        raise InvalidArgument("inputs", f"{len(inputs)} long, with {made} generations of each", limit)
    if inputs and message.WhichOneof("input"):
        raise InvalidArgument(message.WhichOneof("input") or "input", "set", "must be unset where there are inputs")
    chosen = sampling(message.sampling, served.model.description.sampling_defaults)
    requests: list[Request] = []
    prompts: list[ShownPrompt] = []
    sources: Sequence[AnyInput] = inputs or [message]
    for i, source in enumerate(sources):
        with _of_input(i if inputs else None):
            prompt = prompt_token_ids(source, message, served)
        field = source.WhichOneof("input") or "input"
        first = Request(
            id=arrival.request_id,
            is_id_claimed=arrival.is_id_claimed,
            prompt_token_ids=prompt,
            prompt_field=f"inputs[{i}].{field}" if inputs else field,
            sampling=chosen,
            arrived_at=arrival.at,
            stopping=stopping(message.stopping, served.model.description, len(prompt)),
            cache_salt=message.cache_salt,
            constraint=constraint,
            priority=message.priority,
            logprobs=shown.logprobs,
            prompt_logprobs=shown.prompt_logprobs,
            wants_mean_logprob=counts.best is not None,
            kept_special_token_ids=_kept_special_tokens(shown, served.tokenizer),
        )
        requests += [first, *(sibling(first, index) for index in range(1, made))]
        prompts += [_shown_prompt(prompt, shown, served.tokenizer)] * made
    return Asked(tuple(requests), tuple(prompts), shown, counts)


def sibling(first: Request, index: int) -> Request:
    """Another generation of the same prompt, of which the first one tells all that is to be told."""
    sampling: Sampling = replace(first.sampling, seed=sibling_seed(first.sampling.seed, index))
    return replace(first, sampling=sampling, prompt_logprobs=None)


def stopping(message: pb.StoppingCriteria, described: ModelDescription, prompt_length: int) -> Stopping:
    check_count("stopping.stop", len(message.stop), MAX_STOP_SEQUENCES)
    check_count("stopping.stop_token_ids", len(message.stop_token_ids), MAX_STOP_TOKEN_IDS)
    default = default_max_new_tokens(described, prompt_length)
    return Stopping(
        max_new_tokens=message.max_new_tokens if message.HasField("max_new_tokens") else default,
        min_new_tokens=message.min_new_tokens,
        stop=tuple(message.stop),
        stop_token_ids=frozenset(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        include_stop_text=message.include_stop_text,
        time_limit=seconds("stopping.time_limit", message.time_limit) if message.HasField("time_limit") else None,
    )


def default_max_new_tokens(described: ModelDescription, prompt_length: int) -> int | None:
    """The model's default where it fits; where it does not, the generation goes on until nothing fits."""
    default = described.default_max_new_tokens
    fits = default is not None and prompt_length + default <= described.max_total_tokens
    return default if fits else None


def _kept_special_tokens(shown: Output, tokenizer: Tokenizer) -> frozenset[int]:
    """Those that mark what is to be parsed are kept for the parser."""
    if shown.keep_special_tokens:
        return tokenizer.special_token_ids
    markers = marker_tokens(reasoning=shown.reasoning, tool_calls=shown.tool_calls)
    if not markers:
        return frozenset()
    return frozenset(i for i in tokenizer.special_token_ids if tokenizer.token_text(i) in markers)


def _shown_prompt(token_ids: Sequence[int], shown: Output, tokenizer: Tokenizer) -> ShownPrompt:
    text = tokenizer.decode(token_ids, keep_special_tokens=True) if shown.shows_prompt else ""
    tail = tokenizer.decode(token_ids[-TAIL_TOKENS:], keep_special_tokens=True) if shown.reasoning else ""
    return ShownPrompt(text, ends_in_reasoning=tail.rstrip().endswith(REASONING_BEGINS))
