"""The names of a request's fields, as a client of vllm.grpc.engine knows them."""

from collections.abc import Iterator
from contextlib import contextmanager

from server.engine.errors import InvalidArgument

NAMES = (
    ("sampling.", "sampling_params."),
    ("stopping.max_new_tokens", "sampling_params.max_tokens"),
    ("stopping.min_new_tokens", "sampling_params.min_tokens"),
    ("stopping.", "sampling_params."),
    ("output.", "sampling_params."),
    ("constraint.", "sampling_params."),
    ("tokenized.input_ids.ids", "tokenized.input_ids"),
)
"""Beginnings of the engine's names and what they are in the message; the first that fits counts."""


@contextmanager
def named_as_in_the_message() -> Iterator[None]:
    """Renames the field of an InvalidArgument that is raised inside."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidArgument(_in_the_message(error.field), error.value, error.limit) from error


def _in_the_message(field: str) -> str:
    for ours, theirs in NAMES:
        if field.startswith(ours):
            return theirs + field.removeprefix(ours)
    return field
