"""What OpenAI's own client gets of Treadle through a real smg gateway.

The workers are of the default model. Without smg the tests are skipped: it has wheels for Linux on x86-64.
"""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("smg", reason="the gateway is not installed: pip install smg")
openai = pytest.importorskip("openai", reason="the OpenAI client is not installed: pip install openai")
pytest.importorskip("smg_grpc_proto", reason="the gateway's protocol is not installed: pip install smg-grpc-proto")

from openai import OpenAI  # noqa: E402
from openai.types.chat import ChatCompletionMessageParam  # noqa: E402
from treadle import ChatMessage, Client  # noqa: E402

from tests.gateway.smg import Gateway  # noqa: E402
from tests.gateway.worker import Worker, eventually  # noqa: E402

MODEL = "smollm2-135m-instruct"
PROMPT = "The capital of France is"
QUESTION = "Where is the Eiffel Tower?"
CHAT: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Cluster:
    workers: list[Worker]
    client: OpenAI

    def running(self) -> list[int]:
        return [worker.running() for worker in self.workers]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ThreadPoolExecutor(2) as threads:
        workers = list(threads.map(lambda _: Worker.start(), range(2)))
    gateway = None
    try:
        gateway = Gateway.start([worker.address for worker in workers], tmp_path_factory.mktemp("smg") / "log")
        with OpenAI(base_url=gateway.url, api_key="none", max_retries=0) as client:
            yield Cluster(workers, client)
    finally:
        if gateway is not None:
            gateway.close()
        for worker in workers:
            worker.close()


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> OpenAI:
    return cluster.client


@pytest.fixture(scope="module")
def direct(cluster: Cluster) -> Iterator[Client]:
    """A worker asked without the gateway: the oracle."""
    with Client(cluster.workers[0].address) as client:
        yield client


def test_the_model_is_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_a_completion_is_what_the_worker_generates(client: OpenAI, direct: Client) -> None:
    own = direct.complete(PROMPT, max_new_tokens=4, temperature=0)
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4, temperature=0)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == (own.text, "length")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 4)


def test_a_streamed_completion_says_the_same(client: OpenAI, direct: Client) -> None:
    own = direct.complete(PROMPT, max_new_tokens=4, temperature=0)
    stream = client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=4,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.text for choice in choices) == own.text
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"]
    (usage,) = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert usage.completion_tokens == 4


def test_a_chat_is_put_into_the_models_own_template(client: OpenAI, direct: Client) -> None:
    own = direct.complete(chat=[ChatMessage("user", QUESTION)], max_new_tokens=8, temperature=0)
    answer = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=8, temperature=0)
    assert answer.choices[0].message.content == own.text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == own.result.usage.prompt_tokens


def test_a_streamed_chat_says_the_same(client: OpenAI, direct: Client) -> None:
    own = direct.complete(chat=[ChatMessage("user", QUESTION)], max_new_tokens=8, temperature=0)
    stream = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=8, temperature=0, stream=True)
    choices = [choice for chunk in stream for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == own.text
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_sequence_ends_the_work_too(cluster: Cluster, stream: bool) -> None:
    before = sum(worker.load().tokens_generated for worker in cluster.workers)
    answer: Any = cluster.client.completions.create(
        model=MODEL, prompt="One, two, three,", max_tokens=64, temperature=0, stop=" seven", stream=stream
    )
    choices = [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == " four, five, six,"
    assert choices[-1].finish_reason == "stop"
    assert sum(worker.load().tokens_generated for worker in cluster.workers) - before <= 8


def test_a_seed_is_repeatable_and_n_generations_differ(client: OpenAI) -> None:
    first, second = (
        client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=6, temperature=1, n=2, seed=5)
        for _ in range(2)
    )
    texts = {choice.index: choice.text for choice in first.choices}
    assert sorted(texts) == [0, 1]
    assert texts[0] != texts[1]
    assert texts == {choice.index: choice.text for choice in second.choices}


def test_n_streamed_generations_each_have_an_end(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=CHAT, max_tokens=3, temperature=1, n=2, seed=5, stream=True
    )
    ends = [choice.index for chunk in stream for choice in chunk.choices if choice.finish_reason == "length"]
    assert sorted(ends) == [0, 1]


@pytest.mark.parametrize("stream", [True, False])
def test_log_probabilities_are_the_workers(client: OpenAI, direct: Client, stream: bool) -> None:
    chat = [ChatMessage("user", QUESTION)]
    own = direct.complete(chat=chat, max_new_tokens=2, temperature=0, logprobs=3)
    answer: Any = client.chat.completions.create(
        model=MODEL, messages=CHAT, max_tokens=2, temperature=0, logprobs=True, top_logprobs=3, stream=stream
    )
    choices = [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices
    told = [each for choice in choices if choice.logprobs for each in choice.logprobs.content or ()]
    assert [each.token for each in told] == [each.text for each in own.logprobs]
    assert [each.logprob for each in told] == pytest.approx([each.logprob for each in own.logprobs], abs=1e-3)
    for each, expected in zip(told, own.logprobs, strict=True):
        assert [top.token for top in each.top_logprobs] == [top.text for top in expected.alternatives]


def test_a_json_schema_holds(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=CHAT,
        max_tokens=40,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}},
    )
    assert json.loads(answer.choices[0].message.content or "").keys() == {"city"}
    assert answer.choices[0].finish_reason == "stop"


def test_a_regular_expression_and_a_grammar_hold(client: OpenAI) -> None:
    for constraint in ({"regex": "yes|no"}, {"ebnf": 'start: "yes" | "no"'}):
        answer = client.chat.completions.create(
            model=MODEL, messages=CHAT, max_tokens=4, temperature=0, extra_body=constraint
        )
        assert answer.choices[0].message.content in ("yes", "no")


def test_what_cannot_be_honoured_is_a_400_that_names_it(client: OpenAI) -> None:
    schema: dict[str, object] = {"type": "string", "pattern": "("}
    with pytest.raises(openai.BadRequestError, match=r"sampling_params\.json_schema"):
        client.chat.completions.create(
            model=MODEL,
            messages=CHAT,
            max_tokens=4,
            response_format={"type": "json_schema", "json_schema": {"name": "broken", "schema": schema}},
        )


def test_a_dropped_stream_is_aborted(cluster: Cluster) -> None:
    stream = cluster.client.completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=2000, temperature=1, seed=1, stream=True
    )
    next(iter(stream))
    assert sum(cluster.running()) == 1
    stream.close()
    eventually(lambda: sum(cluster.running()) == 0)


def test_a_dropped_call_that_is_not_streamed_is_cancelled(cluster: Cluster) -> None:
    def call() -> None:
        with pytest.raises(openai.APITimeoutError):
            cluster.client.with_options(timeout=2).completions.create(
                model=MODEL, prompt="Once upon a time", max_tokens=2000, temperature=1, seed=1
            )

    calling = threading.Thread(target=call)
    calling.start()
    eventually(lambda: sum(cluster.running()) == 1)
    calling.join()
    eventually(lambda: sum(cluster.running()) == 0)


def test_while_a_worker_drains_its_stream_finishes_and_the_other_takes_all_that_is_new(cluster: Cluster) -> None:
    """The last test: it costs a worker."""
    stream = cluster.client.completions.create(
        model=MODEL, prompt="One, two, three,", max_tokens=48, temperature=0, stream=True
    )
    chunks = [next(iter(stream))]
    draining, staying = sorted(cluster.workers, key=lambda worker: worker.running(), reverse=True)
    draining.drain()
    eventually(draining.is_known_to_drain)
    before = staying.load().tokens_generated
    for _ in range(4):
        answer = cluster.client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=2, temperature=0)
        assert answer.choices[0].finish_reason == "length"
    assert staying.load().tokens_generated - before == 8
    chunks += stream
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == ["length"]
    assert draining.popen.wait(60) == 0
