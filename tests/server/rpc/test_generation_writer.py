import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import pytest
from google.protobuf.duration_pb2 import Duration
from treadle.v1 import generation_pb2 as pb

from server.engine.plan import Draw, LogprobsWanted, TokenLogprob
from tests.server.fakes import BOS, EOS, FakeModel, FakeTokenizer, logprob_of
from tests.server.rpc.serving import (
    PATIENCE,
    Serving,
    Start,
    by_index,
    generate_request,
    kinds,
    text,
    token_ids,
)

PROMPT = [BOS, *b"hello"]


def request_with(**output: object) -> pb.GenerateRequest:
    request = generate_request("hello")
    request.output.MergeFrom(pb.OutputOptions(**output))  # type: ignore[arg-type]
    return request


def told(token: TokenLogprob) -> pb.TokenLogprob:
    """As its client hears of it."""
    text_of = FakeTokenizer().token_text
    return pb.TokenLogprob(
        token_id=token.token_id,
        logprob=token.logprob,
        rank=token.rank,
        text=text_of(token.token_id),
        alternatives=[
            pb.Alternative(token_id=other.token_id, logprob=other.logprob, text=text_of(other.token_id))
            for other in token.alternatives
        ],
    )


def expected_logprobs(seen: Sequence[int], following: Sequence[int], wanted: LogprobsWanted) -> list[pb.TokenLogprob]:
    return [
        told(logprob_of([*seen, *following[:i]], token_id, wanted.alternatives, processed=wanted.processed))
        for i, token_id in enumerate(following)
    ]


@pytest.mark.parametrize("alternatives", [0, 1, 20])
@pytest.mark.parametrize("of", [pb.LOGPROBS_OF_UNSPECIFIED, pb.LOGPROBS_OF_RAW, pb.LOGPROBS_OF_PROCESSED])
async def test_each_id_has_its_logprob_of_the_distribution_asked_for(
    serving: Serving, alternatives: int, of: pb.LogprobsOf.ValueType
) -> None:
    request = request_with(logprobs=alternatives, logprobs_of=of)
    chunks = [event.tokens for event in await serving.events(request) if event.HasField("tokens")]
    assert all(len(chunk.logprobs) == len(chunk.token_ids) for chunk in chunks)
    ids = [token_id for chunk in chunks for token_id in chunk.token_ids]
    wanted = LogprobsWanted(alternatives, processed=of == pb.LOGPROBS_OF_PROCESSED)
    expected = expected_logprobs(PROMPT, ids, wanted)
    assert [token for chunk in chunks for token in chunk.logprobs] == expected
    (completion,) = (await serving.complete(request)).completions
    assert list(completion.logprobs) == expected


async def test_logprobs_are_none_where_they_are_not_asked_for(serving: Serving) -> None:
    assert not any(event.tokens.logprobs for event in await serving.events(generate_request()))


@pytest.mark.parametrize("omitted", ["omit_token_ids", "omit_text"])
async def test_logprobs_are_whole_beside_what_is_omitted(serving: Serving, omitted: str) -> None:
    whole = await serving.complete(request_with(logprobs=1))
    less = await serving.complete(request_with(logprobs=1, **{omitted: True}))
    assert less.completions[0].logprobs == whole.completions[0].logprobs


@pytest.mark.parametrize("prompt", ["hello", "x" * 60, "a prompt of several blocks"])
async def test_the_prompt_is_told_with_its_logprobs_after_started_and_before_the_first_token(
    serving: Serving, prompt: str
) -> None:
    request = request_with(prompt_logprobs=2)
    request.prompt = prompt
    ids = [BOS, *prompt.encode()]
    for _ in range(2):  # the second time the cache holds the prompt
        events = await serving.events(request)
        assert kinds(events)[:3] == ["started", "prompt", "tokens"]
        assert kinds(events).count("prompt") == 1
        assert list(events[1].prompt.token_ids) == ids
        assert events[1].prompt.text == f"<{BOS}>{prompt}"
        assert list(events[1].prompt.logprobs) == expected_logprobs(ids[:1], ids[1:], LogprobsWanted(2, False))
    assert (await serving.complete(request)).completions[0].prompt == events[1].prompt


async def test_a_prompt_of_one_token_has_no_logprobs(serving: Serving) -> None:
    request = request_with(prompt_logprobs=2)
    request.prompt_token_ids.ids.append(5)
    events = await serving.events(request)
    assert kinds(events)[:3] == ["started", "prompt", "tokens"]
    assert events[1].prompt == pb.Prompt(token_ids=[5], text="\x05")


@pytest.mark.parametrize("with_logprobs", [False, True])
async def test_the_first_of_several_generations_tells_the_prompt(serving: Serving, with_logprobs: bool) -> None:
    request = request_with(echo_prompt=True, prompt_logprobs=1 if with_logprobs else None)
    request.prompt = "a prompt of several blocks"
    request.sampling.MergeFrom(pb.SamplingParams(n=4, temperature=1, seed=3))
    generations = by_index(await serving.events(request))
    assert set(generations) == set(range(4))
    for index, events in generations.items():
        begin = ["started"] if index else ["started", "prompt"]
        assert kinds(events) == [*begin, *["tokens"] * (len(events) - len(begin) - 1), "result"]
    prompt = generations[0][1].prompt
    assert len(prompt.logprobs) == (26 if with_logprobs else 0)
    for best_of in (None, 8):
        if best_of is not None:
            request.sampling.best_of = best_of
        first, *others = (await serving.complete(request)).completions
        assert first.prompt == prompt
        assert not any(completion.HasField("prompt") for completion in others)


async def test_generations_that_share_a_prompts_logprobs_have_the_tokens_they_have_without(serving: Serving) -> None:
    request = request_with()
    request.prompt = "a prompt of several blocks"
    request.sampling.MergeFrom(pb.SamplingParams(n=6, temperature=1, seed=3))
    without = by_index(await serving.events(request))
    request.output.prompt_logprobs = 0
    with_ = by_index(await serving.events(request))
    assert {i: token_ids(events) for i, events in with_.items()} == {i: token_ids(e) for i, e in without.items()}


async def test_a_time_limit_that_passes_before_the_prompt_is_computed_leaves_the_prompt_told(serving: Serving) -> None:
    request = request_with(prompt_logprobs=2)
    request.stopping.time_limit.CopyFrom(Duration(nanos=1))
    events = await serving.events(request)
    assert kinds(events) == ["started", "prompt", "result"]
    assert list(events[1].prompt.token_ids) == PROMPT


async def test_the_prompt_is_echoed_as_it_was_taken(serving: Serving) -> None:
    request = request_with(echo_prompt=True)
    request.truncate_prompt_tokens = 3
    events = await serving.events(request)
    assert kinds(events)[:3] == ["started", "prompt", "tokens"]
    assert events[1].prompt == pb.Prompt(token_ids=b"llo", text="llo")
    assert events[0].started.prompt_token_count == 3
    assert (await serving.complete(request)).completions[0].prompt == events[1].prompt


async def test_no_prompt_is_told_where_none_is_asked_for(serving: Serving) -> None:
    assert "prompt" not in kinds(await serving.events(generate_request()))
    assert not (await serving.complete(generate_request())).completions[0].HasField("prompt")


async def test_every_chunk_has_the_usage_so_far(serving: Serving) -> None:
    request = request_with(usage=True)
    await serving.events(request)
    events = await serving.events(request)
    chunks = [event.tokens for event in events if event.HasField("tokens")]
    counts = list(accumulate(len(chunk.token_ids) for chunk in chunks))
    assert counts[-1] == 8
    assert [chunk.usage.completion_tokens for chunk in chunks] == counts
    assert {chunk.usage.prompt_tokens for chunk in chunks} == {6}
    assert {chunk.usage.cached_tokens for chunk in chunks} == {4}
    assert chunks[-1].usage == events[-1].result.usage
    assert not any(e.tokens.HasField("usage") for e in await serving.events(generate_request()))


@pytest.mark.parametrize("n", [1, 3])
async def test_a_chunk_interval_makes_fewer_chunks_loses_nothing_and_does_not_delay_the_end(
    serving: Serving, n: int
) -> None:
    request = request_with(logprobs=1, usage=True)
    request.stopping.max_new_tokens = 60
    request.sampling.MergeFrom(pb.SamplingParams(n=n, temperature=1, seed=3))
    without = by_index(await serving.events(request))
    request.output.chunk_interval.CopyFrom(Duration(seconds=60))
    async with asyncio.timeout(PATIENCE):
        joined = by_index(await serving.events(request))
    assert set(joined) == set(range(n))
    for index, events in joined.items():
        assert kinds(events) in (["started", "tokens", "tokens", "result"], ["started", "tokens", "result"])
        assert (token_ids(events), text(events)) == (token_ids(without[index]), text(without[index]))
        for event in events[1:-1]:
            assert len(event.tokens.logprobs) == len(event.tokens.token_ids)
        logprobs = [[token for event in each for token in event.tokens.logprobs] for each in (events, without[index])]
        assert logprobs[0] == logprobs[1]
        assert events[-2].tokens.usage == events[-1].result.usage
    for field in ("chunk_interval", "usage"):
        request.output.ClearField(field)
    completed = await serving.complete(request)
    assert [list(c.token_ids) for c in completed.completions] == [token_ids(joined[i]) for i in range(n)]


@dataclass
class Writes:
    """Chooses these tokens one after the other, after a prompt of this many."""

    token_ids: Sequence[int]
    prompt_count: int

    def __call__(self, seen: Sequence[int], draw: Draw) -> int:  # the fake model calls it so
        return self.token_ids[len(seen) - self.prompt_count]


@pytest.mark.parametrize(("keep", "expected"), [(False, "ab"), (True, "a<258>b<256>")])
async def test_special_tokens_are_kept_in_the_text_or_left_out(start: Start, keep: bool, expected: str) -> None:
    model = FakeModel(choose=Writes([ord("a"), 258, ord("b"), EOS], len(PROMPT)))
    serving = await (await start(Serving(model=model))).ready()
    request = request_with(keep_special_tokens=keep)
    request.stopping.ignore_eos = False
    events = await serving.events(request)
    assert text(events) == expected
    assert token_ids(events) == [ord("a"), 258, ord("b"), EOS]
    assert (await serving.complete(request)).completions[0].text == expected
