"""What both clients make of what a server does: events, errors, retries."""

import grpc
import pytest
import treadle
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from treadle import FinishReason, RetryPolicy, Started, Tokens
from treadle.v1 import generation_pb2 as pb

from tests.client.callers import Caller
from tests.client.requests.test_generate import every_option, expected
from tests.client.scripted import (
    RESULT,
    STARTED,
    Script,
    ScriptedServer,
    answers,
    fails,
    of,
    reason,
    says,
    silent,
    tokens,
)

UNAVAILABLE = fails(grpc.StatusCode.UNAVAILABLE, "not now", reason("DRAINING"))
FULL = fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", reason("QUEUE_FULL"))
BROKEN = fails(grpc.StatusCode.UNAVAILABLE, "Socket closed")
DUPLICATE = fails(grpc.StatusCode.ALREADY_EXISTS, "in flight", reason("DUPLICATE_REQUEST_ID"))


def retry_info(seconds: float) -> error_details_pb2.RetryInfo:
    delay = Duration()
    delay.FromNanoseconds(round(seconds * 1e9))
    return error_details_pb2.RetryInfo(retry_delay=delay)


def test_a_stream_is_its_events_in_order(caller: Caller) -> None:
    started, first, second, result = caller.generate("hi")
    assert started == Started(0, "r1", seed=7, prompt_token_count=3, cached_token_count=1)
    assert (first, second) == (Tokens(0, (5,), "Hello"), Tokens(0, (6,), " world"))
    assert isinstance(result, treadle.Result)
    assert result.finish_reason is FinishReason.MAX_NEW_TOKENS
    assert result.usage == treadle.Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=0)


def test_a_completion_is_the_whole(caller: Caller) -> None:
    completion = caller.complete("hi")
    assert (completion.text, completion.token_ids, completion.seed) == ("Hello world", (1, 2), 7)


def test_every_option_reaches_the_wire(caller: Caller, server: ScriptedServer) -> None:
    server.play(says(*[of(index, RESULT) for index in range(3)]))
    caller.generate(**every_option())
    assert server.asked[0].request == expected()


def test_generations_come_interleaved_each_with_its_index(caller: Caller, server: ScriptedServer) -> None:
    a, b = tokens("a"), tokens("b")
    server.play(says(of(1, STARTED), STARTED, of(1, a), b, of(1, RESULT), a, RESULT))
    events = caller.generate("hi", n=2)
    assert [event.index for event in events] == [1, 0, 1, 0, 1, 0, 0]
    assert [event.text for event in events if isinstance(event, Tokens) and event.index == 0] == ["b", "a"]
    assert [result.index for result in caller.heard.results] == [0, 1]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_stream_that_lacks_the_result_of_one_generation_raises(
    caller: Caller, server: ScriptedServer, missing: int
) -> None:
    server.play(says(STARTED, *[of(index, RESULT) for index in range(3) if index != missing]), answers("again"))
    with pytest.raises(treadle.IncompleteStream, match="with 2 of 3 results"):
        caller.generate("hi", n=3)
    assert len(server.asked) == 1


def test_nothing_is_tried_again_once_an_event_of_any_generation_has_come(
    caller: Caller, server: ScriptedServer
) -> None:
    server.play(fails(grpc.StatusCode.UNAVAILABLE, "went away", after=(of(2, STARTED),)), answers("again"))
    with pytest.raises(treadle.Unavailable, match="went away"):
        caller.generate("hi", n=3)
    assert len(server.asked) == 1


def test_the_text_is_of_one_generation(caller: Caller, server: ScriptedServer) -> None:
    assert caller.text("hi", n=1) == "Hello world"
    with pytest.raises(RuntimeError, match="has 2 generations, and `text\\(\\)` is for one"):
        caller.text("hi", n=2)


def test_the_text_leaves_out_what_is_parsed_of_it(caller: Caller, server: ScriptedServer) -> None:
    parsed = pb.GenerateResponse(content=pb.ContentChunk(text="so")), pb.GenerateResponse(prompt=pb.Prompt(text="p"))
    server.play(says(STARTED, parsed[1], tokens("so"), parsed[0], RESULT))
    assert caller.text("hi", parse_reasoning=True, echo_prompt=True) == "so"


def test_all_completions_come_by_input_and_index(caller: Caller, server: ScriptedServer) -> None:
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    server.servicer.completions = [pb.Completion(input=i, index=j, result=RESULT.result) for i, j in places]
    completions = caller.complete_all(inputs=["a", [1, 2]], n=2, best_of=3)
    assert [(each.input, each.index, each.result.index) for each in completions] == [(i, j, j) for i, j in places]
    request = server.asked[0].request
    assert [each.WhichOneof("input") for each in request.inputs] == ["prompt", "prompt_token_ids"]
    assert (request.generate.sampling.n, request.generate.sampling.best_of) == (2, 3)


@pytest.mark.parametrize("last", [[], [pb.Completion(input=1, index=1, text="cut")]])
def test_completions_of_which_one_lacks_its_result_raise(
    caller: Caller, server: ScriptedServer, last: list[pb.Completion]
) -> None:
    server.servicer.completions = [pb.Completion(result=RESULT.result) for _ in range(3)] + last
    with pytest.raises(treadle.IncompleteStream, match="with 3 of 4 results"):
        caller.complete_all(inputs=["a", "b"], n=2)


def test_a_completion_is_one_even_where_it_is_the_best_of_several(caller: Caller, server: ScriptedServer) -> None:
    assert caller.complete("hi", best_of=3).text == "Hello world"
    assert server.asked[0].request.generate.sampling.best_of == 3
    with pytest.raises(TypeError, match="n is above 1: use complete_all"):
        caller.complete("hi", n=2)
    assert len(server.asked) == 1


def test_every_option_of_tokenizing_reaches_the_wire(caller: Caller, server: ScriptedServer) -> None:
    caller.tokenize("hi", add_special_tokens=False)
    caller.tokenize(chat=[treadle.ChatMessage("user", "hi")], tools=[treadle.Tool("f")])
    text, chat = (asked.request for asked in server.asked)
    assert text == pb.TokenizeRequest(text="hi", add_special_tokens=False)
    assert [tool.name for tool in chat.chat.tools] == ["f"]


def test_an_event_of_an_unknown_kind_is_passed_over(caller: Caller, server: ScriptedServer) -> None:
    server.play(says(STARTED, pb.GenerateResponse(), RESULT))
    assert [type(event) for event in caller.generate("hi")] == [Started, treadle.Result]


@pytest.mark.parametrize("refusal", [UNAVAILABLE, FULL])
def test_what_the_server_did_not_begin_is_tried_again(caller: Caller, server: ScriptedServer, refusal: object) -> None:
    server.play(refusal, refusal, answers("yes"))  # type: ignore[arg-type]
    assert caller.generate("hi")[1] == Tokens(0, (3,), "yes")
    assert len(server.asked) == 3


REFUSALS = ["NOT_READY", "DRAINING", "QUEUE_FULL", "TOO_MANY_OPEN_CALLS", "TOO_MANY_OPEN_BYTES", "TOO_MANY_WAITING"]


@pytest.mark.parametrize("name", REFUSALS)
def test_a_completion_that_the_server_refuses_for_now_is_tried_again(
    caller: Caller, server: ScriptedServer, name: str
) -> None:
    server.play(fails(grpc.StatusCode.UNAVAILABLE, "not now", reason(name)), answers("yes"))
    assert caller.complete("hi").text == "yes"
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    "failure",
    [
        fails(grpc.StatusCode.UNAVAILABLE, "upstream reset"),
        fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests"),
        fails(grpc.StatusCode.UNAVAILABLE, "dead", reason("ENGINE_DIED")),
        fails(grpc.StatusCode.UNAVAILABLE, "no", error_details_pb2.ErrorInfo(domain="mesh", reason="QUEUE_FULL")),
    ],
    ids=["broken", "limited by a proxy", "engine died", "another's reason"],
)
def test_a_completion_whose_work_may_have_begun_is_not_tried_again(
    caller: Caller, server: ScriptedServer, failure: Script
) -> None:
    server.play(failure, answers("twice"))
    with pytest.raises(treadle.TreadleError) as raised:
        caller.complete("hi")
    assert not raised.value.is_refusal
    assert len(server.asked) == 1


def test_attempts_are_bounded_and_the_last_error_is_raised(caller: Caller, server: ScriptedServer) -> None:
    server.play(UNAVAILABLE)
    with pytest.raises(treadle.Unavailable, match="not now") as raised:
        caller.generate("hi")
    assert raised.value.reason == "DRAINING"
    assert raised.value.request_id == "r1"
    assert len(server.asked) == 4


def test_nothing_is_tried_again_once_an_event_has_come(caller: Caller, server: ScriptedServer) -> None:
    server.play(fails(grpc.StatusCode.UNAVAILABLE, "went away", after=(STARTED, tokens("a"))), answers("b"))
    with pytest.raises(treadle.Unavailable, match="went away"):
        caller.generate("hi")
    assert len(server.asked) == 1
    assert len(caller.heard.events) == 2


@pytest.mark.parametrize(
    ("code", "name", "error"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER", treadle.SlowReader),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE", treadle.MessageTooLarge),
        (grpc.StatusCode.INTERNAL, "STEP_FAILED", treadle.ServerError),
        (grpc.StatusCode.UNKNOWN, "", treadle.ServerError),
        (grpc.StatusCode.FAILED_PRECONDITION, "CHAT_TEMPLATE_MISSING", treadle.PreconditionFailed),
        (grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID", treadle.DuplicateRequestId),
        (grpc.StatusCode.UNAUTHENTICATED, "", treadle.NotAllowed),
        (grpc.StatusCode.UNIMPLEMENTED, "", treadle.NotSupported),
        (grpc.StatusCode.CANCELLED, "", treadle.Cancelled),
    ],
)
def test_other_errors_are_raised_at_once_as_their_type(
    caller: Caller, server: ScriptedServer, code: grpc.StatusCode, name: str, error: type[treadle.TreadleError]
) -> None:
    server.play(fails(code, "said so", reason(name)))
    with pytest.raises(error, match="said so") as raised:
        caller.generate("hi")
    assert type(raised.value) is error
    assert (raised.value.code, raised.value.reason) == (code.name, name)
    assert len(server.asked) == 1


def test_an_invalid_request_names_its_fields(caller: Caller, server: ScriptedServer) -> None:
    violations = error_details_pb2.BadRequest()
    violations.field_violations.add(field="sampling.top_p", description="is 2: must be at most 1")
    server.play(fails(grpc.StatusCode.INVALID_ARGUMENT, "bad", reason("INVALID_ARGUMENT"), violations))
    with pytest.raises(treadle.InvalidRequest) as raised:
        caller.generate("hi")
    assert raised.value.violations == (treadle.Violation("sampling.top_p", "is 2: must be at most 1"),)


def test_a_delay_longer_than_the_policy_waits_is_the_callers_to_decide(caller: Caller, server: ScriptedServer) -> None:
    server.play(fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", retry_info(3600)), answers("late"))
    with pytest.raises(treadle.Overloaded) as raised:
        caller.generate("hi")
    assert raised.value.retry_after == 3600
    assert len(server.asked) == 1


def test_a_delay_that_does_not_fit_the_timeout_is_not_waited_for(caller: Caller, server: ScriptedServer) -> None:
    server.play(fails(grpc.StatusCode.UNAVAILABLE, "soon", retry_info(0.9)), answers("late"))
    with pytest.raises(treadle.Unavailable, match="soon"):
        caller.generate("hi", timeout=0.8)
    assert len(server.asked) == 1


def test_the_timeout_ends_a_silent_call_and_is_the_servers_deadline(caller: Caller, server: ScriptedServer) -> None:
    server.play(silent)
    with pytest.raises(treadle.DeadlineExceeded):
        caller.generate("hi", timeout=0.5)
    assert len(server.asked) == 1
    remaining = server.asked[0].time_remaining
    assert remaining is not None
    assert remaining <= 0.5


@pytest.mark.parametrize("script", [says(), says(STARTED), says(STARTED, tokens("a"))])
def test_a_stream_that_ends_ok_without_a_result_raises(caller: Caller, server: ScriptedServer, script: object) -> None:
    server.play(script)  # type: ignore[arg-type]
    with pytest.raises(treadle.IncompleteStream):
        caller.generate("hi")
    assert len(server.asked) == 1


def test_a_completion_without_a_result_raises(caller: Caller, server: ScriptedServer) -> None:
    server.play(says())
    with pytest.raises(treadle.IncompleteStream):
        caller.complete("hi")


def test_an_earlier_attempt_still_in_flight_is_waited_out(caller: Caller, server: ScriptedServer) -> None:
    server.play(BROKEN, DUPLICATE, answers("yes"))
    assert caller.generate("hi", request_id="mine")[1] == Tokens(0, (3,), "yes")


def test_an_earlier_attempt_that_never_ends_surfaces_as_what_broke_it(caller: Caller, server: ScriptedServer) -> None:
    server.play(BROKEN, DUPLICATE)
    with pytest.raises(treadle.Unavailable, match="Socket closed"):
        caller.generate("hi", request_id="mine")


def test_nobody_there_is_unavailable(caller: Caller, server: ScriptedServer) -> None:
    server.stop()
    with pytest.raises(treadle.Unavailable):
        caller.generate("hi", retry=RetryPolicy(max_attempts=1))
    with pytest.raises(treadle.Unavailable):
        caller.complete("hi")
