"""Flags to options: each arrives as the option it is named for."""

import json
from pathlib import Path

import pytest
import treadle
from treadle import GenerateOptions, LogprobsOf, Tool, ToolCallFormat
from treadle.cli.arguments import parse

FLAGS_AND_OPTIONS: list[tuple[list[str], GenerateOptions]] = [
    (["--temperature=0.5"], {"temperature": 0.5}),
    (["--top-p=0.5"], {"top_p": 0.5}),
    (["--top-k=3"], {"top_k": 3}),
    (["--min-p=0.5"], {"min_p": 0.5}),
    (["--typical-p=0.5"], {"typical_p": 0.5}),
    (["--repetition-penalty=1.5"], {"repetition_penalty": 1.5}),
    (["--presence-penalty=-1"], {"presence_penalty": -1.0}),
    (["--frequency-penalty=2"], {"frequency_penalty": 2.0}),
    (["--logit-bias=3=-100", "--logit-bias", "4=0.5"], {"logit_bias": {3: -100.0, 4: 0.5}}),
    (["--forbid=3", "--forbid", "4  5"], {"forbidden_sequences": [[3], [4, 5]]}),
    (["--seed=5"], {"seed": 5}),
    (["--n=2"], {"n": 2}),
    (["--max-new-tokens=2"], {"max_new_tokens": 2}),
    (["--min-new-tokens=2"], {"min_new_tokens": 2}),
    (["--stop=a", "--stop=b"], {"stop": ["a", "b"]}),
    (["--stop-token-id=1", "--stop-token-id=2"], {"stop_token_ids": [1, 2]}),
    (["--ignore-eos"], {"ignore_eos": True}),
    (["--include-stop-text"], {"include_stop_text": True}),
    (["--time-limit=1.5"], {"time_limit": 1.5}),
    (['--json-schema={"type": "string"}'], {"constraint": treadle.JsonSchema('{"type": "string"}')}),
    (["--json-schema=true"], {"constraint": treadle.JsonSchema("true")}),
    (["--json-object"], {"constraint": treadle.JsonObject()}),
    (["--regex=a|b"], {"constraint": treadle.Regex("a|b")}),
    (["--choice=yes", "--choice=no"], {"constraint": treadle.Choice(["yes", "no"])}),
    (["--logprobs=0"], {"logprobs": 0}),
    (["--prompt-logprobs=2"], {"prompt_logprobs": 2}),
    (["--logprobs-of=raw"], {"logprobs_of": LogprobsOf.RAW}),
    (["--logprobs-of=processed"], {"logprobs_of": LogprobsOf.PROCESSED}),
    (["--keep-special-tokens"], {"keep_special_tokens": True}),
    (["--chunk-interval=0.5"], {"chunk_interval": 0.5}),
    (["--json", "--usage"], {"usage": True}),
    (["--tool-calls=llama3_json"], {"parse_tool_calls": ToolCallFormat.LLAMA3_JSON}),
    (["--reasoning"], {"parse_reasoning": True}),
    (["--echo"], {"echo_prompt": True}),
    (["--truncate=9"], {"truncate_prompt_tokens": 9}),
    (["--priority=-3"], {"priority": -3}),
    (["--request-id=mine"], {"request_id": "mine"}),
    (["--cache-salt=salt"], {"cache_salt": "salt"}),
    ([], {}),
]


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize(("flags", "options"), FLAGS_AND_OPTIONS, ids=[str(flags) for flags, _ in FLAGS_AND_OPTIONS])
def test_each_flag_is_its_option(command: str, flags: list[str], options: GenerateOptions) -> None:
    assert parse([command, "hi", *flags]).options == options


def test_schemas_and_grammars_are_read_from_files(tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"const": "é"}', "utf-8")
    grammar.write_text('start: "a"\n')
    assert parse(["generate", "hi", f"--json-schema={schema}"]).options == {
        "constraint": treadle.JsonSchema('{"const": "é"}')
    }
    assert parse(["generate", "hi", f"--grammar={grammar}"]).options == {"constraint": treadle.Grammar('start: "a"\n')}


@pytest.mark.parametrize("command", ["generate", "tokenize"])
def test_a_text_can_do_without_special_tokens(command: str) -> None:
    assert parse([command, "hi", "--no-special-tokens"]).options == {"add_special_tokens": False}
    assert parse([command, "hi"]).options == {}


def test_a_chat_can_bring_its_template_and_values_for_it(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages }}\n")
    flags = [f"--template={template}", "--template-option=thinking=false", "--template-option", 'where={"a": [1]}']
    assert parse(["chat", *flags]).options == {
        "template": "{{ messages }}\n",
        "template_options": {"thinking": False, "where": {"a": [1]}},
    }


def test_the_best_of_several_is_asked_for_beside_the_options() -> None:
    given = parse(["generate", "hi", "--best-of=3", "--n=2"])
    assert (given.best_of, given.options) == (3, {"n": 2})
    assert parse(["generate", "hi"]).best_of is None


def test_tools_are_read_from_a_file_in_either_form(tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    plain = {"name": "sum", "description": "adds", "parameters": {"type": "object"}}
    tools.write_text(json.dumps([plain, {"type": "function", "function": plain}, {"name": "now"}]))
    expected = Tool("sum", "adds", {"type": "object"})
    assert parse(["chat", f"--tools={tools}"]).options == {"tools": [expected, expected, Tool("now")]}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[", "is not JSON"),
        ("{}", "is not a JSON list of tools"),
        ("[1]", "tool 0 must be a name"),
        ('[{"name": "f"}, {"name": "f", "strict": true}]', "tool 1 must be a name"),
    ],
)
def test_a_file_that_is_no_list_of_tools_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, reason: str
) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(content)
    with pytest.raises(SystemExit, match="2"):
        parse(["chat", f"--tools={tools}"])
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--regex=a", "--json-object"], "not allowed with argument"),
        (["--choice=a", "--regex=a"], "not allowed with argument"),
        (["--logit-bias=3"], "is 3: must be a token id, =, and a number"),
        (["--logit-bias=a=1"], "must be a token id, =, and a number"),
        (["--grammar=/nowhere.lark"], "cannot read /nowhere.lark"),
        (["--json-schema=/nowhere.json"], "cannot read /nowhere.json"),
        (["--tool-calls=morse"], "invalid choice: 'morse'"),
        (["--tools=/nowhere.json"], "unrecognized arguments"),
        (["--template-option=a=1"], "unrecognized arguments"),
        (["--logprobs-of=noise"], "invalid choice: 'noise'"),
        (["--forbid=1,2"], "is '1,2': must be token ids with spaces between them"),
        (["--forbid="], "is '': must be token ids"),
        (["--usage"], "--usage goes with --json only"),
    ],
)
def test_a_wrong_flag_is_said_with_status_2(capsys: pytest.CaptureFixture[str], flags: list[str], reason: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(["generate", "hi", *flags])
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--template-option=a"], "is a: must be a name, =, and JSON"),
        (["--template-option=a=yes"], "is a=yes: must be a name, =, and JSON"),
        (["--template=/nowhere.jinja"], "cannot read /nowhere.jinja"),
        (["--best-of=2"], "unrecognized arguments"),
        (["--no-special-tokens"], "unrecognized arguments"),
    ],
)
def test_a_wrong_flag_of_a_chat_is_said_with_status_2(
    capsys: pytest.CaptureFixture[str], flags: list[str], reason: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(["chat", "hi", *flags])
    assert reason in capsys.readouterr().err
