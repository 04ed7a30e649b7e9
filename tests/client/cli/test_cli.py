"""The command over a scripted server: output, exit statuses, and what ends it early."""

import json
import os
import pty
import signal
import subprocess
import sys

import grpc
import pytest
from google.rpc import error_details_pb2

from tests.client.cli.command import Command, end, interrupt
from tests.client.scripted import (
    PATIENCE,
    STARTED,
    ScriptedServer,
    answers,
    endless,
    fails,
    reason,
    says,
    silent,
    tokens,
)


@pytest.fixture
def command(server: ScriptedServer) -> Command:
    return Command(server.address)


def test_generate_writes_the_text_and_a_newline(command: Command, server: ScriptedServer) -> None:
    ended = command.run("generate", "hi", "--temperature=0.5", "--stop=a", "--stop=b", "--max-new-tokens=3")
    assert (ended.status, ended.out, ended.err) == (0, "Hello world\n", "")
    request = server.asked[0].request
    assert request.prompt == "hi"
    assert request.sampling.temperature == 0.5
    assert list(request.stopping.stop) == ["a", "b"]
    assert request.stopping.max_new_tokens == 3
    assert not request.sampling.HasField("top_k")


def test_text_is_written_as_it_comes(command: Command, server: ScriptedServer) -> None:
    server.play(endless)
    process = command.start("generate", "hi")
    assert process.stdout is not None
    assert process.stdout.read(12) == b"again again "
    interrupt(process)
    assert end(process).status == 130
    assert server.asked[0].ended.wait(PATIENCE)


def test_ctrl_c_while_nothing_comes_ends_the_work(command: Command, server: ScriptedServer) -> None:
    server.play(silent)
    process = command.start("generate", "hi")
    server.wait_for_call()
    interrupt(process)
    ended = end(process)
    assert (ended.status, ended.err) == (130, "")
    assert server.asked[0].ended.wait(PATIENCE)


def test_a_reader_that_leaves_ends_the_work(command: Command, server: ScriptedServer) -> None:
    server.play(endless)
    process = command.start("generate", "hi")
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(PATIENCE) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.stdin is not None
    process.stdin.close()
    assert server.asked[0].ended.wait(PATIENCE)


def test_json_is_one_event_a_line(command: Command) -> None:
    ended = command.run("generate", "hi", "--json")
    events = [json.loads(line) for line in ended.out.splitlines()]
    assert [event["event"] for event in events] == ["started", "tokens", "tokens", "result"]
    assert events[1] == {
        "event": "tokens",
        "index": 0,
        "token_ids": [5],
        "text": "Hello",
        "logprobs": [],
        "usage": None,
    }
    assert events[-1]["finish_reason"] == "max_new_tokens"


def test_standard_input_is_the_prompt_as_it_is(command: Command, server: ScriptedServer) -> None:
    assert command.run("generate", "-", stdin="é\n".encode()).status == 0
    assert server.asked[0].request.prompt == "é\n"


def test_standard_input_that_is_no_text_is_refused(command: Command, server: ScriptedServer) -> None:
    ended = command.run("generate", "-", stdin=b"\xff")
    assert (ended.status, server.asked) == (3, [])
    assert ended.err.startswith("treadle: standard input is not UTF-8")


def test_a_chat_remembers_what_was_said(command: Command, server: ScriptedServer) -> None:
    server.play(answers("one"), answers("two"))
    ended = command.run("chat", "--system=be", stdin=b"first\n\nsecond\n")
    assert (ended.status, ended.out) == (0, "one\ntwo\n")
    said = [(message.role, message.content) for message in server.asked[1].request.chat.messages]
    assert said == [("system", "be"), ("user", "first"), ("assistant", "one"), ("user", "second")]


def test_a_chat_of_one_message_answers_and_leaves(command: Command, server: ScriptedServer) -> None:
    assert command.run("chat", "hello").out == "Hello world\n"
    assert [message.content for message in server.asked[0].request.chat.messages] == ["hello"]


def test_in_a_chat_ctrl_c_ends_the_answer_and_then_the_chat(server: ScriptedServer) -> None:
    server.play(endless, answers("\x1b[31mfine\n"))
    ours, theirs = pty.openpty()
    variables = {**os.environ, "PYTHONPATH": "client", "TERM": "dumb"}
    arguments = [sys.executable, "-m", "treadle", "chat", "--address", server.address]
    chat = subprocess.Popen(arguments, stdin=theirs, stdout=theirs, stderr=theirs, env=variables)
    os.close(theirs)
    seen = b""

    def read_until(text: bytes) -> bytes:
        nonlocal seen
        while text not in seen:
            seen += os.read(ours, 1000)
        before, seen = seen.split(text, 1)
        return before

    read_until(b"> ")
    os.write(ours, b"go on\n")
    read_until(b"again again")
    chat.send_signal(signal.SIGINT)
    read_until(b"(interrupted)")
    assert server.asked[0].ended.wait(PATIENCE)
    read_until(b"> ")
    os.write(ours, b"and you?\n")
    assert "�[31m".encode() in read_until(b"fine")
    read_until(b"> ")
    chat.send_signal(signal.SIGINT)
    os.write(ours, b"\n")  # readline notices a signal of the moment before it waits only once a line has come
    assert chat.wait(PATIENCE) == 130
    os.close(ours)
    assert [message.content for message in server.asked[1].request.chat.messages] == ["and you?"]


def test_nobody_there_is_one_plain_line(command: Command, server: ScriptedServer) -> None:
    server.stop()
    for arguments in (["generate", "hi"], ["chat", "hi"], ["model"], ["load"], ["health"], ["tokenize", "hi"]):
        ended = command.run(*arguments)
        assert (ended.status, ended.out) == (4, "")
        assert ended.err.count("\n") == 1
        assert ended.err.startswith(f"treadle: {server.address} is unavailable: ")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (grpc.StatusCode.INTERNAL, 1),
        (grpc.StatusCode.INVALID_ARGUMENT, 3),
        (grpc.StatusCode.FAILED_PRECONDITION, 3),
        (grpc.StatusCode.UNAUTHENTICATED, 7),
    ],
)
def test_each_kind_of_error_has_its_exit_status(
    command: Command, server: ScriptedServer, code: grpc.StatusCode, status: int
) -> None:
    server.play(fails(code, "said\nso"))
    ended = command.run("generate", "hi")
    assert (ended.status, ended.out, ended.err) == (status, "", "treadle: said so\n")


def test_too_much_to_do_and_too_late_have_their_exit_statuses(command: Command, server: ScriptedServer) -> None:
    server.play(fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "full"))
    assert command.run("generate", "hi", "--timeout=10").status == 5
    server.play(silent)
    assert command.run("generate", "hi", "--timeout=0.3").status == 6


def test_an_error_ends_the_line_of_the_text_before_it(command: Command, server: ScriptedServer) -> None:
    server.play(says(STARTED, tokens("half")))
    ended = command.run("generate", "hi")
    assert (ended.status, ended.out, ended.err) == (1, "half\n", "treadle: the stream ended OK without a result\n")


def test_an_error_is_json_for_machines(command: Command, server: ScriptedServer) -> None:
    violations = error_details_pb2.BadRequest()
    violations.field_violations.add(field="sampling.top_p", description="is 2: must be at most 1")
    server.play(fails(grpc.StatusCode.INVALID_ARGUMENT, "bad", reason("INVALID_ARGUMENT"), violations))
    ended = command.run("generate", "hi", "--json")
    assert (ended.status, ended.out) == (3, "")
    assert json.loads(ended.err) == {
        "error": "InvalidRequest",
        "code": "INVALID_ARGUMENT",
        "reason": "INVALID_ARGUMENT",
        "message": "bad",
        "request_id": "r1",
        "violations": [{"field": "sampling.top_p", "description": "is 2: must be at most 1"}],
        "retry_after": None,
    }


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["generate"],
        ["generate", "hi", "--top-k=many"],
        ["generate", "hi", "--timeout=0"],
        ["generate", "hi", "--timeout=nan"],
        ["health", "--tls-cert=/nowhere.pem"],
        ["health", "--tls-ca=/nowhere.pem"],
        ["health", "--token=é"],
    ],
)
def test_wrong_usage_is_said_with_status_2(command: Command, arguments: list[str]) -> None:
    ended = command.run(*arguments)
    assert ended.status == 2
    assert "usage: treadle" in ended.err
    assert "Traceback" not in ended.err


def test_help_explains_the_exit_statuses(command: Command) -> None:
    ended = command.run("generate", "--help")
    assert "exit status:\n  0    done" in ended.out


def test_a_character_that_the_output_lacks_is_replaced(command: Command, server: ScriptedServer) -> None:
    server.play(answers("caf\u00e9"))
    ended = command.run("generate", "hi", PYTHONIOENCODING="ascii")
    assert (ended.status, ended.out) == (0, "caf?\n")


def test_the_version_is_said(command: Command) -> None:
    assert command.run("--version").out.startswith("treadle ")
