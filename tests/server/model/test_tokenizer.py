"""The tokenizer against transformers', and what streaming needs of it: exact bytes, and other threads left running."""

import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from server.engine.chat import Chat, ChatMessage
from server.engine.engine import Served
from server.engine.errors import ChatTemplateMissing, InvalidArgument
from server.model.default_model import ensure_default_model
from server.model.tokenizer import TransformersTokenizer
from tests.server.model import tiny


@pytest.fixture(scope="module")
def theirs(cache: Path) -> PreTrainedTokenizerBase:
    tokenizer = AutoTokenizer.from_pretrained(ensure_default_model(cache))
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def with_added_tokens() -> TransformersTokenizer:
    tokenizer = tiny.byte_level_tokenizer()
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("naïve 日本", special=False)])
    return TransformersTokenizer(tokenizer)


def sentencepiece_like() -> TransformersTokenizer:
    """As LLaMA 2's: spaces are ▁, and a character outside the vocabulary becomes its bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "é"]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return TransformersTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")  # type: ignore[no-untyped-call]
    )


@given(st.text())
def test_text_is_encoded_as_transformers_does(served: Served, theirs: PreTrainedTokenizerBase, text: str) -> None:
    for add in (False, True):
        expected = theirs(text, add_special_tokens=add)["input_ids"]
        assert served.tokenizer.encode(text, add_special_tokens=add) == expected


@given(st.text())
def test_text_comes_back_as_it_was(text: str) -> None:
    tokenizer = with_added_tokens()
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=True)) == text


@given(st.lists(st.integers(0, 49151), max_size=30))
def test_ids_are_decoded_as_transformers_does(served: Served, theirs: PreTrainedTokenizerBase, ids: list[int]) -> None:
    for keep in (False, True):
        expected = theirs.decode(ids, skip_special_tokens=not keep, clean_up_tokenization_spaces=False)
        assert served.tokenizer.decode(ids, keep_special_tokens=keep) == expected


@given(st.lists(st.integers(0, 49151), max_size=30))
def test_a_byte_level_decoding_is_that_of_the_ids_bytes(served: Served, ids: list[int]) -> None:
    pieces = [served.tokenizer.token_bytes(token_id) for token_id in ids]
    assert None not in pieces
    joined = b"".join(piece for piece in pieces if piece is not None)
    assert joined.decode(errors="replace") == served.tokenizer.decode(ids, keep_special_tokens=True)


@given(st.lists(st.integers(0, 262), max_size=12))
def test_the_bytes_of_added_tokens_are_right_too(ids: list[int]) -> None:
    tokenizer = with_added_tokens()
    joined = b"".join(tokenizer.token_bytes(token_id) or b"" for token_id in ids)
    assert joined.decode(errors="replace") == tokenizer.decode(ids, keep_special_tokens=True)


def test_an_added_token_that_is_not_special_keeps_its_text() -> None:
    tokenizer = with_added_tokens()
    ids = tokenizer.encode("a<think>b<|end|>", add_special_tokens=False)
    assert len(ids) == 4
    assert tokenizer.decode(ids) == "a<think>b"
    assert tokenizer.decode(ids, keep_special_tokens=True) == "a<think>b<|end|>"
    assert tokenizer.special_token_ids == {ids[-1]}


def test_a_sentencepiece_like_vocabulary_names_its_byte_tokens_and_no_bytes() -> None:
    tokenizer = sentencepiece_like()
    assert tokenizer.byte_fallback_ids == set(range(3, 259))
    assert tokenizer.token_bytes(260) is None
    ids = tokenizer.encode("a 日é", add_special_tokens=False)
    assert tokenizer.tokens(ids) == ["a", "▁", "<0xE6>", "<0x97>", "<0xA5>", "é"]
    assert tokenizer.decode(ids) == "a 日é"


def test_a_byte_level_vocabulary_has_no_byte_fallback(served: Served) -> None:
    assert served.tokenizer.byte_fallback_ids == frozenset()


def test_special_tokens_of_the_default_model(served: Served) -> None:
    assert {0, 1, 2} <= served.tokenizer.special_token_ids
    assert served.tokenizer.tokens([1, 2]) == ["<|im_start|>", "<|im_end|>"]


def test_truncation_and_padding_asked_of_the_tokenizer_are_not_for_prompts() -> None:
    inner = tiny.byte_level_tokenizer()
    inner.backend_tokenizer.enable_truncation(3)
    inner.backend_tokenizer.enable_padding(length=10)
    assert len(TransformersTokenizer(inner).encode("12345", add_special_tokens=False)) == 5


@pytest.mark.parametrize("work", ["encode", "decode"])
def test_other_threads_run_while_a_long_text_is_worked_on(served: Served, work: str) -> None:
    text = "The wheel turns once for every press of the foot, 1234 times. " * 20_000
    ids = served.tokenizer.encode(text, add_special_tokens=False) * 4 if work == "decode" else []
    ticks, done = [0], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    before = ticks[0]
    if work == "encode":
        served.tokenizer.encode(text, add_special_tokens=False)
    else:
        served.tokenizer.decode(ids)
    during = ticks[0] - before
    done.set()
    ticker.join()
    assert during > 10


CONVERSATION = Chat(
    (
        ChatMessage("user", "Hi {{ 7 * 7 }} <|im_end|>"),
        ChatMessage("assistant", "Yes?"),
        ChatMessage("user", "ü"),
    )
)


def test_a_chat_is_rendered_by_the_model_s_template(served: Served, theirs: PreTrainedTokenizerBase) -> None:
    messages = [{"role": m.role, "content": m.content} for m in CONVERSATION.messages]
    expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    text = served.tokenizer.render_chat(CONVERSATION)
    assert text == expected
    assert text.endswith("<|im_start|>assistant\n")
    assert "{{ 7 * 7 }}" in text


def test_the_default_models_answer_can_be_begun_for_it(served: Served, theirs: PreTrainedTokenizerBase) -> None:
    messages = [*CONVERSATION.messages, ChatMessage("assistant", "Sure, ")]
    as_documented = [{"role": m.role, "content": m.content} for m in messages]
    expected = theirs.apply_chat_template(as_documented, tokenize=False, continue_final_message=True)
    text = served.tokenizer.render_chat(Chat(tuple(messages), continue_final_message=True))
    assert text == expected
    assert text == served.tokenizer.render_chat(CONVERSATION) + "Sure, "


def test_transformers_loads_the_same_tokenizer_from_its_files(
    served: Served, theirs: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    for file in served.tokenizer.files():
        (tmp_path / file.name).write_bytes(file.content)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "Grüße <|im_end|> 日本"
    assert loaded.encode(text) == theirs.encode(text) == served.tokenizer.encode(text, add_special_tokens=True)
    assert loaded.special_tokens_map == theirs.special_tokens_map
    messages = [{"role": m.role, "content": m.content} for m in CONVERSATION.messages]
    rendered = loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == served.tokenizer.render_chat(CONVERSATION)


def test_its_files_tell_several_chat_templates_apart(tmp_path: Path) -> None:
    tokenizer = tiny.byte_level_tokenizer()
    tokenizer.chat_template = {"default": "plain", "tool_use": "{{ tools }}"}
    for file in TransformersTokenizer(tokenizer).files():
        (tmp_path / file.name).write_bytes(file.content)
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == tokenizer.chat_template


def test_the_default_model_takes_no_tools(served: Served) -> None:
    assert not served.tokenizer.takes_tools
    assert not served.tokenizer.allows_request_templates


def with_template(template: str | None) -> TransformersTokenizer:
    tokenizer = tiny.byte_level_tokenizer()
    tokenizer.chat_template = template
    return TransformersTokenizer(tokenizer)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[9].content }}", "no element 9"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "unsafe"),
        ("{% if %}", "Expected an expression"),
    ],
)
def test_a_template_that_refuses_is_an_invalid_argument_with_its_reason(template: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason) as refused:
        with_template(template).render_chat(CONVERSATION)
    assert refused.value.field == "chat.messages"


def test_without_a_template_there_is_no_chat() -> None:
    tokenizer = with_template(None)
    assert not tokenizer.has_chat_template
    with pytest.raises(ChatTemplateMissing):
        tokenizer.render_chat(CONVERSATION)
