"""Reasoning and tool calls as a client hears of them; `tests/server/parsing` has how they are read."""

import json
from collections.abc import Sequence

import pytest
from treadle.v1 import generation_pb2 as pb

from server.engine.plan import Draw
from server.parsing.tool_call_id import LENGTH
from tests.server.fakes import BOS, EOS, FakeModel, FakeTokenizer, describe
from tests.server.rpc.serving import Serving, Start, generate_request, kinds, text, token_ids

HERMES = 'Sure.<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call><tool_call>{"name": "g", "arguments": {}}'
LLAMA3 = '{"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {"y": "z"}}'
MISTRAL = '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]'


class Words(FakeTokenizer):
    """Knows <think> and </think> as special tokens, which are output where they are to be parsed."""

    THINK, END_THINK = 258, 259

    def token_bytes(self, token_id: int) -> bytes:
        return {258: b"<think>", 259: b"</think>"}.get(token_id) or super().token_bytes(token_id)


def writing(output: str | Sequence[int], prompt: str = "hello") -> FakeModel:
    """A model that answers the prompt with the output and ends."""
    prompt_ids = [BOS, *prompt.encode()]
    written = [*(output.encode() if isinstance(output, str) else output), EOS]

    def choose(seen: Sequence[int], draw: Draw) -> int:  # the fake model calls it so
        assert list(seen[: len(prompt_ids)]) == prompt_ids
        return written[len(seen) - len(prompt_ids)]

    return FakeModel(describe(kv_block_count=400, context_length=400), choose=choose)


def parsing(prompt: str = "hello", **output: object) -> pb.GenerateRequest:
    request = pb.GenerateRequest(prompt=prompt)
    request.output.MergeFrom(pb.OutputOptions(**output))  # type: ignore[arg-type]
    return request


async def answers(serving: Serving, request: pb.GenerateRequest) -> tuple[list[pb.GenerateResponse], pb.Completion]:
    """What Generate streams and Complete answers."""
    events = await serving.events(request)
    (completion,) = (await serving.complete(request)).completions
    return events, completion


def content(events: Sequence[pb.GenerateResponse]) -> str:
    return "".join(event.content.text for event in events)


def reasoning(events: Sequence[pb.GenerateResponse]) -> str:
    return "".join(event.reasoning.text for event in events)


def calls(events: Sequence[pb.GenerateResponse]) -> dict[int, list[pb.ToolCallChunk]]:
    found: dict[int, list[pb.ToolCallChunk]] = {}
    for event in events:
        if event.HasField("tool_call"):
            found.setdefault(event.tool_call.call, []).append(event.tool_call)
    return found


async def test_reasoning_is_parted_from_the_answer_and_the_text_stays_as_it_was(start: Start) -> None:
    output = "<think>let me see</think>The answer."
    serving = await (await start(Serving(model=writing(output)))).ready()
    events, completion = await answers(serving, parsing(parse_reasoning=True))
    assert (reasoning(events), content(events), text(events)) == ("let me see", "The answer.", output)
    assert (completion.reasoning, completion.content, completion.text) == ("let me see", "The answer.", output)
    assert kinds(events)[0] == "started"
    assert kinds(events)[-1] == "result"


async def test_nothing_is_parsed_unless_it_is_asked_for(start: Start) -> None:
    serving = await (await start(Serving(model=writing("<think>a</think>" + HERMES)))).ready()
    events, completion = await answers(serving, parsing())
    assert set(kinds(events)) == {"started", "tokens", "result"}
    assert (completion.reasoning, completion.content, list(completion.tool_calls)) == ("", "", [])
    events, completion = await answers(serving, parsing(parse_reasoning=True))
    assert completion.content == HERMES
    assert not calls(events)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("go <think>", ("deep", "done")),
        ("go <think>\n\n", ("deep", "done")),
        ("go <think> on", ("", "deep</think>done")),
        ("<think", ("", "deep</think>done")),
    ],
)
async def test_a_prompt_that_ends_with_think_makes_the_output_begin_as_reasoning(
    start: Start, prompt: str, expected: tuple[str, str]
) -> None:
    serving = await (await start(Serving(model=writing("deep</think>done", prompt)))).ready()
    events, completion = await answers(serving, parsing(prompt, parse_reasoning=True))
    assert (reasoning(events), content(events)) == (completion.reasoning, completion.content) == expected


async def test_markers_that_are_special_tokens_are_parsed_and_others_stay_out_of_the_text(start: Start) -> None:
    output = [Words.THINK, *b"hm", Words.END_THINK, BOS, *b"yes"]
    serving = await (await start(Serving(model=writing(output), tokenizer=Words()))).ready()
    events, completion = await answers(serving, parsing(parse_reasoning=True))
    assert (completion.reasoning, completion.content) == ("hm", "yes")
    assert text(events) == completion.text == "<think>hm</think>yes"
    events, completion = await answers(serving, parsing())
    assert text(events) == completion.text == "hmyes"


@pytest.mark.parametrize(
    ("format_", "output", "expected"),
    [
        (pb.TOOL_CALL_FORMAT_HERMES, HERMES + "</tool_call>", [("f", {"x": 1}), ("g", {})]),
        (pb.TOOL_CALL_FORMAT_LLAMA3_JSON, LLAMA3, [("f", {"x": 1}), ("g", {"y": "z"})]),
        (pb.TOOL_CALL_FORMAT_MISTRAL, MISTRAL, [("f", {"x": 1})]),
    ],
)
async def test_tool_calls_stream_in_parts_and_are_answered_whole(
    start: Start, format_: pb.ToolCallFormat.ValueType, output: str, expected: list[tuple[str, object]]
) -> None:
    serving = await (await start(Serving(model=writing(output)))).ready()
    events, completion = await answers(serving, parsing(parse_tool_calls=format_))
    streamed = calls(events)
    assert list(streamed) == list(range(len(expected)))
    for chunks, (name, arguments) in zip(streamed.values(), expected, strict=True):
        assert (chunks[0].name, len(chunks[0].id)) == (name, LENGTH)
        assert not any(chunk.name or chunk.id for chunk in chunks[1:])
        assert [chunk.complete for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert json.loads("".join(chunk.arguments_json for chunk in chunks)) == arguments
    assert [(call.name, json.loads(call.arguments_json)) for call in completion.tool_calls] == expected
    assert all(len(call.id) == LENGTH for call in completion.tool_calls)
    assert len({call.id for call in completion.tool_calls}) == len(expected)
    assert text(events) == completion.text == output
    assert content(events) == completion.content == ("Sure." if format_ == pb.TOOL_CALL_FORMAT_HERMES else "")


async def test_a_call_that_is_cut_off_has_no_complete_chunk_and_is_no_call_of_the_completion(start: Start) -> None:
    serving = await (await start(Serving(model=writing(HERMES[: HERMES.index("1}}")])))).ready()
    events, completion = await answers(serving, parsing(parse_tool_calls=pb.TOOL_CALL_FORMAT_HERMES))
    assert [chunk.complete for chunks in calls(events).values() for chunk in chunks].count(True) == 0
    assert calls(events)[0][0].name == "f"
    assert not completion.tool_calls


async def test_reasoning_and_calls_are_parsed_together(start: Start) -> None:
    output = f"<think>I call <tool_call> now</think>{HERMES}</tool_call>"
    serving = await (await start(Serving(model=writing(output)))).ready()
    request = parsing(parse_reasoning=True, parse_tool_calls=pb.TOOL_CALL_FORMAT_HERMES)
    events, completion = await answers(serving, request)
    assert reasoning(events) == completion.reasoning == "I call <tool_call> now"
    assert content(events) == completion.content == "Sure."
    assert [call.name for call in completion.tool_calls] == ["f", "g"]


@pytest.mark.parametrize("left_out", [["omit_text"], ["omit_token_ids"], ["omit_text", "omit_token_ids"]])
async def test_what_is_parsed_is_told_whatever_else_is_omitted(start: Start, left_out: list[str]) -> None:
    output = "<think>hm</think>yes"
    serving = await (await start(Serving(model=writing(output)))).ready()
    request = parsing(parse_reasoning=True)
    for field in left_out:
        setattr(request.output, field, True)
    events, completion = await answers(serving, request)
    assert (reasoning(events), content(events)) == (completion.reasoning, completion.content) == ("hm", "yes")
    assert text(events) == completion.text == ("" if "omit_text" in left_out else output)
    assert token_ids(events) == list(completion.token_ids)
    assert bool(token_ids(events)) == ("omit_token_ids" not in left_out)
    assert all(event.tokens.token_ids or event.tokens.text for event in events if event.HasField("tokens"))


async def test_what_is_held_back_comes_before_the_result(start: Start) -> None:
    serving = await (await start(Serving(model=writing("<think>hm</thi")))).ready()
    events, completion = await answers(serving, parsing(parse_reasoning=True))
    assert reasoning(events) == completion.reasoning == "hm</thi"
    assert kinds(events)[-2:] == ["reasoning", "result"]


async def test_each_generation_is_parsed_by_itself(start: Start) -> None:
    serving = await (await start(Serving(model=writing(f"<think>a</think>{HERMES}</tool_call>")))).ready()
    request = parsing(parse_reasoning=True, parse_tool_calls=pb.TOOL_CALL_FORMAT_HERMES)
    request.sampling.n = 3
    answer = await serving.complete(request)
    assert [(c.reasoning, c.content) for c in answer.completions] == [("a", "Sure.")] * 3
    assert all([call.name for call in c.tool_calls] == ["f", "g"] for c in answer.completions)
    assert len({call.id for completion in answer.completions for call in completion.tool_calls}) == 6


async def test_a_chat_of_tools_is_answered_with_ids_that_it_may_be_continued_with(start: Start) -> None:
    serving = await (await start(Serving(model=writing(f"{HERMES}</tool_call>")))).ready()
    _, completion = await answers(serving, parsing(parse_tool_calls=pb.TOOL_CALL_FORMAT_HERMES))
    request = generate_request()
    request.chat.messages.add(role="user", content="x")
    request.chat.messages.add(role="assistant", tool_calls=completion.tool_calls)
    request.chat.messages.add(role="tool", content="1", tool_call_id=completion.tool_calls[0].id)
    tokens = await serving.stub.Tokenize(pb.TokenizeRequest(chat=request.chat))
    assert tokens.token_ids
