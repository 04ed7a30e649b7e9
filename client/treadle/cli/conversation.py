"""The talk that `treadle chat` holds."""

import sys

from treadle.chat import ChatMessage
from treadle.cli.answers import answer
from treadle.cli.arguments import Arguments
from treadle.cli.exit_status import ExitStatus
from treadle.cli.printing import print_error
from treadle.cli.standard_input import read_line
from treadle.client import Client
from treadle.errors import TreadleError
from treadle.requests import GenerateOptions


class Conversation:
    """What was said so far, and the next answers."""

    def __init__(self, client: Client, arguments: Arguments) -> None:
        self._client, self._arguments = client, arguments
        self._said = [] if arguments.system is None else [ChatMessage("system", arguments.system)]

    def say(self, message: str) -> None:
        """Writes the answer as it comes. An answer that fails or that Ctrl-C ends is forgotten, and so is `message`."""
        turn = ChatMessage("user", message)
        arguments = self._arguments
        options: GenerateOptions = {**arguments.options, "chat": [*self._said, turn]}
        stream = self._client.generate(timeout=arguments.timeout, **options)
        text = answer(stream, arguments)
        self._said += [turn, ChatMessage("assistant", text)]


def converse(client: Client, arguments: Arguments) -> ExitStatus:
    """Answers line after line of standard input, until its end. Raises KeyboardInterrupt for Ctrl-C between answers."""
    conversation = Conversation(client, arguments)
    is_terminal = sys.stdin.isatty()
    while True:
        message = read_line("> " if is_terminal else "")
        if message is None:
            return ExitStatus.OK
        if not message.strip():
            continue
        try:
            conversation.say(message)
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            print("(interrupted)", file=sys.stderr)
        except TreadleError as error:
            if not is_terminal:
                raise
            print_error(error, arguments.address, as_json=arguments.json)
