"""Compiles a grammar in a process of its own, where one that is too much to compile can do no harm.

llguidance bounds much of its work but not all: a schema of a few bytes can make it build an automaton of gigabytes for
minutes, and a long chain of references overflows the stack, which ends the process. Nothing can interrupt it in a
thread. So a grammar is compiled here first, over a vocabulary of bytes, under limits that the system enforces; the
server compiles only what came through.
"""

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

PARSER_LIMITS = LLParserLimits(max_items_in_row=1000, max_lexer_states=50_000, verbose_errors=False)
"""Below llguidance's own where a mask could hold up the step of all: an ambiguous grammar makes one take tens of
milliseconds at most, and a sequence's lexer is of tens of megabytes at most. An object may have some 250 properties
that are not required."""
STACK_BYTES = 1 << 20
"""Of the thread that compiles: half of the least that the system's C library gives a thread of the server."""

NICENESS = 10
"""Of the process that compiles: the steps of the model come first."""


@dataclass(frozen=True, slots=True)
class TrialLimits:
    seconds: float = 5.0
    memory: int = 1 << 30
    """Bytes of address space."""


class TrialFailed(Exception):
    """The grammar is too much to compile; the message says of what."""


def try_compiling(grammar: str, limits: TrialLimits) -> None:
    """Raises TrialFailed. A grammar that is compiled with an error has passed."""
    command = (sys.executable, "-P", __file__, str(limits.memory))
    try:
        subprocess.run(command, input=grammar.encode(), capture_output=True, timeout=limits.seconds, check=True)
    except subprocess.TimeoutExpired as error:
        raise TrialFailed(f"it takes more than {limits.seconds:g} s to compile") from error
    except subprocess.CalledProcessError as error:
        raise TrialFailed("it takes more memory to compile than the server allows") from error


class _Bytes:
    """A vocabulary of the 256 bytes and an end, in the form TokenizerWrapper takes."""

    eos_token_id = 256
    bos_token_id = None
    tokens: Sequence[bytes] = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids: Sequence[int] = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def _compile(grammar: str) -> None:
    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=[256])
    LLMatcher(tokenizer, grammar, log_level=0, limits=PARSER_LIMITS).compute_bitmask()


if __name__ == "__main__":
    memory = int(sys.argv[1])
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    threading.stack_size(STACK_BYTES)
    threading.Thread(target=_compile, args=(sys.stdin.buffer.read().decode(),)).start()
