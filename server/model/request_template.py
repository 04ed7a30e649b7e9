"""Renders a chat by a template of its own, in a process where a template that does too much can do no harm.

The sandbox keeps a template from the server's objects, not from its time and memory: loops nest, texts multiply, and
deep nesting can end a process. Nothing can interrupt that in a thread. So such a template is compiled and rendered in a
process under limits that the system enforces.
"""

import json
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from server.engine.chat import Chat
from server.engine.errors import InvalidArgument
from server.model.chat_template import ChatTemplate

FIELD = "chat.template"
PACKAGES = Path(__file__).parents[2]
"""Where the package `server` is."""
NICENESS = 10
"""Of the process: the steps of the model come first."""
OUT_OF_MEMORY = 3
"""Exit status. Below 0 it is the signal that ended the process, as where its stack is full."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    seconds: float = 10.0
    """The start of the process included, most of a second."""
    memory: int = 1 << 30
    """Bytes of address space."""
    text: int = 16 << 20
    """Characters of the rendered text."""


@dataclass(frozen=True, slots=True)
class _Task:
    """What the process is given, pickled. It answers in JSON, so that nothing it says is run here."""

    template: str
    special_tokens: Mapping[str, str]
    chat: Chat
    limits: RenderLimits


def render_apart(
    template: str, special_tokens: Mapping[str, str], chat: Chat, limits: RenderLimits | None = None
) -> str:
    """As ChatTemplate.render. Also raises InvalidArgument where the template takes more than the limits."""
    task = _Task(template, special_tokens, chat, limits or RenderLimits())
    try:
        done = subprocess.run(
            (sys.executable, "-m", __name__),
            input=pickle.dumps(task),
            capture_output=True,
            timeout=task.limits.seconds,
            check=False,
            cwd=PACKAGES,
            # Threads of numpy, which transformers imports, would take address space and do nothing.
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired as error:
        raise _too_much(template, f"must render within {task.limits.seconds:g} s") from error
    if done.returncode < 0 or done.returncode == OUT_OF_MEMORY:
        raise _too_much(template, "must not take more memory, or nest deeper, than the server allows")
    if done.returncode:
        raise RuntimeError(f"the process that renders a template failed: {done.stderr.decode(errors='replace')}")
    answer = json.loads(done.stdout)
    if "text" in answer:
        text = answer["text"]
        assert isinstance(text, str)
        return text
    raise InvalidArgument(answer["field"], answer["value"], answer["limit"])


def _too_much(template: str, limit: str) -> InvalidArgument:
    return InvalidArgument(FIELD, f"{len(template)} characters long", limit)


def _answer(task: _Task) -> str:
    try:
        text = ChatTemplate(task.template, task.special_tokens, refusals_name=FIELD).render(task.chat)
        if len(text) > task.limits.text:
            raise _too_much(task.template, f"must render to at most {task.limits.text} characters")
    except InvalidArgument as error:
        return json.dumps({"field": error.field, "value": str(error.value), "limit": error.limit})
    return json.dumps({"text": text})


def _main() -> None:
    task = pickle.load(sys.stdin.buffer)
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (task.limits.memory, task.limits.memory))
    try:
        sys.stdout.write(_answer(task))
        sys.stdout.flush()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


if __name__ == "__main__":
    _main()
