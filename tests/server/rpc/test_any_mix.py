"""Requests of every kind at once: each is answered as if it were alone."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from google.protobuf.duration_pb2 import Duration
from hypothesis import given, settings
from hypothesis import strategies as st
from treadle.v1 import generation_pb2 as pb

from tests.server.fakes import FakeModel, describe
from tests.server.rpc.serving import ENGINE, Serving, by_index, kinds, text, token_ids


@dataclass(frozen=True)
class Answer:
    """What a generation was, however it was cut into chunks."""

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[pb.TokenLogprob, ...]
    content: str
    reasoning: str
    prompt: pb.Prompt
    seed: int
    finish_reason: int
    satisfies_constraint: bool | None
    completion_tokens: int


def satisfies(result: pb.Result) -> bool | None:
    return result.satisfies_constraint if result.HasField("satisfies_constraint") else None


def streamed(request: pb.GenerateRequest, events: Sequence[pb.GenerateResponse]) -> Answer:
    asks_for_prompt = request.output.echo_prompt or request.output.HasField("prompt_logprobs")
    shows_prompt = asks_for_prompt and events[0].index == 0
    begin = ["started", "prompt"] if shows_prompt else ["started"]
    assert kinds(events)[: len(begin)] == begin
    assert set(kinds(events)[len(begin) : -1]) <= {"tokens", "content", "reasoning"}
    chunks = [event.tokens for event in events if event.HasField("tokens")]
    if request.output.HasField("logprobs"):
        assert request.output.omit_token_ids or all(len(c.logprobs) == len(c.token_ids) for c in chunks)
    assert all(chunk.HasField("usage") == request.output.usage for chunk in chunks)
    result = events[-1].result
    return Answer(
        token_ids=tuple(token_ids(events)),
        text=text(events),
        logprobs=tuple(token for chunk in chunks for token in chunk.logprobs),
        content="".join(event.content.text for event in events),
        reasoning="".join(event.reasoning.text for event in events),
        prompt=events[1].prompt if shows_prompt else pb.Prompt(),
        seed=events[0].started.seed,
        finish_reason=result.finish_reason,
        satisfies_constraint=satisfies(result),
        completion_tokens=result.usage.completion_tokens,
    )


def completed(completion: pb.Completion) -> Answer:
    return Answer(
        token_ids=tuple(completion.token_ids),
        text=completion.text,
        logprobs=tuple(completion.logprobs),
        content=completion.content,
        reasoning=completion.reasoning,
        prompt=completion.prompt,
        seed=completion.seed,
        finish_reason=completion.result.finish_reason,
        satisfies_constraint=satisfies(completion.result),
        completion_tokens=completion.result.usage.completion_tokens,
    )


flags = st.none() | st.booleans()
outputs = st.builds(
    pb.OutputOptions,
    omit_text=flags,
    logprobs=st.none() | st.integers(0, 3),
    prompt_logprobs=st.none() | st.integers(0, 3),
    keep_special_tokens=flags,
    echo_prompt=flags,
    usage=flags,
    chunk_interval=st.none() | st.builds(Duration, nanos=st.integers(0, 20_000_000)),
    parse_reasoning=flags,
    parse_tool_calls=st.sampled_from(sorted(pb.ToolCallFormat.values())),
)
stoppings = st.builds(
    pb.StoppingCriteria,
    max_new_tokens=st.integers(10, 40),
    min_new_tokens=st.none() | st.integers(1, 10),
    stop=st.lists(st.sampled_from(["a", "b", "\ufffd\ufffd"]), max_size=2),
    stop_token_ids=st.lists(st.integers(0, 259), max_size=2),
    ignore_eos=flags,
    include_stop_text=flags,
)
samplings = st.builds(
    pb.SamplingParams,
    temperature=st.sampled_from([0, 1]),
    seed=st.integers(0, 2**64 - 1),
    n=st.none() | st.integers(1, 3),
    forbidden_sequences=st.lists(
        st.builds(pb.TokenIds, ids=st.lists(st.integers(0, 9), min_size=1, max_size=32)), max_size=2
    ),
)
constraints = st.builds(
    pb.Constraint, choice=st.builds(pb.Choice, choices=st.lists(st.text("abc", min_size=1, max_size=9), min_size=1))
)
requests = st.builds(
    pb.GenerateRequest,
    prompt=st.text("ab", max_size=20) | st.just("a prompt that ends with <think>"),
    truncate_prompt_tokens=st.none() | st.integers(1, 30),
    add_special_tokens=st.none() | st.just(True),
    sampling=samplings,
    stopping=stoppings,
    output=outputs,
    cache_salt=st.sampled_from(["", "tenant"]),
    constraint=st.none() | constraints,
    priority=st.integers(-3, 3),
)


async def answers(serving: Serving, request: pb.GenerateRequest) -> list[Answer]:
    generations = by_index(await serving.events(request))
    assert set(generations) == set(range(request.sampling.n or 1))
    return [streamed(request, generations[index]) for index in sorted(generations)]


async def completions(serving: Serving, request: pb.GenerateRequest) -> list[Answer]:
    unary = pb.GenerateRequest()
    unary.CopyFrom(request)
    unary.output.ClearField("chunk_interval")
    unary.output.ClearField("usage")
    answer = await serving.complete(unary)
    assert [completion.index for completion in answer.completions] == list(range(len(answer.completions)))
    return [completed(completion) for completion in answer.completions]


async def in_company_and_alone(mix: Sequence[pb.GenerateRequest], preempting: bool) -> None:
    engine = replace(ENGINE, max_slots=3, max_waiting=60, preempt_lower_priority=preempting)
    model = FakeModel(describe(kv_block_count=40))
    serving = await (await Serving(model=model, engine_settings=engine).start()).ready()
    try:
        together = await asyncio.gather(*(answers(serving, request) for request in mix))
        completed_together = await asyncio.gather(*(completions(serving, request) for request in mix))
        for request, heard, whole in zip(mix, together, completed_together, strict=True):
            assert await answers(serving, request) == heard == whole
        await serving.server.idle()
    finally:
        await serving.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(requests, min_size=1, max_size=6), st.booleans())
def test_every_request_is_answered_in_company_as_it_is_alone(mix: list[pb.GenerateRequest], preempting: bool) -> None:
    asyncio.run(in_company_and_alone(mix, preempting))
