import asyncio

import grpc
import pytest
from treadle.v1 import generation_pb2 as pb

from server.engine.engine import EngineSettings, Lifecycle
from server.observe.metrics import Metrics
from tests.server.fakes import FakeModel, describe
from tests.server.observe.scraping import Observed
from tests.server.rpc.serving import Start, eventually, generate_request

ONE_SLOT = EngineSettings(max_slots=1, max_waiting=1, max_step_tokens=16, max_unread_tokens=1000, stuck_after=60)


async def observed(start: Start, **options: object) -> Observed:
    serving = Observed(**options)  # type: ignore[arg-type]
    await (await start(serving)).ready()
    return serving


async def test_calls_are_counted_by_method_and_status(start: Start) -> None:
    serving = await observed(start)
    await serving.events(generate_request())
    await serving.stub.Complete(pb.CompleteRequest(generate=generate_request()))
    await serving.stub.GetLoad(pb.GetLoadRequest())
    await serving.refusal(pb.GenerateRequest(prompt="x", sampling=pb.SamplingParams(top_p=2)))
    await eventually(lambda: serving.scrape().value("treadle_requests_total", status="INVALID_ARGUMENT"))
    scrape = serving.scrape()
    assert scrape.value("treadle_requests_total", method="Generate", status="OK") == 1
    assert scrape.value("treadle_requests_total", method="Complete", status="OK") == 1
    assert scrape.value("treadle_requests_total", method="GetLoad", status="OK") == 1
    assert scrape.value("treadle_requests_total", method="Generate", status="INVALID_ARGUMENT") == 1
    assert scrape.value("treadle_refusals_total", reason="INVALID_ARGUMENT") == 1


async def test_each_reason_of_a_refusal_is_there_before_the_first(start: Start) -> None:
    scrape = (await observed(start)).scrape()
    assert scrape.value("treadle_refusals_total", reason="QUEUE_FULL") == 0
    assert scrape.value("treadle_request_success_total", finished_reason="STOP_TOKEN") == 0


async def test_a_full_queue_shows_in_the_gauges_and_the_refusals(start: Start) -> None:
    serving = await observed(start, engine_settings=ONE_SLOT)
    serving.steps.close()
    calls = [serving.stub.Generate(generate_request(request_id=str(i))) for i in range(2)]
    await eventually(lambda: serving.engine.load().waiting == 1 and serving.engine.load().running == 1)
    assert (await serving.refusal(generate_request())).code is grpc.StatusCode.RESOURCE_EXHAUSTED
    scrape = serving.scrape()
    assert scrape.value("treadle_num_requests_running") == scrape.value("treadle_slots") == 1
    assert scrape.value("treadle_num_requests_waiting") == scrape.value("treadle_waiting_limit") == 1
    assert scrape.value("treadle_refusals_total", reason="QUEUE_FULL") == 1
    serving.steps.open()
    for call in calls:
        assert [event async for event in call]
    await eventually(lambda: serving.scrape().value("treadle_num_requests_running") == 0)


async def test_a_generation_is_counted_in_tokens_finishes_and_times(start: Start) -> None:
    serving = await observed(start)
    await serving.events(generate_request("hello", max_new_tokens=6))
    await eventually(lambda: serving.scrape().value("treadle_requests_total", method="Generate"))
    scrape = serving.scrape()
    assert scrape.value("treadle_prompt_tokens_total") == scrape.value("treadle_prefix_cache_queries_total") == 6
    assert scrape.value("treadle_generation_tokens_total") == 6
    assert scrape.value("treadle_inter_token_latency_seconds_count") == 5
    assert scrape.value("treadle_request_success_total", finished_reason="MAX_NEW_TOKENS") == 1
    assert scrape.value("treadle_request_queue_time_seconds_count") == 1
    labels = {
        "gen_ai_operation_name": "text_completion",
        "gen_ai_provider_name": "treadle",
        "gen_ai_request_model": "fake",
    }
    assert scrape.value("gen_ai_server_time_to_first_token_seconds_count", **labels) == 1
    assert scrape.value("gen_ai_server_time_per_output_token_seconds_count", **labels) == 1
    assert scrape.value("gen_ai_server_request_duration_seconds_count", **labels, error_type="") == 1
    assert scrape.value("treadle_step_duration_seconds_count") == len(serving.model.plans)


async def test_what_a_prompt_finds_in_the_prefix_cache_is_counted(start: Start) -> None:
    serving = await observed(start)
    for _ in range(2):
        await serving.events(generate_request("a long enough prompt"))
    assert (serving.scrape().value("treadle_prefix_cache_hits_total") or 0) > 0


async def test_a_chat_is_told_from_a_prompt(start: Start) -> None:
    serving = await observed(start)
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])
    await serving.stub.Complete(
        pb.CompleteRequest(generate=pb.GenerateRequest(chat=chat, stopping=pb.StoppingCriteria(max_new_tokens=2)))
    )
    (labels,) = serving.scrape().labels("gen_ai_server_request_duration_seconds_count")
    assert labels["gen_ai_operation_name"] == "chat"


async def test_a_client_that_leaves_is_a_cancelled_call_with_its_duration(start: Start) -> None:
    serving = await observed(start)
    serving.steps.close()
    call = serving.stub.Generate(generate_request())
    await eventually(lambda: serving.engine.load().running == 1)
    call.cancel()
    serving.steps.open()
    await eventually(lambda: serving.scrape().value("treadle_requests_total", status="CANCELLED"))
    scrape = serving.scrape()
    assert scrape.value("gen_ai_server_request_duration_seconds_count", error_type="CANCELLED") == 1
    assert scrape.value("treadle_refusals_total", reason="UNEXPECTED") == 0


async def test_preemptions_are_counted_and_every_kv_block_is_in_one_state(start: Start) -> None:
    serving = await observed(start, model=FakeModel(describe(kv_block_count=10)))
    requests = [generate_request(chr(65 + i) * 6, max_new_tokens=24) for i in range(4)]
    held = await serving.hold_steps(requests[0])  # so that all of them are there at once
    others = [asyncio.create_task(serving.events(request)) for request in requests[1:]]
    await eventually(lambda: serving.engine.load().waiting == len(others))
    serving.steps.open()
    await asyncio.gather(*others)
    assert [event async for event in held][-1].HasField("result")
    scrape = serving.scrape()
    assert (scrape.value("treadle_num_preemptions_total") or 0) > 0
    states = [scrape.value("treadle_kv_blocks", state=state) or 0 for state in ("used", "cached", "free")]
    assert sum(states) == 10
    assert scrape.value("treadle_kv_cache_usage_perc") == states[0] / 10


async def test_while_the_model_loads_the_state_shows_and_what_there_is_no_model_for_does_not(start: Start) -> None:
    serving = Observed()
    serving.loading.close()
    await start(serving)
    scrape = serving.scrape()
    assert scrape.value("treadle_lifecycle_state", state="LOADING") == 1
    assert scrape.value("treadle_lifecycle_state", state="READY") == 0
    assert scrape.value("treadle_slots") == 4
    assert scrape.value("treadle_num_requests_running") is None
    serving.loading.open()
    await serving.ready()
    scrape = serving.scrape()
    assert scrape.value("treadle_lifecycle_state", state="READY") == 1
    assert scrape.value("treadle_num_requests_running") == 0
    assert scrape.value("treadle_model_info", model="fake") == 1


async def test_a_dead_scheduler_shows_and_the_counts_stay(start: Start) -> None:
    serving = await observed(start)

    def die(_: object) -> None:
        raise SystemExit("on purpose")

    serving.model.before_step = die
    await serving.refusal(generate_request())
    await eventually(lambda: serving.engine.lifecycle is Lifecycle.FAILED)
    scrape = serving.scrape()
    assert scrape.value("treadle_lifecycle_state", state="FAILED") == 1
    assert scrape.value("treadle_scheduler_progress") == 0
    assert scrape.value("treadle_refusals_total", reason="ENGINE_DIED") == 1
    assert scrape.value("treadle_slots") == 4


async def test_prompts_are_not_in_a_scrape(start: Start) -> None:
    serving = await observed(start)
    await serving.events(generate_request("a secret"))
    assert "secret" not in serving.scrape().text


async def test_two_servers_in_a_process_count_each_for_itself(start: Start) -> None:
    one, other = await observed(start), await observed(start)
    await one.stub.GetLoad(pb.GetLoadRequest())
    assert one.scrape().value("treadle_requests_total", method="GetLoad") == 1
    assert other.scrape().value("treadle_requests_total", method="GetLoad") is None


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [("", "text/plain"), ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text")],
)
async def test_the_format_is_the_one_asked_for(start: Start, accept: str, content_type: str) -> None:
    exposition = Metrics((await observed(start)).engine).exposition(accept)
    assert exposition.content_type.startswith(content_type)
    assert exposition.body.endswith(b"# EOF\n") is ("openmetrics" in content_type)
