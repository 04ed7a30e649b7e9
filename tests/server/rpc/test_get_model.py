"""What GetModel says is what the server does."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import grpc
import pytest
from treadle.v1 import generation_pb2 as pb

from server.engine.chat import Chat
from server.engine.errors import ChatTemplateMissing
from server.engine.model import SamplingDefaults
from server.engine.plan import StepOutcome, StepPlan
from tests.server.fakes import FakeConstraints, FakeModel, FakeTokenizer, describe
from tests.server.rpc.serving import (
    ENGINE,
    SERVER,
    GenerateCall,
    Refusal,
    Serving,
    Start,
    eventually,
    generate_request,
    kinds,
)

Asking: TypeAlias = Callable[[int], pb.GenerateRequest]
"""A request that asks for this many."""


class Obliging(FakeTokenizer):
    """Takes tools and templates."""

    takes_tools = True
    allows_request_templates = True

    def render_chat(self, chat: Chat) -> str:
        return super().render_chat(replace(chat, tools=(), template=None))


class Plain(FakeTokenizer):
    has_chat_template = False

    def render_chat(self, chat: Chat) -> str:  # the protocol has it
        raise ChatTemplateMissing("the model takes no chat")


async def model_of(serving: Serving) -> pb.GetModelResponse:
    return await serving.stub.GetModel(pb.GetModelRequest())


async def outcome(serving: Serving, request: pb.GenerateRequest) -> Refusal | None:
    """None where the request is taken."""
    try:
        assert kinds(await serving.events(request))[-1] == "result"
    except grpc.aio.AioRpcError as error:
        return Refusal.of(error)
    return None


def in_sampling(sampling: pb.SamplingParams) -> pb.GenerateRequest:
    return pb.GenerateRequest(sampling=sampling)


def in_stopping(stopping: pb.StoppingCriteria) -> pb.GenerateRequest:
    return pb.GenerateRequest(stopping=stopping)


def in_chat(chat: pb.Chat) -> pb.GenerateRequest:
    if not chat.messages:
        chat.messages.add(role="user", content="x")
    return pb.GenerateRequest(chat=chat, truncate_prompt_tokens=8)


def tool_of(size: int) -> pb.Tool:
    return pb.Tool(name="f", parameters_json='{"a": "%s"}' % ("x" * (size - 9)))


LIMITS: dict[str, tuple[str, Asking]] = {
    "max_total_tokens": (
        "prompt_token_ids",
        lambda size: pb.GenerateRequest(
            prompt_token_ids=pb.TokenIds(ids=[1] * (size - 1)), stopping=pb.StoppingCriteria(max_new_tokens=1)
        ),
    ),
    "max_stop_sequences": ("stopping.stop", lambda size: in_stopping(pb.StoppingCriteria(stop=["x"] * size))),
    "max_stop_sequence_length": (
        "stopping.stop[0]",
        lambda size: in_stopping(pb.StoppingCriteria(stop=["\N{SNOWMAN}" * size])),
    ),
    "max_stop_token_ids": (
        "stopping.stop_token_ids",
        lambda size: in_stopping(pb.StoppingCriteria(stop_token_ids=range(size))),
    ),
    "max_generations": ("sampling.n", lambda size: in_sampling(pb.SamplingParams(n=size))),
    "max_logprobs": ("output.logprobs", lambda size: pb.GenerateRequest(output=pb.OutputOptions(logprobs=size))),
    "max_forbidden_sequences": (
        "sampling.forbidden_sequences",
        lambda size: in_sampling(pb.SamplingParams(forbidden_sequences=[pb.TokenIds(ids=[1])] * size)),
    ),
    "max_forbidden_sequence_length": (
        "sampling.forbidden_sequences[0]",
        lambda size: in_sampling(pb.SamplingParams(forbidden_sequences=[pb.TokenIds(ids=[1] * size)])),
    ),
    "max_logit_bias": (
        "sampling.logit_bias",
        lambda size: in_sampling(pb.SamplingParams(logit_bias=dict.fromkeys(range(size), 1.0))),
    ),
    "max_constraint_bytes": (
        "constraint.choice",
        lambda size: pb.GenerateRequest(constraint=pb.Constraint(choice=pb.Choice(choices=["x" * size]))),
    ),
    "max_template_bytes": ("chat.template", lambda size: in_chat(pb.Chat(template="x" * size))),
    "max_tool_bytes": ("chat.tools[0].parameters_json", lambda size: in_chat(pb.Chat(tools=[tool_of(size)]))),
    "max_text_bytes": ("prompt", lambda size: pb.GenerateRequest(prompt="x" * size, truncate_prompt_tokens=8)),
    "max_chat_messages": (
        "chat.messages",
        lambda size: in_chat(pb.Chat(messages=[pb.ChatMessage(role="user", content="x")] * size)),
    ),
}
NOT_OF_ONE_REQUEST = {"max_slots", "max_waiting", "max_message_bytes"}


def test_every_limit_is_tried() -> None:
    assert {field.name for field in pb.Limits.DESCRIPTOR.fields} == {*LIMITS, *NOT_OF_ONE_REQUEST}


@pytest.mark.parametrize(("limit", "field", "asking"), [(name, *LIMITS[name]) for name in LIMITS], ids=list(LIMITS))
async def test_a_limit_is_what_is_taken_and_one_more_is_refused(
    start: Start, limit: str, field: str, asking: Asking
) -> None:
    model = FakeModel(replace(describe(kv_block_count=1800, context_length=7000), vocabulary_size=2000))
    settings = replace(SERVER, max_message_bytes=1 << 20, max_open_bytes=4 << 20)
    engine = replace(ENGINE, max_waiting=200, max_step_tokens=10_000)
    server = Serving(model=model, tokenizer=Obliging(), server_settings=settings, engine_settings=engine)
    serving = await (await start(server)).ready()
    most: int = getattr((await model_of(serving)).limits, limit)
    for size, refused_field in ((most, None), (most + 1, field)):
        request = generate_request(max_new_tokens=1)
        request.MergeFrom(asking(size))
        refused = await outcome(serving, request)
        assert (None if refused is None else refused.field) == refused_field


async def test_the_largest_message_is_taken_and_a_larger_one_refused(serving: Serving) -> None:
    most = (await model_of(serving)).limits.max_message_bytes
    for size, reason in ((most, "INVALID_ARGUMENT"), (most + 1, "MESSAGE_TOO_LARGE")):
        request = pb.GenerateRequest(prompt="x" * 10)
        request.prompt = "x" * (size - request.ByteSize() + 10 - 2)  # two more bytes tell the greater length
        assert request.ByteSize() == size
        assert (await serving.refusal(request)).reason == reason


async def test_slots_and_waiting_places_are_those_of_the_engine(serving: Serving) -> None:
    limits = (await model_of(serving)).limits
    assert (limits.max_slots, limits.max_waiting) == (ENGINE.max_slots, ENGINE.max_waiting)
    assert limits.max_generations == limits.max_slots + limits.max_waiting


async def test_of_many_slots_one_call_has_128_at_most(start: Start) -> None:
    settings = replace(ENGINE, max_slots=300, max_step_tokens=512)
    serving = await (await start(Serving(engine_settings=settings))).ready()
    assert (await model_of(serving)).limits.max_generations == 128


@pytest.mark.parametrize("max_new_tokens", [5, None])
async def test_the_defaults_are_what_an_unset_field_means(start: Start, max_new_tokens: int | None) -> None:
    defaults = SamplingDefaults(
        temperature=0.7,
        top_k=11,
        top_p=0.9,
        sampled_temperature=0.7,
        min_p=0.05,
        typical_p=0.95,
        repetition_penalty=1.1,
    )
    described = replace(describe(), sampling_defaults=defaults, default_max_new_tokens=max_new_tokens)
    model = FakeModel(described)
    serving = await (await start(Serving(model=model))).ready()
    told = (await model_of(serving)).defaults
    assert told.HasField("max_new_tokens") == (max_new_tokens is not None)
    unset = pb.GenerateRequest(prompt="x", sampling=pb.SamplingParams(seed=3))
    explicit = pb.GenerateRequest(prompt="x", sampling=told.sampling)
    explicit.sampling.seed = 3
    if max_new_tokens is not None:
        explicit.stopping.max_new_tokens = told.max_new_tokens
    draws = []
    for request in (unset, explicit):
        model.plans.clear()
        completion = (await serving.complete(request)).completions[0]
        assert max_new_tokens is None or completion.result.usage.completion_tokens <= max_new_tokens
        draws.append([span.draw for plan in model.plans for span in plan.spans])
    assert draws[0] == draws[1]
    assert draws[0][-1] is not None
    assert draws[0][-1].min_p == 0.05


def chat_request(**chat: object) -> pb.GenerateRequest:
    request = generate_request()
    messages = [pb.ChatMessage(role="user", content="x")]
    request.chat.CopyFrom(pb.Chat(messages=messages, **chat))  # type: ignore[arg-type]
    return request


def constrained_request() -> pb.GenerateRequest:
    request = generate_request()
    request.constraint.choice.choices.append("x")
    return request


async def test_every_capability_is_said(serving: Serving) -> None:
    capabilities = (await model_of(serving)).capabilities
    assert all(capabilities.HasField(field.name) for field in pb.Capabilities.DESCRIPTOR.fields)  # type: ignore[arg-type]
    assert not capabilities.embeddings
    assert not capabilities.scores


@pytest.mark.parametrize("capability", ["chat", "tools", "request_template", "constraint", "logprobs"])
@pytest.mark.parametrize("tokenizer", [FakeTokenizer(), Obliging(), Plain()], ids=lambda t: type(t).__name__)
@pytest.mark.parametrize("can_compile", [False, True])
async def test_a_capability_that_is_false_is_refused_by_name_and_one_that_is_true_is_taken(
    start: Start, capability: str, tokenizer: FakeTokenizer, can_compile: bool
) -> None:
    server = Serving(tokenizer=tokenizer, constraints=FakeConstraints(can_compile))
    serving = await (await start(server)).ready()
    described = await model_of(serving)
    assert described.capabilities.chat == described.has_chat_template
    with_logprobs = generate_request()
    with_logprobs.output.logprobs = with_logprobs.output.prompt_logprobs = 1
    request = {
        "chat": chat_request(),
        "tools": chat_request(tools=[pb.Tool(name="f")]),
        "request_template": chat_request(template="x"),
        "constraint": constrained_request(),
        "logprobs": with_logprobs,
    }[capability]
    refused = await outcome(serving, request)
    assert (refused is None) == getattr(described.capabilities, capability)
    if refused is not None:
        name = {"request_template": "chat.template", "tools": "chat"}.get(capability, capability)
        assert name in refused.message


class SlowModel(FakeModel):
    """Its clients hear of the ends in the order in which they come."""

    def step(self, plan: StepPlan) -> StepOutcome:
        time.sleep(0.005)
        return super().step(plan)


@pytest.mark.parametrize("allowed", [False, True])
async def test_preemption_by_priority_is_what_the_engine_is_set_to(start: Start, allowed: bool) -> None:
    settings = replace(ENGINE, max_slots=1, preempt_lower_priority=allowed)
    serving = await (await start(Serving(model=SlowModel(), engine_settings=settings))).ready()
    assert (await model_of(serving)).capabilities.priority_preemption == allowed
    low = await serving.hold_steps(generate_request("low", max_new_tokens=50))
    high = generate_request("high")
    high.priority = 100
    urgent = serving.stub.Generate(high)
    await eventually(lambda: serving.engine._queue.in_flight == 2)
    serving.steps.open()
    ended: list[str] = []

    async def end(name: str, call: GenerateCall) -> None:
        assert kinds([event async for event in call])[-1] == "result"
        ended.append(name)

    await asyncio.gather(end("low", low), end("high", urgent))
    assert ended == (["high", "low"] if allowed else ["low", "high"])
