"""A chat template: a Jinja template of transformers' that puts a Chat into text.

It runs in transformers' own sandbox, whose compiled templates transformers caches (128 of them).
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from jinja2 import nodes
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

from server.engine.chat import Chat, ChatMessage, Tool
from server.engine.errors import InvalidArgument
from server.model.template_variables import variables_of

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
SET_BY_SERVER = frozenset(
    {
        *("messages", "tools", "add_generation_prompt", *SPECIAL_TOKENS),
        # Parameters of the rendering function itself, so that no variable of a template can have these names.
        *("conversations", "chat_template", "return_assistant_tokens_mask", "continue_final_message"),
    }
)

MAX_REASON = 200
MAX_SHOWN_NAME = 64
"""Characters."""
MAX_SHOWN_ROLES = 8
MAX_SHOWN_VARIABLES = 16


class ChatTemplate:
    """`refusals_name` is the field that is to blame where the template raises or does not compile."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], refusals_name: str = "chat.messages") -> None:
        self.source = source
        self._special_tokens = special_tokens
        self._refusals_name = refusals_name

    @property
    def takes_tools(self) -> bool:
        """False, too, where the template does not compile."""
        try:
            return "tools" in self._variables
        except Exception:  # whatever compiling a broken template may raise
            return False

    def render(self, chat: Chat) -> str:
        """The text of the conversation, ready for the assistant's answer or for more of its last message.

        With continue_final_message it ends with the final message's content: exactly where the template writes contents
        as they are, and without white space at the content's ends where the template trims contents. Raises
        InvalidArgument where the template refuses the chat, does not use a part of it, or would change what is to be
        continued.
        """
        try:
            self._check_uses(chat)
            text = self._render(chat)
            text.encode()
        except (InvalidArgument, MemoryError):
            raise
        except Exception as error:  # whatever a template's own code may raise on messages it was not written for
            raise self._refusal(chat, error) from error
        final = chat.messages[-1].content
        if chat.continue_final_message and not text.endswith((final.lstrip(), final.strip())):
            raise _not_continuable()
        return text

    def _render(self, chat: Chat) -> str:
        variables: dict[str, Any] = {**self._special_tokens, **chat.template_options}
        rendered: tuple[list[str], object] = render_jinja_template(  # type: ignore[assignment]  # annotated as str
            conversations=[[_message(message) for message in chat.messages]],
            tools=[_tool(tool) for tool in chat.tools] or None,
            chat_template=self.source,
            continue_final_message=chat.continue_final_message,
            add_generation_prompt=not chat.continue_final_message,
            **variables,
        )
        return rendered[0][0]

    def _check_uses(self, chat: Chat) -> None:
        if chat.tools and "tools" not in self._variables:
            raise InvalidArgument("chat.tools", f"{len(chat.tools)} long", "the chat template takes no tools")
        calls = (f"chat.messages[{i}].tool_calls" for i, message in enumerate(chat.messages) if message.tool_calls)
        if (path := next(calls, None)) and not self._reads_tool_calls:
            raise InvalidArgument(path, "set", "the chat template takes no tool calls")
        for name in chat.template_options:
            path = f"chat.template_options.fields[{_cut(name, MAX_SHOWN_NAME)}]"
            if name in SET_BY_SERVER or name in self._special_tokens:
                raise InvalidArgument(path, "set", "must be unset: the server sets this variable itself")
            if name not in self._variables:
                raise InvalidArgument(
                    path, "set", f"must be a variable of the chat template: {self._shown_variables()}"
                )

    def _refusal(self, chat: Chat, error: Exception) -> InvalidArgument:
        # transformers' own text has the whole conversation in it.
        if chat.continue_final_message and str(error).startswith("continue_final_message is set"):
            return _not_continuable()
        roles = [message.role for message in chat.messages]
        shown = ", ".join(roles[:MAX_SHOWN_ROLES]) + ", ..." * (len(roles) > MAX_SHOWN_ROLES)
        reason = _cut(" ".join(str(error).split()), MAX_REASON) or type(error).__name__
        value = f"[{shown}]" if self._refusals_name == "chat.messages" else f"{len(self.source)} characters long"
        return InvalidArgument(self._refusals_name, value, f"the chat template refuses: {reason}")

    def _shown_variables(self) -> str:
        names = sorted(self._variables - SET_BY_SERVER)
        shown = ", ".join(names[:MAX_SHOWN_VARIABLES]) + ", ..." * (len(names) > MAX_SHOWN_VARIABLES)
        return _cut(shown, MAX_REASON) or "it has none"

    @cached_property
    def _tree(self) -> nodes.Template:
        environment = _compile_jinja_template(self.source).environment
        tree = environment.parse(self.source)
        assert isinstance(tree, nodes.Template)
        return tree

    @cached_property
    def _variables(self) -> frozenset[str]:
        return variables_of(self._tree)

    @cached_property
    def _reads_tool_calls(self) -> bool:
        """As `message.tool_calls`, `message["tool_calls"]` or `"tool_calls" in message`."""
        attributes = (node.attr for node in self._tree.find_all(nodes.Getattr))
        constants = (node.value for node in self._tree.find_all(nodes.Const))
        return "tool_calls" in attributes or "tool_calls" in constants


def _message(message: ChatMessage) -> dict[str, Any]:
    """In OpenAI's form, with arguments as an object. Templates ask whether a key is there, so an unset one is not."""
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shown["tool_calls"] = [
            ({"id": call.id} if call.id else {})
            | {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        shown["tool_call_id"] = message.tool_call_id
    return shown


def _tool(tool: Tool) -> dict[str, Any]:
    """In OpenAI's form, as transformers' get_json_schema makes it."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _not_continuable() -> InvalidArgument:
    limit = "the chat template does not write the final message's content as it is, so it cannot be continued"
    return InvalidArgument("chat.continue_final_message", "true", limit)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
