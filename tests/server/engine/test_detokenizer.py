from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from server.engine.chat import Chat
from server.engine.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer, detokenizer_for
from server.engine.tokenizer import TokenizerFile
from tests.server.fakes import EOS, FakeTokenizer


@dataclass
class BackendTokenizer:
    """A Tokenizer over a backend of the tokenizers library, whose own `decode` is the oracle."""

    backend: Backend
    byte_fallback_ids: frozenset[int] = frozenset()
    special_token_ids: frozenset[int] = frozenset()
    has_chat_template: bool = field(default=False, init=False)
    takes_tools: bool = field(default=False, init=False)
    allows_request_templates: bool = field(default=False, init=False)
    longest_token_bytes: int = field(default=1, init=False)

    def decode(self, token_ids: Sequence[int], *, keep_special_tokens: bool = False) -> str:
        text: str = self.backend.decode(list(token_ids), skip_special_tokens=not keep_special_tokens)
        return text

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        raise AssertionError("a detokenizer does not encode")

    def token_bytes(self, token_id: int) -> bytes | None:
        return None

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        raise AssertionError("a detokenizer does not look at tokens")

    def token_text(self, token_id: int) -> str:
        raise AssertionError("a detokenizer does not look at one token")

    def files(self) -> tuple[TokenizerFile, ...]:
        raise AssertionError("a detokenizer needs no files")

    def render_chat(self, chat: Chat) -> str:
        raise AssertionError("a detokenizer does not render")


def byte_level() -> BackendTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True)])
    return BackendTokenizer(backend, special_token_ids=frozenset({len(alphabet)}))


def sentencepiece_like() -> BackendTokenizer:
    pieces = ["<s>", "▁", "▁a", "b", "▁é", "日", "▁▁", "."]
    vocabulary = {piece: i for i, piece in enumerate(pieces)} | {f"<0x{i:02X}>": 8 + i for i in range(256)}
    backend = Backend(models.BPE(vocabulary, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    return BackendTokenizer(backend, frozenset(range(8, 264)), frozenset({0}))


SPECIAL = FakeTokenizer.special_token_ids


def word_piece() -> BackendTokenizer:
    pieces = ["[UNK]", "the", "##m", "##s", "cat", "."]
    backend = Backend(models.WordPiece({piece: i for i, piece in enumerate(pieces)}))
    backend.decoder = decoders.WordPiece(cleanup=False)
    return BackendTokenizer(backend)


def pieces_of(detokenizer: Detokenizer, token_ids: Sequence[int]) -> list[str]:
    return [*(detokenizer.push(i) for i in token_ids), detokenizer.flush()]


@pytest.mark.parametrize(
    "tokenizer", [byte_level(), sentencepiece_like(), word_piece()], ids=["byte-level", "sentencepiece", "wordpiece"]
)
@settings(max_examples=1000, deadline=None)
@given(data=st.data())
def test_the_pieces_joined_are_the_tokenizers_own_decoding(tokenizer: BackendTokenizer, data: st.DataObject) -> None:
    count = tokenizer.backend.get_vocab_size()
    token_ids = data.draw(
        st.lists(st.one_of(st.integers(0, min(9, count - 1)), st.integers(0, count - 1)), max_size=16)
    )
    silent = tokenizer.special_token_ids
    assert "".join(pieces_of(WindowDetokenizer(tokenizer, silent), token_ids)) == tokenizer.decode(token_ids)


@pytest.mark.parametrize(
    "tokenizer", [byte_level(), sentencepiece_like(), word_piece()], ids=["byte-level", "sentencepiece", "wordpiece"]
)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_kept_special_tokens_have_the_text_they_have_in_the_tokenizers_decoding(
    tokenizer: BackendTokenizer, data: st.DataObject
) -> None:
    ids = st.integers(0, tokenizer.backend.get_vocab_size() - 1)
    special = [st.sampled_from(sorted(tokenizer.special_token_ids))] if tokenizer.special_token_ids else []
    token_ids = data.draw(st.lists(st.one_of(ids, *special), max_size=16))
    detokenizer = detokenizer_for(tokenizer, kept_special_token_ids=tokenizer.special_token_ids)
    assert "".join(pieces_of(detokenizer, token_ids)) == tokenizer.decode(token_ids, keep_special_tokens=True)


@settings(max_examples=1000)
@given(st.one_of(st.binary(max_size=16), st.text(max_size=6).map(str.encode)))
def test_bytes_through_the_incremental_decoder_are_the_tokenizers_own_decoding(data: bytes) -> None:
    tokenizer = FakeTokenizer()
    assert "".join(pieces_of(ByteDetokenizer(tokenizer, SPECIAL), list(data))) == tokenizer.decode(list(data))


@given(st.text(max_size=8))
def test_a_piece_never_ends_inside_a_character(text: str) -> None:
    for detokenizer in (ByteDetokenizer(FakeTokenizer(), SPECIAL), WindowDetokenizer(FakeTokenizer(), SPECIAL)):
        so_far = ""
        for piece in pieces_of(detokenizer, list(text.encode())):
            so_far += piece
            assert text.startswith(so_far)


def test_an_incomplete_character_is_held_and_flushed_at_the_end() -> None:
    euro = list("€".encode())
    detokenizer = ByteDetokenizer(FakeTokenizer(), SPECIAL)
    assert [detokenizer.push(i) for i in [65, *euro[:2]]] == ["A", "", ""]
    assert detokenizer.flush() == "\N{REPLACEMENT CHARACTER}"


def test_special_tokens_are_no_text() -> None:
    assert "".join(pieces_of(ByteDetokenizer(FakeTokenizer(), SPECIAL), [72, EOS, 105])) == "Hi"


def test_a_byte_level_vocabulary_gets_the_byte_detokenizer() -> None:
    assert isinstance(detokenizer_for(FakeTokenizer()), ByteDetokenizer)
    assert isinstance(detokenizer_for(word_piece()), WindowDetokenizer)
