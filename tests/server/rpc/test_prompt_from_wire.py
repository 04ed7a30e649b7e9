from dataclasses import replace

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from treadle.v1 import generation_pb2 as pb

from server.engine.engine import Served
from server.rpc.prompt_from_wire import max_text_bytes, prompt_token_ids, text_or_chat
from server.rpc.servicer import MAX_DETOKENIZED
from tests.server.fakes import BOS, FakeConstraints, FakeModel, FakeTokenizer, describe
from tests.server.rpc.serving import ENGINE, SERVER, Serving, Start, generate_request, refusal_of_answer

SERVED = Served(FakeModel(), FakeTokenizer(), FakeConstraints())
CHAT = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])
RENDERED = b"user: hi\nassistant: "


@given(st.text(max_size=30), st.none() | st.integers(1, 40), st.none() | st.booleans())
def test_a_text_is_tokenized_with_or_without_special_tokens_and_its_end_kept(
    text: str, most: int | None, add: bool | None
) -> None:
    request = pb.GenerateRequest(prompt=text, truncate_prompt_tokens=most, add_special_tokens=add)
    whole = [BOS] * (add is not False) + list(text.encode())
    assert list(prompt_token_ids(request, request, SERVED)) == (whole if most is None else whole[-most:])


@given(st.lists(st.integers(0, 300), max_size=127), st.none() | st.integers(1, 2**32 - 1))
def test_token_ids_are_taken_as_they_are_or_their_end_is(token_ids: list[int], most: int | None) -> None:
    request = pb.GenerateRequest(prompt_token_ids=pb.TokenIds(ids=token_ids), truncate_prompt_tokens=most)
    expected = token_ids if most is None else token_ids[-most:]
    assert list(prompt_token_ids(request, request, SERVED)) == expected


def test_a_chat_is_truncated_too() -> None:
    request = pb.GenerateRequest(chat=CHAT, truncate_prompt_tokens=4)
    assert prompt_token_ids(request, request, SERVED) == tuple(RENDERED[-4:])


async def test_truncation_makes_a_prompt_fit_that_is_refused_without(serving: Serving) -> None:
    request = generate_request(max_new_tokens=1)
    request.prompt_token_ids.ids.extend([1] * 3000)
    assert (await serving.refusal(request)).field == "prompt_token_ids"
    request.truncate_prompt_tokens = 100
    events = await serving.events(request)
    assert events[0].started.prompt_token_count == 100


@pytest.mark.parametrize("add", [None, True, False])
async def test_tokenize_and_generate_add_the_same_special_tokens(serving: Serving, add: bool | None) -> None:
    request = pb.GenerateRequest(prompt="hé", add_special_tokens=add, output=pb.OutputOptions(echo_prompt=True))
    request.stopping.max_new_tokens = 1
    tokens = await serving.stub.Tokenize(pb.TokenizeRequest(text="hé", add_special_tokens=add))
    assert list(tokens.token_ids) == [BOS] * (add is not False) + list("hé".encode())
    assert list((await serving.complete(request)).completions[0].prompt.token_ids) == list(tokens.token_ids)


async def test_without_special_tokens_an_empty_prompt_is_empty(serving: Serving) -> None:
    request = generate_request("")
    assert (await serving.events(request))[0].started.prompt_token_count == 1
    request.add_special_tokens = False
    assert (await serving.refusal(request)).field == "prompt"


@pytest.mark.parametrize("add", [True, False])
async def test_tokenize_takes_no_choice_of_special_tokens_with_a_chat(serving: Serving, add: bool) -> None:
    request = pb.TokenizeRequest(chat=CHAT, add_special_tokens=add)
    assert (await refusal_of_answer(serving.stub.Tokenize(request))).field == "add_special_tokens"
    assert bytes(text_or_chat(pb.TokenizeRequest(chat=CHAT), SERVED)) == RENDERED


async def test_tokenize_takes_texts_up_to_the_limit_in_bytes(serving: Serving) -> None:
    most = max_text_bytes(SERVED)
    text = "é" * (most // 2)
    assert len(text.encode()) == most
    assert len((await serving.stub.Tokenize(pb.TokenizeRequest(text=text))).token_ids) == most + 1
    refused = await refusal_of_answer(serving.stub.Tokenize(pb.TokenizeRequest(text=text + "x")))
    assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, "text")
    long_chat = pb.Chat(messages=[pb.ChatMessage(role="user", content=text)])
    refused = await refusal_of_answer(serving.stub.Tokenize(pb.TokenizeRequest(chat=long_chat)))
    assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, "chat")


async def test_detokenize_takes_token_ids_up_to_its_limit(start: Start) -> None:
    settings = replace(SERVER, max_message_bytes=1 << 20, max_open_bytes=4 << 20)
    serving = await (await start(Serving(server_settings=settings))).ready()
    text = await serving.stub.Detokenize(pb.DetokenizeRequest(token_ids=[ord("x")] * MAX_DETOKENIZED))
    assert text.text == "x" * MAX_DETOKENIZED
    too_many = pb.DetokenizeRequest(token_ids=[ord("x")] * (MAX_DETOKENIZED + 1))
    refused = await refusal_of_answer(serving.stub.Detokenize(too_many))
    assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, "token_ids")


async def test_a_large_prompt_is_taken_whole(start: Start) -> None:
    model = FakeModel(describe(kv_block_count=1100, context_length=4200))
    settings = replace(ENGINE, max_step_tokens=1024)
    serving = await (await start(Serving(model=model, engine_settings=settings))).ready()
    prompt = "".join(chr(ord("a") + i % 26) for i in range(4000))
    request = generate_request(prompt, max_new_tokens=3)
    request.output.echo_prompt = True
    (completion,) = (await serving.complete(request)).completions
    assert completion.prompt.text == f"<{BOS}>{prompt}"
    assert len(completion.token_ids) == 3
