"""The flags of a generation. Most are named as their option; what is not given is absent, and the server decides."""

import argparse
from typing import TypeAlias

from treadle.cli import flag_values
from treadle.constraint import Choice, JsonObject, Regex
from treadle.requests import GenerateOptions, LogprobsOf, ToolCallFormat

Group: TypeAlias = "argparse._ActionsContainer"
ABSENT = argparse.SUPPRESS


def add(parser: argparse.ArgumentParser) -> None:
    _add_sampling(parser.add_argument_group("sampling"))
    _add_stopping(parser.add_argument_group("stopping"))
    _add_constraint(parser.add_argument_group("constraint", "what the output must be; at most one of them"))
    _add_output(parser.add_argument_group("output"))
    _add_request(parser.add_argument_group("request"))


def add_chat(parser: argparse.ArgumentParser) -> None:
    """They go with a chat only."""
    group = parser.add_argument_group("chat")
    group.add_argument("--system", metavar="TEXT", help="the system message")
    group.add_argument(
        "--tools",
        type=flag_values.tools,
        default=ABSENT,
        metavar="FILE",
        help="functions the model may call: a JSON list of names, descriptions and parameters",
    )
    group.add_argument(
        "--template",
        type=flag_values.template,
        default=ABSENT,
        metavar="FILE",
        help="a Jinja template in place of the model's own, where the server allows it",
    )
    group.add_argument(
        "--template-option",
        action="append",
        type=flag_values.template_option,
        default=ABSENT,
        dest="template_option_pairs",
        metavar="NAME=JSON",
        help="the value of this variable of the template, such as enable_thinking=false; repeatable",
    )


def add_prompt(parser: argparse.ArgumentParser) -> None:
    """They go with a text only."""
    group = parser.add_argument_group("prompt")
    group.add_argument(
        "--no-special-tokens",
        action="store_false",
        default=ABSENT,
        dest="add_special_tokens",
        help="take the text without the special tokens that the tokenizer would add, such as a begin-of-text",
    )


def add_best_of(parser: argparse.ArgumentParser) -> None:
    """It goes with what is answered once only."""
    group = parser.add_argument_group("choosing")
    group.add_argument(
        "--best-of",
        type=int,
        metavar="N",
        help="generate this many and write the --n most probable of them, best first, once all have ended",
    )


def options(given: argparse.Namespace) -> GenerateOptions:
    options = GenerateOptions()
    for name in GenerateOptions.__optional_keys__:
        if hasattr(given, name):
            options[name] = getattr(given, name)  # type: ignore[literal-required] # from the TypedDict's own names
    if hasattr(given, "logit_bias_pairs"):
        options["logit_bias"] = dict(given.logit_bias_pairs)
    if hasattr(given, "template_option_pairs"):
        options["template_options"] = dict(given.template_option_pairs)
    if hasattr(given, "logprobs_distribution"):
        options["logprobs_of"] = LogprobsOf(given.logprobs_distribution)
    if hasattr(given, "choices"):
        options["constraint"] = Choice(given.choices)
    if hasattr(given, "tool_call_format"):
        options["parse_tool_calls"] = ToolCallFormat(given.tool_call_format)
    return options


def _add_sampling(group: Group) -> None:
    _number(group, "--temperature", float, "0 takes the most probable token")
    _number(group, "--top-p", float, "keep the most probable that sum to this")
    _number(group, "--top-k", int, "keep this many of the most probable; 0 keeps all")
    _number(group, "--min-p", float, "keep those at least this many times as probable as the most probable")
    _number(group, "--typical-p", float, "keep the most typical that sum to this")
    _number(group, "--repetition-penalty", float, "above 1 makes tokens of the prompt and output less probable")
    _number(group, "--presence-penalty", float, "above 0 makes tokens of the output less probable")
    _number(group, "--frequency-penalty", float, "the same, for each time they are in it")
    group.add_argument(
        "--logit-bias",
        action="append",
        type=flag_values.logit_bias,
        default=ABSENT,
        dest="logit_bias_pairs",
        metavar="ID=VALUE",
        help="add VALUE to the logit of this token; repeatable",
    )
    group.add_argument(
        "--forbid",
        action="append",
        type=flag_values.token_ids,
        default=ABSENT,
        dest="forbidden_sequences",
        metavar='"ID ID ..."',
        help="never write these tokens one after the other; repeatable",
    )
    _number(group, "--seed", int, "get the same tokens again")
    _number(group, "--n", int, "generate this many, written one after the other; a chat goes on from the first")


def _add_stopping(group: Group) -> None:
    _number(group, "--max-new-tokens", int, "most tokens to generate")
    _number(group, "--min-new-tokens", int, "fewest tokens to generate")
    group.add_argument("--stop", action="append", default=ABSENT, metavar="TEXT", help="end at this; repeatable")
    group.add_argument(
        "--stop-token-id",
        action="append",
        type=int,
        default=ABSENT,
        dest="stop_token_ids",
        metavar="ID",
        help="end at this token; repeatable",
    )
    _switch(group, "--ignore-eos", "ignore_eos", "go on past the model's end")
    _switch(group, "--include-stop-text", "include_stop_text", "keep what stopped it")
    group.add_argument(
        "--time-limit", type=float, default=ABSENT, metavar="SECONDS", help="end after this long with what there is"
    )


def _add_constraint(group: "argparse._ArgumentGroup") -> None:
    kinds = group.add_mutually_exclusive_group()
    kinds.add_argument(
        "--json-schema",
        type=flag_values.json_schema,
        default=ABSENT,
        dest="constraint",
        metavar="FILE-OR-JSON",
        help="JSON that is valid under this schema",
    )
    kinds.add_argument(
        "--json-object",
        action="store_const",
        const=JsonObject(),
        default=ABSENT,
        dest="constraint",
        help="any JSON object",
    )
    kinds.add_argument(
        "--regex", type=Regex, default=ABSENT, dest="constraint", metavar="PATTERN", help="a text that matches this"
    )
    kinds.add_argument(
        "--grammar",
        type=flag_values.grammar,
        default=ABSENT,
        dest="constraint",
        metavar="FILE",
        help="what the rule start of this Lark grammar derives",
    )
    kinds.add_argument(
        "--choice",
        action="append",
        default=ABSENT,
        dest="choices",
        metavar="TEXT",
        help="one of these; repeatable",
    )


def _add_output(group: Group) -> None:
    _number(group, "--logprobs", int, "show how probable each token was, and this many alternatives")
    _number(group, "--prompt-logprobs", int, "the same for the prompt")
    group.add_argument(
        "--logprobs-of",
        choices=[each.value for each in LogprobsOf],
        default=ABSENT,
        dest="logprobs_distribution",
        help="of the model's own distribution, or of the one that the token was drawn from",
    )
    group.add_argument(
        "--tool-calls",
        choices=[each.value for each in ToolCallFormat],
        default=ABSENT,
        dest="tool_call_format",
        help="write the tool calls of this format as NAME(ARGUMENTS), each on a line of its own",
    )
    _switch(group, "--reasoning", "parse_reasoning", "write what is between <think> and </think> to standard error")
    _switch(group, "--echo", "echo_prompt", "write the prompt before the text")
    _switch(group, "--keep-special-tokens", "keep_special_tokens", "write special tokens, such as the end of sequence")
    group.add_argument(
        "--chunk-interval",
        type=float,
        default=ABSENT,
        metavar="SECONDS",
        help="get the text in larger pieces, this far apart at least",
    )
    _switch(group, "--usage", "usage", "count the tokens so far in every event; only with --json")


def _add_request(group: Group) -> None:
    group.add_argument(
        "--truncate",
        type=int,
        default=ABSENT,
        dest="truncate_prompt_tokens",
        metavar="N",
        help="keep only the last N tokens of a longer prompt",
    )
    _number(group, "--priority", int, "higher ones are admitted first; from -100 to 100")
    group.add_argument("--request-id", default=ABSENT, metavar="ID", help="the request's name in the server's logs")
    group.add_argument(
        "--cache-salt", default=ABSENT, metavar="SALT", help="share cached prompts only within the same salt"
    )


def _number(group: Group, flag: str, kind: type[int] | type[float], explanation: str) -> None:
    group.add_argument(flag, type=kind, default=ABSENT, metavar="N" if kind is int else "X", help=explanation)


def _switch(group: Group, flag: str, name: str, explanation: str) -> None:
    group.add_argument(flag, action="store_true", default=ABSENT, dest=name, help=explanation)
