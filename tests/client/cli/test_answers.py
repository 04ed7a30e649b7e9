"""What `treadle generate` and `treadle chat` write of the events."""

import json
from math import inf
from pathlib import Path

import pytest
from treadle.v1 import generation_pb2 as pb

from tests.client.cli.command import Command, end, interrupt
from tests.client.scripted import PATIENCE, RESULT, STARTED, ScriptedServer, of, says, silent, tokens

PROMPT = pb.GenerateResponse(prompt=pb.Prompt(token_ids=[1], text="Say: "))


@pytest.fixture
def command(server: ScriptedServer) -> Command:
    return Command(server.address)


def content(text: str) -> pb.GenerateResponse:
    return pb.GenerateResponse(content=pb.ContentChunk(text=text))


def reasoning(text: str) -> pb.GenerateResponse:
    return pb.GenerateResponse(reasoning=pb.ReasoningChunk(text=text))


def tool_call(
    call: int, arguments_json: str, id: str = "", name: str = "", complete: bool = False
) -> pb.GenerateResponse:
    chunk = pb.ToolCallChunk(call=call, id=id, name=name, arguments_json=arguments_json, complete=complete)
    return pb.GenerateResponse(tool_call=chunk)


CALLS = (
    tool_call(0, "", id="call00001", name="sum"),
    tool_call(0, '{"a"'),
    tool_call(0, ": 1}", complete=True),
    tool_call(1, "{}", id="call00002", name="now", complete=True),
)


def test_several_answers_are_written_one_after_the_other(command: Command, server: ScriptedServer) -> None:
    first, second, third = ([of(i, tokens(f"{piece}{i}")) for piece in "ab"] for i in range(3))
    server.play(
        says(
            *[of(i, STARTED) for i in (2, 0, 1)],
            second[0],
            third[0],
            first[0],
            third[1],
            of(2, RESULT),
            first[1],
            of(0, RESULT),
            second[1],
            of(1, RESULT),
        )
    )
    ended = command.run("generate", "hi", "--n=3")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == "[0]\na0b0\n[1]\na1b1\n[2]\na2b2\n"
    assert server.asked[0].request.sampling.n == 3


def test_an_answer_that_never_comes_is_an_error(command: Command, server: ScriptedServer) -> None:
    server.play(says(STARTED, tokens("a"), RESULT, of(1, STARTED), of(1, tokens("half"))))
    ended = command.run("generate", "hi", "--n=2")
    assert (ended.status, ended.out) == (1, "[0]\na\n[1]\nhalf\n")
    assert ended.err == "treadle: the stream ended OK with 1 of 2 results\n"


def test_the_prompt_is_written_before_the_text(command: Command, server: ScriptedServer) -> None:
    server.play(says(STARTED, PROMPT, tokens("hello"), RESULT))
    assert command.run("generate", "hi", "--echo").out == "Say: hello\n"
    assert server.asked[0].request.output.echo_prompt


def test_reasoning_goes_to_standard_error_and_the_rest_to_standard_output(
    command: Command, server: ScriptedServer
) -> None:
    server.play(says(STARTED, tokens("<think>hm</think>so"), reasoning("h"), reasoning("m"), content("so"), RESULT))
    ended = command.run("generate", "hi", "--reasoning")
    assert (ended.status, ended.out, ended.err) == (0, "so\n", "hm\n")


def test_each_tool_call_is_a_line(command: Command, server: ScriptedServer) -> None:
    server.play(says(STARTED, tokens("raw"), content("Let me see."), *CALLS, RESULT))
    ended = command.run("chat", "hi", "--tool-calls=hermes")
    assert (ended.status, ended.out) == (0, 'Let me see.\nsum({"a": 1})\nnow({})\n')


def test_a_chat_goes_on_from_the_text_of_the_first_answer(command: Command, server: ScriptedServer) -> None:
    whole = [STARTED, tokens("<think>hm</think>"), reasoning("hm"), tokens("so"), content("so"), RESULT]
    server.play(says(of(1, STARTED), of(1, tokens("other")), *whole, of(1, RESULT)))
    assert command.run("chat", "--n=2", "--reasoning", stdin=b"hi\nand\n").status == 0
    said = [message.content for message in server.asked[1].request.chat.messages]
    assert said == ["hi", "<think>hm</think>so", "and"]


def test_tools_of_a_file_reach_the_server(command: Command, server: ScriptedServer, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text('[{"name": "sum", "parameters": {"z": 1, "a": 2}}]')
    assert command.run("chat", "hi", f"--tools={tools}").status == 0
    (tool,) = server.asked[0].request.chat.tools
    assert (tool.name, tool.parameters_json) == ("sum", '{"z": 1, "a": 2}')


def test_logprobs_are_a_table_after_the_text(command: Command, server: ScriptedServer) -> None:
    alternatives = [
        pb.Alternative(token_id=5, logprob=-0.5, text='a"\n'),
        pb.Alternative(token_id=6, logprob=-1, text="b"),
    ]
    chosen = pb.TokenLogprob(token_id=5, logprob=-0.5, rank=1, text='a"\n', alternatives=alternatives)
    unlikely = pb.TokenLogprob(token_id=7, logprob=-inf, rank=300, text="c")
    chunk = pb.TokenChunk(token_ids=[5, 7], text="ac", logprobs=[chosen, unlikely])
    server.play(says(STARTED, pb.GenerateResponse(tokens=chunk), RESULT))
    text, heading, *rows = command.run("generate", "hi", "--logprobs=2").out.splitlines()
    assert text == "ac"
    assert heading.split() == ["token", "output", "logprob", "rank", "alternatives"]
    assert rows[0].split() == ["5", r'"a\"\n"', "-0.5000", "1", r'"a\"\n"', "-0.5000,", '"b"', "-1.0000"]
    assert rows[1].split() == ["7", '"c"', "-inf", "300"]
    assert server.asked[0].request.output.logprobs == 2


def test_logprobs_of_the_prompt_are_a_table_of_their_own_and_no_echo(command: Command, server: ScriptedServer) -> None:
    prompt = pb.Prompt(
        token_ids=[1, 2], text="Say", logprobs=[pb.TokenLogprob(token_id=2, logprob=-1, rank=3, text="ay")]
    )
    chunk = pb.TokenChunk(token_ids=[5], text="a", logprobs=[pb.TokenLogprob(token_id=5, rank=1, text="a")])
    server.play(says(STARTED, pb.GenerateResponse(prompt=prompt), pb.GenerateResponse(tokens=chunk), RESULT))
    text, *tables = command.run("generate", "hi", "--logprobs=0", "--prompt-logprobs=0").out.splitlines()
    assert text == "a"
    assert [line.split() for line in tables] == [
        ["token", "prompt", "logprob", "rank", "alternatives"],
        ["2", '"ay"', "-1.0000", "3"],
        ["token", "output", "logprob", "rank", "alternatives"],
        ["5", '"a"', "0.0000", "1"],
    ]


BEST = [
    pb.Completion(index=0, text="good", token_ids=[1], seed=7, mean_logprob=-0.5, result=RESULT.result),
    pb.Completion(index=1, text="fair", token_ids=[2], seed=8, mean_logprob=-1.5, result=RESULT.result),
]


def test_the_best_of_several_are_written_best_first(command: Command, server: ScriptedServer) -> None:
    server.servicer.completions = BEST
    ended = command.run("generate", "hi", "--n=2", "--best-of=4", "--top-k=3")
    assert (ended.status, ended.out, ended.err) == (0, "[0]\ngood\n[1]\nfair\n", "")
    sampling = server.asked[0].request.generate.sampling
    assert (sampling.n, sampling.best_of, sampling.top_k) == (2, 4, 3)
    server.servicer.completions = BEST[:1]
    assert command.run("generate", "hi", "--best-of=4").out == "good\n"


def test_the_best_of_several_are_a_json_object_each(command: Command, server: ScriptedServer) -> None:
    server.servicer.completions = BEST
    ended = command.run("generate", "hi", "--n=2", "--best-of=4", "--json")
    told = [json.loads(line) for line in ended.out.splitlines()]
    assert [(each["event"], each["index"], each["text"], each["mean_logprob"]) for each in told] == [
        ("completion", 0, "good", -0.5),
        ("completion", 1, "fair", -1.5),
    ]


def test_the_best_is_written_in_its_parts(command: Command, server: ScriptedServer) -> None:
    call = pb.ToolCall(id="call00001", name="sum", arguments_json='{"a": 1}')
    parts = pb.Completion(
        text="raw", content="Let me see.", reasoning="hm", tool_calls=[call], prompt=PROMPT.prompt, result=RESULT.result
    )
    server.servicer.completions = [parts]
    ended = command.run("generate", "hi", "--best-of=2", "--reasoning", "--tool-calls=hermes", "--echo")
    assert (ended.out, ended.err) == ('Say: Let me see.\nsum({"a": 1})\n', "hm\n")


def test_ctrl_c_while_the_best_is_waited_for_ends_the_work(command: Command, server: ScriptedServer) -> None:
    server.play(silent)
    process = command.start("generate", "hi", "--best-of=2")
    server.wait_for_call()
    interrupt(process)
    ended = end(process)
    assert (ended.status, ended.err) == (130, "")
    assert server.asked[0].ended.wait(PATIENCE)


def test_the_tokens_of_a_text_can_be_seen_without_special_ones(command: Command, server: ScriptedServer) -> None:
    assert command.run("tokenize", "hi", "--no-special-tokens").status == 0
    assert command.run("tokenize", "hi").status == 0
    assert server.asked[0].request == pb.TokenizeRequest(text="hi", add_special_tokens=False)
    assert server.asked[1].request == pb.TokenizeRequest(text="hi")


def test_an_output_that_is_no_whole_instance_is_said(command: Command, server: ScriptedServer) -> None:
    cut = pb.Result(finish_reason=pb.FINISH_REASON_MAX_NEW_TOKENS, satisfies_constraint=False)
    server.play(says(STARTED, tokens("{"), pb.GenerateResponse(result=cut)))
    ended = command.run("generate", "hi", "--json-object")
    assert (ended.status, ended.out) == (0, "{\n")
    assert ended.err == "treadle: the output is only the beginning of what was asked for: max new tokens\n"


def test_every_kind_of_event_is_valid_json(command: Command, server: ScriptedServer) -> None:
    logprobs = [pb.TokenLogprob(token_id=5, logprob=-inf, text="a", rank=1)]
    chunk = pb.TokenChunk(token_ids=[5], text="a", logprobs=logprobs, usage=pb.Usage(prompt_tokens=1))
    kinds = [PROMPT, pb.GenerateResponse(tokens=chunk), content("so"), reasoning("hm"), CALLS[0], RESULT]
    server.play(says(of(1, STARTED), of(1, RESULT), STARTED, *kinds))
    lines = command.run("generate", "hi", "--n=2", "--json", "--logprobs=0").out.splitlines()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    events = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [(event["event"], event["index"]) for event in events] == [
        ("started", 1),
        ("result", 1),
        ("started", 0),
        ("prompt", 0),
        ("tokens", 0),
        ("content", 0),
        ("reasoning", 0),
        ("tool_call", 0),
        ("result", 0),
    ]
    assert events[4]["logprobs"] == [
        {"token_id": 5, "logprob": "-Infinity", "text": "a", "rank": 1, "alternatives": []}
    ]
    assert events[4]["usage"] == {"prompt_tokens": 1, "completion_tokens": 0, "cached_tokens": 0}
    assert events[7] == {
        "event": "tool_call",
        "index": 0,
        "call": 0,
        "id": "call00001",
        "name": "sum",
        "arguments_json": "",
        "complete": False,
    }


def test_the_model_is_shown_with_what_it_can_do_its_limits_and_its_defaults(
    command: Command, server: ScriptedServer
) -> None:
    server.servicer.model = pb.GetModelResponse(
        id="m",
        capabilities=pb.Capabilities(chat=True, embeddings=False),
        limits=pb.Limits(max_generations=16, max_text_bytes=1024, max_chat_messages=99),
        defaults=pb.Defaults(sampling=pb.SamplingParams(min_p=0.25, repetition_penalty=1.5)),
    )
    shown = {tuple(line.split("  ", 1)[0].split()): line.split()[-1] for line in command.run("model").out.splitlines()}
    assert shown["capabilities:", "chat"] == "yes"
    assert shown["capabilities:", "embeddings"] == "no"
    assert shown["capabilities:", "scores"] == "unknown"
    assert shown["limits:", "max", "generations"] == "16"
    assert shown["limits:", "max", "text", "bytes"] == "1024"
    assert shown["limits:", "max", "chat", "messages"] == "99"
    assert shown["defaults:", "min", "p"] == "0.25"
    assert shown["defaults:", "repetition", "penalty"] == "1.5"
    told = json.loads(command.run("model", "--json").out)
    assert told["capabilities"]["chat"] is True
    assert told["defaults"]["repetition_penalty"] == 1.5
