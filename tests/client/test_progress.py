"""When a stream of several generations is whole, whatever the order its events come in."""

import pytest
import treadle
from hypothesis import given
from hypothesis import strategies as st
from treadle.progress import Progress
from treadle.v1 import generation_pb2 as pb

from tests.client.scripted import RESULT, STARTED, of, tokens


@st.composite
def interleaved(draw: st.DrawFn) -> list[pb.GenerateResponse]:
    """The events of up to 5 generations, each generation's in their order."""
    lengths = draw(st.lists(st.integers(0, 3), min_size=1, max_size=5))
    turns = [index for index, length in enumerate(lengths) for _ in range(length + 2)]
    remaining = [iter([STARTED, *[tokens("a")] * length, RESULT]) for length in lengths]
    return [of(index, next(remaining[index])) for index in draw(st.permutations(turns))]


@given(events=interleaved())
def test_it_is_complete_with_the_result_of_every_generation_and_not_before(events: list[pb.GenerateResponse]) -> None:
    n = 1 + max(event.index for event in events)
    progress, ended = Progress(n), set()
    for message in events:
        assert not progress.is_complete
        with pytest.raises(treadle.IncompleteStream):
            progress.check_complete()
        event = progress.hear(message)
        assert event is not None
        assert event.index == message.index
        if message.HasField("result"):
            ended.add(message.index)
        assert progress.is_complete is (len(ended) == n)
    progress.check_complete()
    assert [result.index for result in progress.results()] == list(range(n))


def test_the_same_result_twice_does_not_stand_for_another() -> None:
    progress = Progress(2)
    for message in (of(1, STARTED), of(1, RESULT), of(1, RESULT)):
        progress.hear(message)
    with pytest.raises(treadle.IncompleteStream, match="with 1 of 2 results") as raised:
        progress.check_complete()
    assert raised.value.request_id == "r1"
    with pytest.raises(RuntimeError, match="no result yet"):
        progress.results()
