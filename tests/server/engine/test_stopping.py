from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.stopping import StopMatcher

texts = st.text("ab", max_size=12)
stops = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


def first_match(text: str, stop: list[str]) -> tuple[int, str] | None:
    """Reads a character at a time: the first end at which a stop sequence is complete, and the longest of those."""
    for end in range(1, len(text) + 1):
        complete = [s for s in stop if text[:end].endswith(s)]
        if complete:
            return end, max(complete, key=len)
    return None


@settings(max_examples=1000)
@given(st.lists(texts, max_size=8), stops, st.booleans())
def test_the_output_ends_at_the_first_stop_sequence_however_the_text_is_cut(
    pieces: list[str], stop: list[str], include: bool
) -> None:
    text, matcher, output = "".join(pieces), StopMatcher(tuple(stop), include), ""
    for piece in pieces:
        output += matcher.push(piece, may_match=True)
        if matcher.matched is not None:
            break
    else:
        output += matcher.flush()
    match = first_match(text, stop)
    if match is None:
        assert (matcher.matched, output) == (None, text)
    else:
        end, matched = match
        assert matcher.matched == matched
        assert output == text[: end if include else end - len(matched)]


@settings(max_examples=500)
@given(st.lists(texts, max_size=8), stops)
def test_only_a_proper_prefix_of_a_stop_sequence_is_held_back(pieces: list[str], stop: list[str]) -> None:
    matcher, seen, output = StopMatcher(tuple(stop), include_stop_text=False), "", ""
    for piece in pieces:
        seen += piece
        output += matcher.push(piece, may_match=True)
        if matcher.matched is not None:
            return
        held = seen[len(output) :]
        prefixes = [seen[i:] for i in range(len(seen)) if any(s.startswith(seen[i:]) and s != seen[i:] for s in stop)]
        assert held == max(prefixes, key=len, default="")


def test_a_stop_sequence_that_is_complete_too_early_is_text() -> None:
    matcher = StopMatcher(("stop",), include_stop_text=False)
    assert matcher.push("a stop", may_match=False) == "a stop"
    assert matcher.push(" st", may_match=True) == " "
    assert matcher.push("op b", may_match=True) == ""
    assert matcher.matched == "stop"
