import math

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from server.engine.errors import InvalidArgument
from server.rpc.duration import MAX_SECONDS, duration, seconds


@given(st.integers(-2 * MAX_SECONDS, 2 * MAX_SECONDS), st.integers(-(2**31), 2**31 - 1))
def test_a_duration_that_is_valid_is_read_and_any_other_refused_by_its_field(whole: int, nanos: int) -> None:
    message = Duration(seconds=whole, nanos=nanos)
    if message_is_valid(message):
        assert seconds("field", message) == pytest.approx(whole + nanos / 1e9, rel=1e-12)
    else:
        with pytest.raises(InvalidArgument) as caught:
            seconds("field", message)
        assert caught.value.field == "field"


def message_is_valid(message: Duration) -> bool:
    """What the protobuf library itself says."""
    try:
        message.ToNanoseconds()
        message.ToJsonString()
    except ValueError:
        return False
    return True


@given(st.floats(0, 1e6))
def test_seconds_become_a_duration_to_the_nanosecond(number: float) -> None:
    assert math.isclose(seconds("field", duration(number)), number, abs_tol=1e-9)
