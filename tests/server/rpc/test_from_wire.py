from dataclasses import replace

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st
from treadle.v1 import generation_pb2 as pb

from server.engine.errors import InvalidArgument
from server.rpc import from_wire
from tests.server.fakes import VOCABULARY_SIZE, describe
from tests.server.rpc.invalid_requests import Invalid, invalid_requests
from tests.server.rpc.serving import SERVER, Serving, Start, generate_request, refusal_of_answer

LARGE_MESSAGES = replace(SERVER, max_message_bytes=1 << 20, max_open_bytes=4 << 20)


@pytest.mark.parametrize("invalid", invalid_requests(), ids=str)
async def test_a_bad_field_is_named(start: Start, invalid: Invalid) -> None:
    serving = await (await start(Serving(server_settings=LARGE_MESSAGES))).ready()
    refused = await serving.refusal(invalid.request)
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
    assert refused.field == invalid.field
    assert refused.message.startswith(f"{invalid.field} is ")
    refused = await refusal_of_answer(serving.complete(invalid.request))
    assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, f"generate.{invalid.field}")
    assert serving.is_empty()


@pytest.mark.parametrize("best_of", [0, 1, 2, 3])
async def test_best_of_is_refused_in_generate_and_named(serving: Serving, best_of: int) -> None:
    request = generate_request()
    request.sampling.best_of = best_of
    assert (await serving.refusal(request)).field == "sampling.best_of"


@pytest.mark.parametrize(("n", "best_of"), [(2, 1), (2, 0), (1, 13)])
async def test_best_of_is_from_n_to_the_limit(serving: Serving, n: int, best_of: int) -> None:
    request = generate_request()
    request.sampling.n, request.sampling.best_of = n, best_of
    refused = await refusal_of_answer(serving.complete(request))
    assert refused.field == "generate.sampling.best_of"


async def test_best_of_chooses_by_the_models_own_distribution_whichever_is_told(serving: Serving) -> None:
    request = generate_request()
    request.sampling.temperature, request.sampling.seed, request.sampling.best_of = 1, 7, 4
    silent = (await serving.complete(request)).completions[0]
    request.output.logprobs, request.output.logprobs_of = 1, pb.LOGPROBS_OF_PROCESSED
    telling = (await serving.complete(request)).completions[0]
    assert (telling.seed, telling.mean_logprob) == (silent.seed, silent.mean_logprob)


def invalid_inputs() -> dict[str, pb.Input]:
    robot = [pb.ChatMessage(role="robot", content="b")]
    return {
        "input": pb.Input(),
        "prompt": pb.Input(prompt="x" * 127),
        "prompt_token_ids": pb.Input(prompt_token_ids=pb.TokenIds(ids=[1] * 128)),
        "prompt_token_ids.ids": pb.Input(prompt_token_ids=pb.TokenIds(ids=[VOCABULARY_SIZE])),
        "chat.messages": pb.Input(chat=pb.Chat()),
        "chat.messages[0].role": pb.Input(chat=pb.Chat(messages=robot)),
        "chat.tools": pb.Input(
            chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="a")], tools=[pb.Tool(name="f")])
        ),
    }


@pytest.mark.parametrize(("field", "bad"), invalid_inputs().items(), ids=list(invalid_inputs()))
async def test_a_bad_field_of_an_input_is_named_with_the_input(serving: Serving, field: str, bad: pb.Input) -> None:
    request = generate_request()
    request.ClearField("prompt")
    refused = await refusal_of_answer(serving.complete(request, [pb.Input(prompt="good"), bad]))
    assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, f"inputs[1].{field}")
    assert serving.is_empty()


@pytest.mark.parametrize("field", ["prompt", "prompt_token_ids", "chat"])
async def test_inputs_stand_in_place_of_generates_own_never_beside_it(serving: Serving, field: str) -> None:
    request = generate_request()
    if field != "prompt":
        getattr(request, field).SetInParent()
    refused = await refusal_of_answer(serving.complete(request, [pb.Input(prompt="x")]))
    assert refused.field == f"generate.{field}"


@pytest.mark.parametrize(("inputs", "n"), [(13, 1), (5, 3), (7, 2), (100_000, 1)])
async def test_more_generations_than_the_limit_are_refused(start: Start, inputs: int, n: int) -> None:
    serving = await (await start(Serving(server_settings=LARGE_MESSAGES))).ready()
    request = generate_request()
    request.ClearField("prompt")
    request.sampling.n = n
    refused = await refusal_of_answer(serving.complete(request, [pb.Input(prompt="x")] * inputs))
    assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, "inputs")
    assert serving.is_empty()


async def test_special_tokens_are_added_or_not_to_prompts_alone(serving: Serving) -> None:
    request = generate_request()
    request.ClearField("prompt")
    request.add_special_tokens = False
    inputs = [pb.Input(prompt="x"), pb.Input(prompt_token_ids=pb.TokenIds(ids=[1]))]
    refused = await refusal_of_answer(serving.complete(request, inputs))
    assert refused.field == "generate.add_special_tokens"


async def test_complete_without_anything_to_generate_is_refused(serving: Serving) -> None:
    refused = await refusal_of_answer(serving.stub.Complete(pb.CompleteRequest()))
    assert refused.field == "generate"


async def test_tokenize_and_detokenize_name_what_is_wrong(serving: Serving) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="input is unset"):
        await serving.stub.Tokenize(pb.TokenizeRequest())
    with pytest.raises(grpc.aio.AioRpcError, match=r"token_ids\[1\] is 260: must be below the vocabulary size, 260"):
        await serving.stub.Detokenize(pb.DetokenizeRequest(token_ids=[1, 260]))


@given(st.integers(-400_000_000_000, 400_000_000_000), st.integers(-(2**31), 2**31 - 1))
def test_a_time_limit_is_a_valid_duration_above_zero_or_refused(seconds: int, nanos: int) -> None:
    message = pb.StoppingCriteria(time_limit=Duration(seconds=seconds, nanos=nanos))
    valid = abs(seconds) <= 315_576_000_000 and 0 <= nanos < 10**9 and (seconds > 0 or (seconds == 0 and nanos > 0))
    if valid:
        assert from_wire.stopping(message, describe(), prompt_length=1).time_limit == seconds + nanos / 1e9
    else:
        with pytest.raises(InvalidArgument, match=r"stopping\.time_limit"):
            from_wire.stopping(message, describe(), prompt_length=1)


@pytest.mark.parametrize(("prompt_length", "resolved"), [(101, 20), (108, 20), (109, None)])
def test_the_models_default_of_new_tokens_holds_where_it_fits(prompt_length: int, resolved: int | None) -> None:
    described = replace(describe(), default_max_new_tokens=20)
    found = from_wire.stopping(pb.StoppingCriteria(), described, prompt_length)
    assert found.max_new_tokens == resolved
