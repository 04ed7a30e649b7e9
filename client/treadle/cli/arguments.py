"""The command line, as a typed value."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.cli import generation_flags
from treadle.cli.exit_status import EXPLANATION
from treadle.connection import DEFAULT_TARGET, TLS, check_token
from treadle.requests import GenerateOptions
from treadle.version import __version__

DEFAULT_INTERVAL = 1.0


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the user asked for."""

    command: str
    address: str
    tls: TLS | None
    token: str | None
    timeout: float | None
    json: bool
    text: str | None
    """The prompt, message or text; "-" stands for standard input, None for none given."""
    system: str | None
    best_of: int | None
    service: str
    """What `health` asks for; empty for the server as a whole."""
    interval: float
    """Seconds between two looks of `top`."""
    options: GenerateOptions


def parse(argv: Sequence[str] | None) -> Arguments:
    """Ends the process with status 2 and a line on standard error where the command line is wrong."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        tls = _tls(given)
        check_token(given.token)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if hasattr(given, "usage") and not given.json:
        parser.error("--usage goes with --json only")
    return Arguments(
        command=given.command,
        address=given.address,
        tls=tls,
        token=given.token,
        timeout=given.timeout,
        json=given.json,
        text=getattr(given, "text", None),
        system=getattr(given, "system", None),
        best_of=getattr(given, "best_of", None),
        service=getattr(given, "service", ""),
        interval=getattr(given, "interval", DEFAULT_INTERVAL),
        options=generation_flags.options(given),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="treadle",
        description="Talk to a Treadle text-generation server.",
        epilog=EXPLANATION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"treadle {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    generate = _add(commands, "generate", "continue a prompt, streaming the text")
    generate.add_argument("text", metavar="PROMPT", help="the text to continue; - reads standard input as it is")
    generation_flags.add_prompt(generate)
    generation_flags.add(generate)
    generation_flags.add_best_of(generate)
    chat = _add(commands, "chat", "talk with the model, streaming its answers; Ctrl-C ends an answer, then the talk")
    chat.add_argument("text", metavar="MESSAGE", nargs="?", help="answer this and leave; - reads standard input")
    generation_flags.add_chat(chat)
    generation_flags.add(chat)
    tokenize = _add(commands, "tokenize", "show a text as the model sees it")
    tokenize.add_argument("text", metavar="TEXT", help="- reads standard input as it is")
    generation_flags.add_prompt(tokenize)
    _add(commands, "model", "describe the model that is served")
    _add(commands, "load", "say how busy the server is")
    top = _add(commands, "top", "watch how busy the server is, until Ctrl-C")
    top.add_argument(
        "--interval", type=_seconds, default=DEFAULT_INTERVAL, metavar="SECONDS", help="between two looks (%(default)g)"
    )
    health = _add(commands, "health", "say whether the server serves; exits with status 4 where it does not")
    health.add_argument(
        "service", metavar="SERVICE", nargs="?", default="", help="such as liveness; default: all of it"
    )
    return parser


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, summary: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=EXPLANATION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    server = parser.add_argument_group("server")
    default = os.environ.get("TREADLE_ADDRESS") or DEFAULT_TARGET
    server.add_argument(
        "--address", default=default, help="host:port, or any gRPC target (env TREADLE_ADDRESS; %(default)s)"
    )
    server.add_argument("--tls", action="store_true", help="encrypt; implied by the other --tls options")
    server.add_argument("--tls-ca", metavar="FILE", help="PEM file of the authorities to trust")
    server.add_argument("--tls-cert", metavar="FILE", help="PEM file of the client's certificate; needs --tls-key")
    server.add_argument("--tls-key", metavar="FILE", help="PEM file of the client's private key")
    server.add_argument("--tls-server-name", metavar="NAME", help="the name the server's certificate must bear")
    server.add_argument(
        "--token",
        default=os.environ.get("TREADLE_TOKEN") or None,
        help="bearer token (env TREADLE_TOKEN, which others on this machine cannot read)",
    )
    server.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="give up after this long, with an error")
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line, errors on standard error")
    return parser


def _tls(given: argparse.Namespace) -> TLS | None:
    """Raises OSError for a file that cannot be read, ValueError for a certificate or key without the other."""
    if not (given.tls or given.tls_ca or given.tls_cert or given.tls_key or given.tls_server_name):
        return None
    if bool(given.tls_cert) != bool(given.tls_key):
        raise ValueError("--tls-cert and --tls-key need each other")
    return TLS(_read(given.tls_ca), _read(given.tls_cert), _read(given.tls_key), given.tls_server_name)


def _read(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"is {text}: must be above 0 and finite")
    return value
