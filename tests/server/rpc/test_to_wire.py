from treadle.v1 import generation_pb2 as pb

from server.engine.events import Finish, FinishReason, Result, Timing, Usage
from server.rpc import to_wire


def result(finish: Finish, time_to_first_token: float | None = 0.5) -> Result:
    return Result(finish, Usage(1, 2, 0), Timing(0.25, 0.25, time_to_first_token, 1.5))


def test_every_finish_reason_has_its_own_on_the_wire() -> None:
    names = {pb.FinishReason.Name(to_wire.result(result(Finish(reason))).finish_reason) for reason in FinishReason}
    assert names == set(pb.FinishReason.keys()) - {"FINISH_REASON_UNSPECIFIED"}


def test_what_was_matched_is_told_only_where_something_was() -> None:
    assert to_wire.result(result(Finish(FinishReason.END_OF_SEQUENCE))).WhichOneof("matched") is None
    by_token = to_wire.result(result(Finish(FinishReason.STOP_TOKEN, stop_token_id=0)))
    assert (by_token.WhichOneof("matched"), by_token.stop_token_id) == ("stop_token_id", 0)
    by_text = to_wire.result(result(Finish(FinishReason.STOP_SEQUENCE, stop_sequence="end")))
    assert by_text.stop_sequence == "end"


def test_the_time_to_the_first_token_is_unset_where_there_was_none() -> None:
    assert not to_wire.result(result(Finish(FinishReason.TIME_LIMIT), None)).timing.HasField("time_to_first_token")
    timing = to_wire.result(result(Finish(FinishReason.TIME_LIMIT))).timing
    assert timing.total.ToTimedelta().total_seconds() == 1.5
