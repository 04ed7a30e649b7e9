import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from treadle.v1 import generation_pb2 as pb

from server.engine.errors import InvalidArgument
from server.rpc.sampling_from_wire import GenerationCounts, generation_counts, sampling
from tests.server.fakes import describe

DEFAULTS = describe().sampling_defaults


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=0, max_value=100))
def test_a_32_bit_float_is_read_as_the_shortest_decimal_that_is_it(number: float) -> None:
    read = sampling(pb.SamplingParams(temperature=number), DEFAULTS).temperature
    assert struct.pack("<f", read) == struct.pack("<f", number)
    assert len(f"{read!r}") <= len(f"{number!r}")


@given(st.integers(1, 1000))
def test_a_decimal_of_three_places_is_read_as_it_was_written(thousandths: int) -> None:
    assert sampling(pb.SamplingParams(top_p=thousandths / 1000), DEFAULTS).top_p == thousandths / 1000


def test_unset_sampling_is_the_models_and_zero_is_not_unset() -> None:
    unset = sampling(pb.SamplingParams(), DEFAULTS)
    assert (unset.temperature, unset.top_k, unset.top_p) == (0.0, 0, 1.0)
    assert sampling(pb.SamplingParams(seed=0), DEFAULTS).seed == 0
    assert sampling(pb.SamplingParams(top_k=5), DEFAULTS).temperature == DEFAULTS.sampled_temperature
    assert sampling(pb.SamplingParams(top_k=5, temperature=0), DEFAULTS).temperature == 0


@given(st.floats(width=32, min_value=-100, max_value=100), st.sampled_from(["frequency_penalty", "presence_penalty"]))
def test_a_penalty_is_read_and_0_without_one(number: float, field: str) -> None:
    message = pb.SamplingParams()
    assert getattr(sampling(message, DEFAULTS), field) == 0
    setattr(message, field, number)
    assert getattr(sampling(message, DEFAULTS), field) == pytest.approx(number, rel=1e-6)


def test_biases_are_read_by_id_and_forbidden_sequences_in_order() -> None:
    message = pb.SamplingParams(
        logit_bias={9: 0.7, 2: -100}, forbidden_sequences=[pb.TokenIds(ids=[3, 1]), pb.TokenIds(ids=[2])]
    )
    read = sampling(message, DEFAULTS)
    assert read.logit_bias == ((2, -100.0), (9, 0.7))
    assert read.forbidden_sequences == ((3, 1), (2,))


def test_what_is_unset_is_the_models_default_of_each() -> None:
    defaults = replace(DEFAULTS, min_p=0.1, typical_p=0.9, repetition_penalty=1.2)
    unset = sampling(pb.SamplingParams(), defaults)
    assert (unset.min_p, unset.typical_p, unset.repetition_penalty) == (0.1, 0.9, 1.2)
    neutral = sampling(pb.SamplingParams(min_p=0, typical_p=1, repetition_penalty=1), defaults)
    assert (neutral.min_p, neutral.typical_p, neutral.repetition_penalty) == (0, 1, 1)


@given(st.none() | st.integers(0, 20), st.none() | st.integers(0, 20), st.integers(1, 16))
def test_what_is_made_is_best_of_else_n_else_one_within_the_limit(
    n: int | None, best_of: int | None, limit: int
) -> None:
    answered = 1 if n is None else n
    made = answered if best_of is None else best_of
    message = pb.SamplingParams(n=n, best_of=best_of)
    if 1 <= answered <= made <= limit:
        expected = GenerationCounts(made, best=None if best_of is None else answered)
        assert generation_counts(message, limit) == expected
    else:
        with pytest.raises(InvalidArgument, match=rf"sampling\.(n|best_of) is .*{limit}"):
            generation_counts(message, limit)
