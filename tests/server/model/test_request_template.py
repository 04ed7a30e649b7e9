"""A request's own template: rendered as the model's would be, and unable to take more than its limits."""

from dataclasses import replace

import pytest

from server.engine.chat import Chat, ChatMessage, Tool
from server.engine.errors import ChatTemplateMissing, InvalidArgument
from server.model.chat_template import ChatTemplate
from server.model.request_template import RenderLimits, render_apart
from server.model.tokenizer import TransformersTokenizer
from tests.server.model import tiny
from tests.server.model.chat_templates import CHATML, QWEN3

PATIENT = RenderLimits(seconds=120)
ASKED = Chat((ChatMessage("user", "Käse?"),), template_options={"enable_thinking": False}, tools=(Tool("eat"),))


def test_it_is_rendered_as_the_models_own_would_be() -> None:
    specials = {"bos_token": "<s>"}
    template = "{{ bos_token }}" + QWEN3
    assert render_apart(template, specials, ASKED, PATIENT) == ChatTemplate(template, specials).render(ASKED)


@pytest.mark.parametrize(
    ("template", "field", "limit"),
    [
        ("{% for %}", "chat.template", "the chat template refuses: Expected"),
        ("{{ raise_exception('not today') }}{{ tools }}{{ enable_thinking }}", "chat.template", "refuses: not today"),
        ("{{ messages }}", "chat.tools", "takes no tools"),
        ("{{ tools }}", "chat.template_options.fields[enable_thinking]", "it has none"),
        ("{{ tools }}{{ enable_thinking }}{{ 'a' * 10**10 }}", "chat.template", "not take more memory"),
        ("{{ tools }}{{ enable_thinking }}{{ 'a' * 10**7 * 2 }}", "chat.template", "at most 16777216 characters"),
        ("{{ " + "[" * 20_000, "chat.template", "recursion"),
    ],
)
def test_what_is_wrong_with_it_is_named(template: str, field: str, limit: str) -> None:
    with pytest.raises(InvalidArgument, match=limit) as refused:
        render_apart(template, {}, ASKED, PATIENT)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "endless", ["{{ 2 ** (10 ** 10) }}", "{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}"]
)
def test_one_that_does_not_end_is_ended(endless: str) -> None:
    template = "{% set r = range(100000) %}" + endless
    with pytest.raises(InvalidArgument, match="must render within 2 s") as refused:
        render_apart(template, {}, Chat(ASKED.messages), RenderLimits(seconds=2))
    assert refused.value.field == "chat.template"


def test_one_that_does_not_fit_in_memory_is_refused() -> None:
    with pytest.raises(InvalidArgument) as refused:
        render_apart("{{ messages[0].content }}" * 2000, {}, Chat(ASKED.messages), replace(PATIENT, memory=0))
    assert refused.value.field == "chat.template"


def test_a_process_that_fails_by_itself_is_not_the_templates_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(RuntimeError, match="the process that renders a template failed"):
        render_apart(CHATML, {}, Chat(ASKED.messages), PATIENT)


def test_it_takes_the_place_of_the_models_own() -> None:
    inner = tiny.byte_level_tokenizer()
    inner.chat_template = CHATML
    tokenizer = TransformersTokenizer(inner, allows_request_templates=True)
    chat = Chat(ASKED.messages, template="{{ messages[0].content + eos_token }}")
    assert tokenizer.render_chat(chat) == "Käse?<|end|>"
    assert tokenizer.render_chat(replace(chat, template=None)) == ChatTemplate(CHATML, {}).render(chat)


def test_a_model_without_a_template_takes_no_chat_even_with_one() -> None:
    tokenizer = TransformersTokenizer(tiny.byte_level_tokenizer(), allows_request_templates=True)
    with pytest.raises(ChatTemplateMissing):
        tokenizer.render_chat(Chat(ASKED.messages, template=CHATML))
