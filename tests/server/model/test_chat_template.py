"""The model's chat template against transformers' apply_chat_template, called with what its documentation shows."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import _compile_jinja_template

from server.engine.chat import Chat, ChatMessage, JsonObject, JsonValue, Tool, ToolCall
from server.engine.errors import ChatTemplateMissing, InvalidArgument
from server.model.chat_template import SPECIAL_TOKENS, ChatTemplate
from server.model.tokenizer import TransformersTokenizer
from tests.server.model import tiny
from tests.server.model.chat_templates import CHATML, LLAMA31, MISTRAL, QWEN3

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATES = {"chatml": CHATML, "qwen3": QWEN3, "llama31": LLAMA31, "mistral": MISTRAL}
PROPERTIES: JsonObject = {"city": {"type": "string"}, "a": {"enum": [1.5]}}
PARAMETERS: JsonObject = {"type": "object", "required": ["city"], "properties": PROPERTIES}
WEATHER = Tool("get_weather", "The weather <now> & here", PARAMETERS)
WITH_TOOLS = Chat(
    messages=(
        ChatMessage("system", " Be brief. "),
        ChatMessage("user", "And in Köln?"),
        ChatMessage("assistant", "", (ToolCall("abcdefghi", "get_weather", {"city": "Köln", "a": 1.5}),)),
        ChatMessage("tool", "21 °C", tool_call_id="abcdefghi"),
    ),
    tools=(WEATHER,),
)
WITH_TOOLS_AS_DOCUMENTED: list[dict[str, Any]] = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "And in Köln?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "abcdefghi",
                "type": "function",
                "function": {"name": "get_weather", "arguments": {"city": "Köln", "a": 1.5}},
            }
        ],
    },
    {"role": "tool", "content": "21 °C", "tool_call_id": "abcdefghi"},
]
TOOLS_AS_DOCUMENTED = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "The weather <now> & here", "parameters": PARAMETERS},
    }
]


def tokenizer_of(template: str | dict[str, str]) -> PreTrainedTokenizerFast:
    tokenizer = tiny.byte_level_tokenizer()
    tokenizer.add_special_tokens(SPECIAL)  # type: ignore[arg-type]  # annotated narrower than it is
    tokenizer.chat_template = template
    return tokenizer


def by_transformers(template: str, messages: list[dict[str, Any]], **arguments: Any) -> str:
    text = tokenizer_of(template).apply_chat_template(messages, tokenize=False, **arguments)
    assert isinstance(text, str)
    return text


def conversation(*turns: tuple[str, str], **more: Any) -> Chat:
    return Chat(tuple(ChatMessage(role, content) for role, content in turns), **more)


def refusal(template: str, chat: Chat) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as refused:
        ChatTemplate(template, SPECIAL).render(chat)
    return refused.value


@pytest.mark.parametrize("name", ["qwen3", "llama31", "mistral"])
def test_tools_and_tool_calls_are_rendered_as_transformers_documents(name: str) -> None:
    text = ChatTemplate(TEMPLATES[name], SPECIAL).render(WITH_TOOLS)
    assert text == by_transformers(
        TEMPLATES[name], WITH_TOOLS_AS_DOCUMENTED, tools=TOOLS_AS_DOCUMENTED, add_generation_prompt=True
    )
    assert text.count("get_weather") == 2
    assert text.index('"required"') < text.index('"properties"')
    assert "<now> & here" in text


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=list(TEMPLATES))
@settings(deadline=None)
@given(contents=st.lists(st.text(max_size=12), min_size=1, max_size=5), system=st.none() | st.text(max_size=8))
def test_turns_are_rendered_as_by_transformers(template: str, contents: list[str], system: str | None) -> None:
    turns = [] if system is None else [("system", system)]
    turns += [("assistant" if i % 2 else "user", content) for i, content in enumerate(contents)]
    messages = [{"role": role, "content": content} for role, content in turns]
    expected = by_transformers(template, messages, add_generation_prompt=True)
    assert ChatTemplate(template, SPECIAL).render(conversation(*turns)) == expected


@settings(deadline=None)
@given(st.text(min_size=1).filter(str.strip), st.text())
def test_a_continued_message_ends_the_text_as_it_is(content: str, question: str) -> None:
    chat = conversation(("user", question), ("assistant", content), continue_final_message=True)
    asked = ChatTemplate(CHATML, SPECIAL).render(conversation(("user", question)))
    assert ChatTemplate(CHATML, SPECIAL).render(chat) == asked + content


@settings(deadline=None)
@given(st.text(min_size=1).filter(str.strip))
def test_a_template_that_trims_contents_trims_a_continued_one(content: str) -> None:
    chat = conversation(("user", "q"), ("assistant", content), continue_final_message=True)
    asked = ChatTemplate(LLAMA31, SPECIAL).render(conversation(("user", "q")))
    assert ChatTemplate(LLAMA31, SPECIAL).render(chat) == asked + content.strip()


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=list(TEMPLATES))
@pytest.mark.parametrize("content", ["Sure", " Sure, \n", "CONTINUE_FINAL_MESSAGE_TAG ", "<|im_end|>"])
def test_a_continued_message_is_rendered_as_by_transformers(template: str, content: str) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]
    chat = conversation(("user", "q"), ("assistant", content), continue_final_message=True)
    text = ChatTemplate(template, SPECIAL).render(chat)
    assert text == by_transformers(template, messages, continue_final_message=True)
    assert text.rstrip().endswith(content.strip())


def test_a_message_that_the_template_changes_cannot_be_continued() -> None:
    chat = conversation(("user", "q"), ("assistant", "<think>secret</think>yes"), continue_final_message=True)
    refused = refusal(QWEN3, chat)
    assert refused.field == "chat.continue_final_message"
    assert "secret" not in str(refused)
    shouting = "{% for m in messages %}{{ m.content | replace('s', 'S') }}{% endfor %}"
    assert refusal(shouting, chat).field == "chat.continue_final_message"
    dropping = "{{ messages[0].content }}"
    assert refusal(dropping, chat).field == "chat.continue_final_message"


def test_template_options_reach_the_template_as_they_are() -> None:
    qwen, asked = ChatTemplate(QWEN3, SPECIAL), conversation(("user", "q"))
    assert qwen.render(replace(asked, template_options={"enable_thinking": False})).endswith("<think>\n\n</think>\n\n")
    assert qwen.render(replace(asked, template_options={"enable_thinking": True})) == qwen.render(asked)
    options: dict[str, JsonValue] = {"date_string": "1 May 2025", "tools_in_user_message": False}
    text = ChatTemplate(LLAMA31, SPECIAL).render(replace(WITH_TOOLS, template_options=options))
    expected = by_transformers(
        LLAMA31, WITH_TOOLS_AS_DOCUMENTED, tools=TOOLS_AS_DOCUMENTED, add_generation_prompt=True, **options
    )
    assert text == expected


def test_documents_are_a_variable_like_others() -> None:
    template = "{% for document in documents %}{{ document.title }}: {{ document.text }}\n{% endfor %}"
    chat = conversation(("user", "q"), template_options={"documents": [{"title": "A", "text": "b"}]})
    assert ChatTemplate(template, SPECIAL).render(chat) == "A: b\n"


@pytest.mark.parametrize("name", ["enable_thinkin", "loop", "range", "x" * 300])
def test_an_option_that_the_template_does_not_use_is_refused_by_name(name: str) -> None:
    refused = refusal(QWEN3, conversation(("user", "q"), template_options={name: 1}))
    assert refused.field.startswith(f"chat.template_options.fields[{name[:64]}")
    assert refused.limit.endswith(": enable_thinking")
    assert len(str(refused)) < 300


@pytest.mark.parametrize(
    "name", ["messages", "tools", "add_generation_prompt", "continue_final_message", "conversations", *SPECIAL_TOKENS]
)
def test_an_option_that_the_server_sets_is_refused(name: str) -> None:
    refused = refusal("{{ " + name + " }}{{ messages }}", conversation(("user", "q"), template_options={name: "x"}))
    assert refused.field == f"chat.template_options.fields[{name}]"
    assert "the server sets" in refused.limit


def test_the_special_tokens_are_those_that_transformers_names() -> None:
    assert set(SPECIAL_TOKENS) == set(PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES) - {"additional_special_tokens"}


def test_tools_and_tool_calls_are_refused_where_the_template_takes_none() -> None:
    assert refusal(CHATML, WITH_TOOLS).field == "chat.tools"
    assert refusal(CHATML, replace(WITH_TOOLS, tools=())).field == "chat.messages[2].tool_calls"
    assert [ChatTemplate(t, SPECIAL).takes_tools for t in TEMPLATES.values()] == [False, True, True, True]
    assert not ChatTemplate("{% set tools = none %}{{ tools }}", SPECIAL).takes_tools
    assert not ChatTemplate("{% if %}", SPECIAL).takes_tools


@pytest.mark.parametrize("way", ["m.tool_calls", "m['tool_calls']", "m.get('tool_calls')", "'tool_calls' in m"])
def test_a_template_reads_tool_calls_in_several_ways(way: str) -> None:
    template = "{% for m in messages %}{% if " + way + " %}call{% endif %}{% endfor %}"
    assert ChatTemplate(template, SPECIAL).render(replace(WITH_TOOLS, tools=())) == "call"


@pytest.mark.parametrize(
    ("template", "chat", "reason"),
    [
        (MISTRAL, conversation(("assistant", "a")), "conversation roles must alternate"),
        (MISTRAL, replace(WITH_TOOLS, messages=(*WITH_TOOLS.messages[:2], ChatMessage("tool", "x"))), "Tool call IDs"),
        ("{{ raise_exception('many\n\nlines ' * 1000) }}", conversation(("user", "q")), "many lines many lines"),
        ("{{ '\\ud800' }}", conversation(("user", "q")), "surrogates not allowed"),
        ("{{ x.y.z }}", conversation(("user", "q")), "'x' is undefined"),
    ],
)
def test_a_template_that_refuses_gives_its_reason_in_one_short_line(template: str, chat: Chat, reason: str) -> None:
    refused = refusal(template, chat)
    assert refused.field == "chat.messages"
    assert reason in refused.limit
    assert "\n" not in refused.limit
    assert len(refused.limit) < 300


def test_the_roles_of_a_long_conversation_are_not_all_shown() -> None:
    assert len(str(refusal(MISTRAL, conversation(*[("assistant", "a")] * 1000)))) < 300


def test_of_named_templates_the_one_for_tools_is_taken_with_tools() -> None:
    named = {"default": CHATML, "tool_use": QWEN3, "rag": "{{ documents }}"}
    tokenizer = TransformersTokenizer(tokenizer_of(named))
    assert tokenizer.takes_tools
    assert tokenizer.render_chat(WITH_TOOLS) == ChatTemplate(QWEN3, SPECIAL).render(WITH_TOOLS)
    asked = conversation(("system", "s"), ("user", "q"))
    assert tokenizer.render_chat(asked) == ChatTemplate(CHATML, SPECIAL).render(asked)
    with_default_only = TransformersTokenizer(tokenizer_of({"default": CHATML}))
    assert not with_default_only.takes_tools
    with pytest.raises(ChatTemplateMissing):
        TransformersTokenizer(tokenizer_of({"rag": QWEN3})).render_chat(asked)


def test_transformers_compiles_a_template_once_and_keeps_a_bounded_number() -> None:
    assert _compile_jinja_template(QWEN3) is _compile_jinja_template(str(QWEN3.encode(), "utf-8"))
    assert _compile_jinja_template.cache_info().maxsize == 128
