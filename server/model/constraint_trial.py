"""Compiles a grammar in a process of its own, where one that is too much to compile can do no harm.

llguidance bounds much of its work but not all: a schema of a few bytes can make it build an automaton of gigabytes for
minutes, and deep nesting overflows its stack, which ends a process. Nothing can interrupt it in a thread. So a grammar
is compiled here first, over a vocabulary of bytes, under limits that the system enforces; the server compiles only what
came through.
"""

import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

Answer = TypeVar("Answer")

STACK_BYTES = 256 << 20
"""Of address space, for the thread that compiles: enough for the deepest nesting of the largest source."""


@dataclass(frozen=True, slots=True)
class TrialLimits:
    seconds: float = 5.0
    memory: int = 1 << 30
    """Bytes of address space, the stack included."""


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


def parser_limits() -> LLParserLimits:
    """Below llguidance's own defaults where a mask of a request would hold up the step of all."""
    return LLParserLimits(step_lexer_fuel=50_000, step_max_items=20_000, max_lexer_states=50_000, verbose_errors=False)


def on_deep_stack(work: Callable[[], Answer]) -> Answer:
    """Does the work on a thread with a stack of STACK_BYTES, and waits for it."""
    future: Future[Answer] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # a panic in Rust is no Exception
            future.set_exception(error)

    # The size is that of every thread started meanwhile, which costs them nothing but address space.
    usual = threading.stack_size(STACK_BYTES)
    try:
        threading.Thread(target=run, name="constraint").start()
    finally:
        threading.stack_size(usual)
    return future.result()


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
    LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits()).compute_bitmask()


if __name__ == "__main__":
    memory = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    grammar = sys.stdin.buffer.read().decode()
    on_deep_stack(lambda: _compile(grammar))
