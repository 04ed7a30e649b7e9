"""One function a command."""

from treadle.cli.answers import answer
from treadle.cli.arguments import Arguments
from treadle.cli.completions import write_completions
from treadle.cli.conversation import Conversation, converse
from treadle.cli.exit_status import ExitStatus
from treadle.cli.printing import print_json, print_record
from treadle.cli.standard_input import read_all
from treadle.cli.top import top
from treadle.client import Client
from treadle.server_info import Health


def run(arguments: Arguments) -> ExitStatus:
    """Raises TreadleError, KeyboardInterrupt and BrokenPipeError."""
    commands = {
        "generate": generate,
        "chat": chat,
        "tokenize": tokenize,
        "model": model,
        "load": load,
        "top": watch,
        "health": health,
    }
    with Client(arguments.address, tls=arguments.tls, token=arguments.token) as client:
        return commands[arguments.command](client, arguments)


def generate(client: Client, arguments: Arguments) -> ExitStatus:
    text, timeout, options = _text(arguments), arguments.timeout, arguments.options
    if arguments.best_of is None:
        answer(client.generate(text, timeout=timeout, **options), arguments)
    else:
        write_completions(client.complete_all(text, timeout=timeout, best_of=arguments.best_of, **options), arguments)
    return ExitStatus.OK


def chat(client: Client, arguments: Arguments) -> ExitStatus:
    if arguments.text is None:
        return converse(client, arguments)
    Conversation(client, arguments).say(_text(arguments))
    return ExitStatus.OK


def tokenize(client: Client, arguments: Arguments) -> ExitStatus:
    tokenization = client.tokenize(
        _text(arguments),
        timeout=arguments.timeout,
        add_special_tokens=arguments.options.get("add_special_tokens"),
    )
    if arguments.json:
        print_json({"token_ids": tokenization.token_ids, "tokens": tokenization.tokens})
    else:
        for token_id, token in zip(tokenization.token_ids, tokenization.tokens, strict=True):
            print(f"{token_id:>8}  {token}")
    return ExitStatus.OK


def model(client: Client, arguments: Arguments) -> ExitStatus:
    print_record(client.model(timeout=arguments.timeout), as_json=arguments.json)
    return ExitStatus.OK


def load(client: Client, arguments: Arguments) -> ExitStatus:
    print_record(client.load(timeout=arguments.timeout), as_json=arguments.json)
    return ExitStatus.OK


def watch(client: Client, arguments: Arguments) -> ExitStatus:
    top(client, arguments)
    return ExitStatus.OK


def health(client: Client, arguments: Arguments) -> ExitStatus:
    status = client.health(arguments.service, timeout=arguments.timeout)
    if arguments.json:
        print_json({"status": status.value})
    else:
        print(status.value.replace("_", " "))
    return ExitStatus.OK if status is Health.SERVING else ExitStatus.UNAVAILABLE


def _text(arguments: Arguments) -> str:
    assert arguments.text is not None
    return read_all() if arguments.text == "-" else arguments.text
