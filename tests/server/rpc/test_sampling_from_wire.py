import struct

from hypothesis import given
from hypothesis import strategies as st
from treadle.v1 import generation_pb2 as pb

from server.rpc.sampling_from_wire import sampling
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
