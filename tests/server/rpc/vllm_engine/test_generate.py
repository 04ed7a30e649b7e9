"""Generate of VllmEngine: ids in, ids out. The oracle is GenerationService over the same engine."""

import asyncio
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from treadle.v1 import generation_pb2 as treadle

from server.engine.engine import Lifecycle
from tests.server.fakes import EOS, logprob_of
from tests.server.rpc.serving import Serving, Start, eventually, token_ids
from tests.server.rpc.vllm_engine.calling import PROMPT, SETTINGS, answers, asking, held, refusal_of, stub_of


@pytest.fixture
async def serving(start: Start) -> Serving:
    return await (await start(Serving(server_settings=SETTINGS))).ready()


async def expected(serving: Serving, **sampling: Any) -> list[int]:
    """What GenerationService generates for the same."""
    stopping = treadle.StoppingCriteria(max_new_tokens=8, ignore_eos=True)
    request = treadle.GenerateRequest(
        prompt_token_ids=treadle.TokenIds(ids=PROMPT), stopping=stopping, sampling=treadle.SamplingParams(**sampling)
    )
    return token_ids(await serving.events(request))


async def test_a_streamed_generation_is_deltas_of_ids_and_then_its_totals(serving: Serving) -> None:
    *chunks, last = await answers(serving, asking())
    assert [i for each in chunks for i in each.chunk.token_ids] == await expected(serving, temperature=0.0)
    assert chunks[-1].chunk.completion_tokens == 8
    complete = last.complete
    assert (complete.finish_reason, list(complete.output_ids)) == ("length", [])
    assert (complete.prompt_tokens, complete.completion_tokens) == (len(PROMPT), 8)


async def test_a_generation_that_is_not_streamed_is_one_message_with_all_of_it(serving: Serving) -> None:
    (only,) = await answers(serving, asking(stream=False))
    assert list(only.complete.output_ids) == await expected(serving, temperature=0.0)
    assert only.complete.completion_tokens == 8


async def test_a_seed_draws_what_it_draws_elsewhere(serving: Serving) -> None:
    (only,) = await answers(serving, asking(stream=False, temperature=0.7, min_p=0.25, seed=11))
    assert list(only.complete.output_ids) == await expected(serving, temperature=0.7, min_p=0.25, seed=11)


async def test_a_temperature_that_is_not_named_is_one_that_samples(serving: Serving) -> None:
    request = asking(stream=False, seed=11)
    request.sampling_params.ClearField("temperature")
    (only,) = await answers(serving, request)
    assert list(only.complete.output_ids) == await expected(serving, temperature=1.0, seed=11)


@pytest.mark.parametrize("stream", [True, False])
async def test_each_of_several_generations_has_its_index_and_its_end(serving: Serving, stream: bool) -> None:
    responses = await answers(serving, asking(stream=stream, n=3, temperature=1.0, seed=5))
    ids: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for response in responses:
        ids[response.chunk.index] += response.chunk.token_ids
        ids[response.complete.index] += response.complete.output_ids
    ends = [response.complete.index for response in responses if response.HasField("complete")]
    assert sorted(ends) == [0, 1, 2]
    assert [len(each) for each in ids.values()] == [8, 8, 8]
    assert len({tuple(each) for each in ids.values()}) == 3


async def test_a_stop_sequence_ends_it_here_and_is_named(serving: Serving) -> None:
    greedy = await expected(serving, temperature=0.0)
    second = serving.tokenizer.decode(greedy[1:2])
    (only,) = await answers(serving, asking(stream=False, stop=[second]))
    complete = only.complete
    assert (complete.finish_reason, complete.matched_stop_str) == ("stop", second)
    assert list(complete.output_ids) == greedy[:2]


async def test_a_stop_token_is_named_and_the_end_of_sequence_is_not(serving: Serving) -> None:
    greedy = await expected(serving, temperature=0.0)
    (only,) = await answers(serving, asking(stream=False, stop_token_ids=[greedy[1]]))
    assert (only.complete.finish_reason, only.complete.matched_token_id) == ("stop", greedy[1])
    serving.model.choose = lambda seen, draw: EOS
    (only,) = await answers(serving, asking(stream=False, ignore_eos=False))
    assert (only.complete.finish_reason, only.complete.WhichOneof("matched_stop")) == ("stop", None)


async def test_more_tokens_than_fit_are_as_many_as_fit(serving: Serving) -> None:
    (only,) = await answers(serving, asking(stream=False, max_tokens=100_000))
    assert only.complete.finish_reason == "length"
    assert only.complete.completion_tokens == serving.model.description.max_total_tokens - len(PROMPT)


@pytest.mark.parametrize("stream", [True, False])
async def test_log_probabilities_come_with_their_ids(serving: Serving, stream: bool) -> None:
    responses = await answers(serving, asking(stream=stream, logprobs=2))
    told = [getattr(each, each.WhichOneof("response") or "").output_logprobs for each in responses]
    ids = [i for each in told for i in each.token_ids]
    assert ids == await expected(serving, temperature=0.0)
    oracle = [logprob_of([*PROMPT, *ids[:i]], token_id, 2) for i, token_id in enumerate(ids)]
    assert [value for each in told for value in each.token_logprobs] == pytest.approx([each.logprob for each in oracle])
    tops = [list(top.token_ids) for each in told for top in each.top_logprobs]
    assert tops == [[alternative.token_id for alternative in each.alternatives] for each in oracle]


@pytest.mark.parametrize("stream", [True, False])
async def test_those_of_the_prompt_come_once_for_each_generation(serving: Serving, stream: bool) -> None:
    responses = await answers(serving, asking(stream=stream, prompt_logprobs=1, n=2))
    messages = [getattr(each, each.WhichOneof("response") or "") for each in responses]
    told = [each for each in messages if each.HasField("input_logprobs")]
    assert sorted(each.index for each in told) == [0, 1]
    for each in told:
        values = each.input_logprobs.token_logprobs
        assert list(each.input_logprobs.token_ids) == list(PROMPT)
        assert not values[0].HasField("value")
        assert [value.value for value in values[1:]] == pytest.approx(
            [logprob_of(PROMPT[:i], PROMPT[i], 1).logprob for i in range(1, len(PROMPT))]
        )


async def test_a_constraint_holds(serving: Serving) -> None:
    choice = pb.ChoiceConstraint(choices=["yes", "no"])
    (only,) = await answers(serving, asking(stream=False, choice=choice, ignore_eos=False))
    assert serving.tokenizer.decode(only.complete.output_ids) in ("yes", "no")
    assert only.complete.finish_reason == "stop"


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"structural_tag": "{}"}, "sampling_params.structural_tag"),
        ({"json_schema": "{}"}, "sampling_params.json_schema"),
        ({"logprobs": -1}, "sampling_params.logprobs"),
        ({"prompt_logprobs": 21}, "sampling_params.prompt_logprobs"),
        ({"truncate_prompt_tokens": -1}, "sampling_params.truncate_prompt_tokens"),
        ({"seed": -1}, "sampling_params.seed"),
        ({"logit_bias": {-1: 1.0}}, "sampling_params.logit_bias[-1]"),
        ({"logit_bias": {999: 1.0}}, "sampling_params.logit_bias[999]"),
        ({"temperature": -1.0}, "sampling_params.temperature"),
        ({"top_p": 1.5}, "sampling_params.top_p"),
        ({"max_tokens": 0}, "sampling_params.max_tokens"),
        ({"min_tokens": 9}, "sampling_params.min_tokens"),
        ({"stop_token_ids": [999]}, "sampling_params.stop_token_ids"),
        ({"stop": [""]}, "sampling_params.stop[0]"),
        ({"n": 4_000_000_000}, "sampling_params.n"),
        ({"prompt": ()}, "tokenized.input_ids"),
        ({"prompt": (999,)}, "tokenized.input_ids"),
        ({"prompt": (1,) * 500}, "tokenized.input_ids"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_its_name(
    serving: Serving, params: dict[str, Any], field: str
) -> None:
    refusal = await refusal_of(stub_of(serving).Generate(asking(**params)))
    assert (refusal.code, refusal.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_transfer_params_json", "{}"),
        ("data_parallel_rank", 1),
        ("mm_inputs", pb.MultimodalInputs()),
        ("extra_mm_inputs", [pb.MultimodalInputs()]),
        ("media_refs", pb.MediaRefs()),
        ("kv_transfer_params", pb.KvTransferParams()),
    ],
)
async def test_what_is_not_served_is_refused_by_its_name(serving: Serving, field: str, value: Any) -> None:
    request = asking()
    request.MergeFrom(pb.GenerateRequest(**{field: value}))
    assert (await refusal_of(stub_of(serving).Generate(request))).field == field


@pytest.mark.parametrize("stream", [True, False])
async def test_an_abort_ends_every_generation_and_frees_what_it_had(serving: Serving, stream: bool) -> None:
    call = await held(serving, asking(stream=stream, request_id="gone", max_tokens=100, n=2))
    await stub_of(serving).Abort(pb.AbortRequest(request_ids=["gone", "never was"]))
    ends = [response.complete async for response in call]
    assert {(end.index, end.finish_reason) for end in ends} == {(0, "abort"), (1, "abort")}
    assert await call.code() is grpc.StatusCode.OK
    serving.steps.open()
    await eventually(serving.is_empty)


async def test_an_abort_of_what_is_over_or_was_never_there_is_ok(serving: Serving) -> None:
    await answers(serving, asking(request_id="over"))
    await stub_of(serving).Abort(pb.AbortRequest(request_ids=["over", "never was"]))
    assert len(await answers(serving, asking(stream=False, request_id="over"))) == 1


async def test_an_id_in_flight_is_refused_and_its_call_goes_on(serving: Serving) -> None:
    call = await held(serving, asking(stream=False, request_id="same"))
    refusal = await refusal_of(stub_of(serving).Generate(asking(request_id="same")))
    assert refusal.code is grpc.StatusCode.ALREADY_EXISTS
    serving.steps.open()
    assert [response.complete.finish_reason async for response in call] == ["length"]


async def test_a_cancelled_call_frees_what_it_had(serving: Serving) -> None:
    call = await held(serving, asking(stream=False, max_tokens=100))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.read()
    serving.steps.open()
    await eventually(serving.is_empty)


async def test_while_it_drains_new_calls_are_unavailable_and_running_ones_finish(serving: Serving) -> None:
    call = await held(serving, asking(stream=False))
    serving.engine.drain()
    assert serving.engine.lifecycle is Lifecycle.DRAINING
    refusal = await refusal_of(stub_of(serving).Generate(asking()))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    serving.steps.open()
    assert [response.complete.finish_reason async for response in call] == ["length"]
