import asyncio
from collections.abc import Sequence
from statistics import fmean

import pytest
from google.protobuf.duration_pb2 import Duration
from treadle.v1 import generation_pb2 as pb

from server.engine.events import Finish, FinishReason, Result, Timing, Usage
from server.rpc.completions import Completions
from tests.server.fakes import BOS, FakeTokenizer
from tests.server.rpc.serving import Serving, generate_request


def sampled_request(prompt: str = "hello", seed: int = 7) -> pb.GenerateRequest:
    request = generate_request(prompt, max_new_tokens=6)
    request.sampling.MergeFrom(pb.SamplingParams(temperature=1, seed=seed))
    return request


def inputs_of(request: pb.GenerateRequest) -> pb.GenerateRequest:
    """The request without an input of its own."""
    alone = pb.GenerateRequest()
    alone.CopyFrom(request)
    alone.ClearField("prompt")
    return alone


async def all_with_logprobs(serving: Serving, request: pb.GenerateRequest, n: int) -> list[pb.Completion]:
    everything = pb.GenerateRequest()
    everything.CopyFrom(request)
    everything.sampling.ClearField("best_of")
    everything.sampling.n = n
    everything.output.logprobs = 0
    return list((await serving.complete(everything)).completions)


def mean_logprob(completion: pb.Completion) -> float:
    assert len(completion.logprobs) == len(completion.token_ids)
    return fmean(token.logprob for token in completion.logprobs)


@pytest.mark.parametrize(("n", "best_of"), [(1, 1), (1, 8), (3, 8), (8, 8), (12, 12)])
async def test_the_best_are_those_of_the_highest_mean_logprob_best_first(
    serving: Serving, n: int, best_of: int
) -> None:
    request = sampled_request()
    request.sampling.n, request.sampling.best_of = n, best_of
    ranked = sorted(await all_with_logprobs(serving, request, best_of), key=mean_logprob, reverse=True)
    answer = await serving.complete(request)
    assert [list(best.token_ids) for best in answer.completions] == [list(one.token_ids) for one in ranked[:n]]
    assert [best.mean_logprob for best in answer.completions] == pytest.approx([mean_logprob(o) for o in ranked[:n]])
    assert [best.seed for best in answer.completions] == [one.seed for one in ranked[:n]]
    assert [best.index for best in answer.completions] == list(range(n))
    assert not any(best.logprobs for best in answer.completions)
    assert answer.seed == 7


async def test_the_best_come_with_the_logprobs_that_are_asked_for(serving: Serving) -> None:
    request = sampled_request()
    request.sampling.best_of = 4
    request.output.logprobs = 2
    (best,) = (await serving.complete(request)).completions
    assert best.mean_logprob == pytest.approx(mean_logprob(best))
    assert all(len(token.alternatives) == 2 for token in best.logprobs)


async def test_the_best_of_each_input_are_chosen_among_its_own(serving: Serving) -> None:
    request = inputs_of(sampled_request())
    request.sampling.n, request.sampling.best_of = 2, 4
    prompts = ["one", "another", "third"]
    answer = await serving.complete(request, [pb.Input(prompt=prompt) for prompt in prompts])
    assert [(c.input, c.index) for c in answer.completions] == [(i, k) for i in range(3) for k in range(2)]
    for i, prompt in enumerate(prompts):
        alone = sampled_request(prompt)
        alone.sampling.n, alone.sampling.best_of = 2, 4
        expected = (await serving.complete(alone)).completions
        assert [c.token_ids for c in answer.completions if c.input == i] == [c.token_ids for c in expected]


async def test_generations_that_ended_before_their_first_token_are_the_least_probable(serving: Serving) -> None:
    request = sampled_request()
    request.sampling.best_of = 6
    request.stopping.time_limit.CopyFrom(Duration(nanos=1))
    (best,) = (await serving.complete(request)).completions
    assert best.result.finish_reason == pb.FINISH_REASON_TIME_LIMIT
    assert not best.HasField("mean_logprob")


def ended(mean: float | None) -> Result:
    timing = Timing(0.0, 0.0, 0.0, 0.0)
    return Result(Finish(FinishReason.TIME_LIMIT), Usage(1, 1, 0), timing, mean_logprob=mean)


def ranking(means: Sequence[float | None], best: int | None) -> list[int]:
    """The seeds, which are the indices, of what is answered."""
    completions = Completions(len(means), len(means), best)
    for index, mean in enumerate(means):
        started = pb.Started(seed=index)
        completions.hear([pb.GenerateResponse(index=index, started=started)])
        completions.end(index, ended(mean))
    return [c.seed for c in pb.CompleteResponse.FromString(completions.answer("id")).completions]


def test_of_equals_the_one_of_lower_index_is_better_and_none_is_worst() -> None:
    assert ranking([-2.0, None, -1.0, -2.0, -1.0], best=5) == [2, 4, 0, 3, 1]
    assert ranking([-2.0, None, -1.0], best=1) == [2]
    assert ranking([-2.0, None, -1.0], best=None) == [0, 1, 2]


async def test_each_input_is_generated_as_if_it_were_asked_alone(serving: Serving) -> None:
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])
    inputs = [
        pb.Input(prompt="hello"),
        pb.Input(chat=chat),
        pb.Input(prompt_token_ids=pb.TokenIds(ids=[BOS, *b"hello"])),
        pb.Input(prompt="hello"),
    ]
    request = inputs_of(sampled_request())
    request.sampling.n = 2
    request.output.echo_prompt = True
    answer = await serving.complete(request, inputs)
    assert [(c.input, c.index) for c in answer.completions] == [(i, k) for i in range(4) for k in range(2)]
    assert answer.seed == 7
    for i, source in enumerate(inputs):
        alone = pb.GenerateRequest.FromString(request.SerializeToString() + source_of_generate(source))
        expected = (await serving.complete(alone)).completions
        for found, one in zip(answer.completions[2 * i : 2 * i + 2], expected, strict=True):
            assert found.token_ids == one.token_ids
            assert (found.text, found.seed, found.prompt) == (one.text, one.seed, one.prompt)
            assert (
                found.result.usage.prompt_tokens == one.result.usage.prompt_tokens == len(expected[0].prompt.token_ids)
            )
    assert answer.completions[0].prompt.text == f"<{BOS}>hello"
    assert answer.completions[2].prompt.text == "user: hi\nassistant: "


def source_of_generate(source: pb.Input) -> bytes:
    """The same input as a GenerateRequest's."""
    request = pb.GenerateRequest()
    match source.WhichOneof("input"):
        case "prompt":
            request.prompt = source.prompt
        case "prompt_token_ids":
            request.prompt_token_ids.CopyFrom(source.prompt_token_ids)
        case "chat":
            request.chat.CopyFrom(source.chat)
    return request.SerializeToString()


async def test_an_input_is_truncated_by_itself(serving: Serving) -> None:
    request = inputs_of(sampled_request())
    request.truncate_prompt_tokens = 4
    request.output.echo_prompt = True
    answer = await serving.complete(request, [pb.Input(prompt="long enough"), pb.Input(prompt="ok")])
    assert [c.prompt.text for c in answer.completions] == ["ough", f"<{BOS}>ok"]


async def test_many_inputs_of_many_calls_do_not_mix(serving: Serving) -> None:
    async def check(word: str) -> None:
        request = inputs_of(sampled_request())
        request.output.echo_prompt = True
        prompts = [f"{word}{i}" for i in range(3)]
        answer = await serving.complete(request, [pb.Input(prompt=prompt) for prompt in prompts])
        assert [c.prompt.text for c in answer.completions] == [f"<{BOS}>{prompt}" for prompt in prompts]
        for completion in answer.completions:
            assert completion.text == FakeTokenizer().decode(completion.token_ids)

    await asyncio.gather(*map(check, ("a", "b", "c", "d")))
