import pytest
from treadle.v1 import generation_pb2 as pb

from tests.server.fakes import BOS, EOS, GREEDY, VOCABULARY_SIZE, FakeTokenizer, next_token
from tests.server.rpc.serving import Serving, generate_request


def oracle(prompt: str, count: int) -> list[int]:
    token_ids = [BOS, *prompt.encode()]
    for _ in range(count):
        token_ids.append(next_token(token_ids, GREEDY))
    return token_ids[-count:]


async def test_a_stream_is_one_started_then_tokens_then_one_result(serving: Serving) -> None:
    events = await serving.events(generate_request("hello", max_new_tokens=8, request_id="mine"))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds == ["started", *["tokens"] * (len(events) - 2), "result"]
    assert events[0].started.request_id == "mine"
    assert events[0].started.prompt_token_count == 6
    assert [i for event in events for i in event.tokens.token_ids] == oracle("hello", 8)
    text = "".join(event.tokens.text for event in events)
    assert text == FakeTokenizer().decode(oracle("hello", 8))
    result = events[-1].result
    assert result.finish_reason == pb.FINISH_REASON_MAX_NEW_TOKENS
    assert result.usage == pb.Usage(prompt_tokens=6, completion_tokens=8)
    assert result.timing.total.ToNanoseconds() >= result.timing.time_to_first_token.ToNanoseconds() > 0


async def test_complete_is_generate_collected(serving: Serving) -> None:
    request = generate_request("hello", request_id="mine")
    streamed = await serving.events(request)
    completed = await serving.stub.Complete(pb.CompleteRequest(generate=request))
    (completion,) = completed.completions
    assert completed.request_id == "mine"
    assert list(completion.token_ids) == [i for event in streamed for i in event.tokens.token_ids]
    assert completion.text == "".join(event.tokens.text for event in streamed)
    assert completion.result.usage.completion_tokens == 8
    assert completion.result.finish_reason == streamed[-1].result.finish_reason


async def test_a_chat_is_rendered_and_tokenized_without_more_special_tokens(serving: Serving) -> None:
    request = generate_request()
    request.chat.messages.add(role="user", content="hi")
    answer = await serving.stub.Complete(pb.CompleteRequest(generate=request))
    assert answer.completions[0].result.usage.prompt_tokens == len("user: hi\nassistant: ")


async def test_token_ids_are_taken_as_they_are(serving: Serving) -> None:
    request = generate_request()
    request.prompt_token_ids.ids.extend([BOS, *b"hello"])
    answer = await serving.stub.Complete(pb.CompleteRequest(generate=request))
    assert list(answer.completions[0].token_ids) == oracle("hello", 8)


async def test_an_unset_seed_is_drawn_and_told_and_gives_the_same_tokens_again(serving: Serving) -> None:
    request = generate_request(max_new_tokens=20)
    request.sampling.temperature = 1
    first = await serving.stub.Complete(pb.CompleteRequest(generate=request))
    other = await serving.stub.Complete(pb.CompleteRequest(generate=request))
    assert first.seed != other.seed
    request.sampling.seed = first.seed
    again = await serving.stub.Complete(pb.CompleteRequest(generate=request))
    assert again.seed == first.seed
    assert again.completions[0].token_ids == first.completions[0].token_ids


async def test_equal_prefixes_of_one_salt_are_computed_once(serving: Serving) -> None:
    cached = []
    for salt in ("", "", "tenant", "tenant"):
        request = generate_request("a prompt of some length")
        request.cache_salt = salt
        events = await serving.events(request)
        assert events[0].started.cached_token_count == events[-1].result.usage.cached_tokens
        cached.append(events[0].started.cached_token_count)
    assert cached[0] == cached[2] == 0
    assert cached[1] == cached[3] > 0


@pytest.mark.parametrize("left_out", ["token_ids", "text"])
async def test_what_output_omits_is_left_out_and_no_chunk_is_empty(serving: Serving, left_out: str) -> None:
    request = generate_request(max_new_tokens=30)
    setattr(request.output, f"omit_{left_out}", True)
    chunks = [e.tokens for e in await serving.events(request) if e.HasField("tokens")]
    assert chunks
    assert not any(getattr(chunk, left_out) for chunk in chunks)
    assert all(chunk.token_ids or chunk.text for chunk in chunks)
    completed = await serving.stub.Complete(pb.CompleteRequest(generate=request))
    assert not getattr(completed.completions[0], left_out)


async def test_tokenize_and_detokenize_are_each_others_inverse(serving: Serving) -> None:
    tokens = await serving.stub.Tokenize(pb.TokenizeRequest(text="hé"))
    assert list(tokens.token_ids) == [BOS, *"hé".encode()]
    assert len(tokens.tokens) == len(tokens.token_ids)
    text = await serving.stub.Detokenize(pb.DetokenizeRequest(token_ids=tokens.token_ids))
    assert text.text == "hé"
    kept = await serving.stub.Detokenize(pb.DetokenizeRequest(token_ids=[BOS], keep_special_tokens=True))
    assert kept.text == f"<{BOS}>"


async def test_get_model_describes_limits_and_defaults(serving: Serving) -> None:
    model = await serving.stub.GetModel(pb.GetModelRequest())
    assert (model.id, model.architecture, model.vocabulary_size) == ("fake", "FakeForCausalLM", VOCABULARY_SIZE)
    assert list(model.special_tokens.eos_token_ids) == [EOS]
    assert not model.special_tokens.HasField("pad_token_id")
    assert (model.limits.max_total_tokens, model.limits.max_slots, model.limits.max_waiting) == (128, 4, 8)
    assert model.limits.max_message_bytes == serving.server_settings.max_message_bytes
    assert model.defaults.sampling.HasField("temperature")
    assert not model.defaults.HasField("max_new_tokens")


async def test_get_load_counts_what_runs_and_waits(serving: Serving) -> None:
    call = await serving.hold_steps(generate_request())
    load = await serving.stub.GetLoad(pb.GetLoadRequest())
    assert (load.running, load.waiting, load.slots, load.kv_blocks_total, load.kv_block_size) == (1, 0, 4, 64, 4)
    assert load.since.seconds > 0
    serving.steps.open()
    assert [e async for e in call][-1].HasField("result")
    load = await serving.stub.GetLoad(pb.GetLoadRequest())
    assert load.tokens_generated == 8
