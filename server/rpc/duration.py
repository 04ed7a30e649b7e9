"""google.protobuf.Duration and seconds."""

from google.protobuf.duration_pb2 import Duration

from server.engine.errors import InvalidArgument

MAX_SECONDS = 315_576_000_000
"""google.protobuf.Duration: about 10,000 years."""


def seconds(field: str, message: Duration) -> float:
    """Raises InvalidArgument naming the field where the message is no valid Duration."""
    whole, nanos = message.seconds, message.nanos
    same_sign = whole == 0 or nanos == 0 or (whole > 0) == (nanos > 0)
    if abs(whole) > MAX_SECONDS or abs(nanos) > 999_999_999 or not same_sign:
        raise InvalidArgument(field, f"{whole} s and {nanos} ns", "must be a valid google.protobuf.Duration")
    return whole + nanos / 1e9


def duration(seconds: float) -> Duration:
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message
