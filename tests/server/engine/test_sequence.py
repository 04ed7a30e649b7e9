from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.events import FinishReason
from server.engine.request import Stopping
from tests.server.engine.driver import Driver, Heard, request
from tests.server.engine.test_stopping import first_match
from tests.server.fakes import EOS, FakeModel, FakeTokenizer


def generate(token_ids: list[int], stopping: Stopping) -> Heard:
    """Serves one request whose model says these tokens, then the end of sequence for ever."""
    prompt = 5
    model = FakeModel(choose=lambda seen, draw: [*token_ids, *[EOS] * 200][len(seen) - prompt])
    return Driver(model).serve(request("hello", stopping))[0]


@settings(max_examples=300, deadline=None)
@given(
    st.text("abé日😀", min_size=1, max_size=12),
    st.lists(st.text("abé日😀", min_size=1, max_size=3), max_size=3),
    st.booleans(),
)
def test_text_ids_and_stop_sequences_agree_a_byte_a_token(text: str, stop: list[str], include: bool) -> None:
    token_ids = list(text.encode())
    heard = generate(token_ids, Stopping(stop=tuple(stop), include_stop_text=include))
    match = first_match(text, stop)
    if match is None:
        assert heard.reason is FinishReason.END_OF_SEQUENCE
        assert heard.text == text == FakeTokenizer().decode(heard.token_ids)
        return
    end, matched = match
    assert heard.reason is FinishReason.STOP_SEQUENCE
    assert heard.finish.stop_sequence == matched
    assert heard.text == text[: end if include else end - len(matched)]
    assert heard.token_ids == list(text[:end].encode())


@given(st.binary(min_size=1, max_size=10))
def test_the_text_is_the_decoding_of_the_ids_even_when_it_is_cut_inside_a_character(data: bytes) -> None:
    heard = generate(list(data), Stopping(max_new_tokens=len(data)))
    assert heard.token_ids == list(data)
    assert heard.text == data.decode(errors="replace")


def test_a_stop_token_is_an_id_and_no_text_unless_asked_for() -> None:
    hidden = generate([72, 105, 33, 40], Stopping(stop_token_ids=frozenset({33})))
    shown = generate([72, 105, 33, 40], Stopping(stop_token_ids=frozenset({33}), include_stop_text=True))
    assert (hidden.token_ids, hidden.text) == ([72, 105, 33], "Hi")
    assert (shown.token_ids, shown.text) == ([72, 105, 33], "Hi!")
    assert hidden.finish.stop_token_id == 33


def test_text_held_back_for_a_stop_sequence_comes_out_when_the_generation_ends_otherwise() -> None:
    heard = generate(list(b"go st"), Stopping(max_new_tokens=5, stop=("stop",)))
    assert heard.reason is FinishReason.MAX_NEW_TOKENS
    assert heard.text == "go st"


def test_a_stop_sequence_before_min_new_tokens_is_text() -> None:
    heard = generate(list(b"stop and stop"), Stopping(min_new_tokens=5, stop=("stop",)))
    assert heard.text == "stop and "
    assert heard.finish.stop_sequence == "stop"


def test_ignore_eos_goes_on_past_the_end_of_sequence() -> None:
    heard = generate([65, EOS, 66], Stopping(max_new_tokens=3, ignore_eos=True))
    assert heard.token_ids == [65, EOS, 66]
    assert heard.text == "AB"


def test_timing_adds_up() -> None:
    timing = generate(list(b"abc"), Stopping()).result.timing
    assert timing.time_to_first_token is not None
    assert abs(timing.queued + timing.prefill - timing.time_to_first_token) < 1e-9
    assert timing.time_to_first_token <= timing.total
