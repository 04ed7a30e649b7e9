from hypothesis import given, settings
from hypothesis import strategies as st

from server.parsing.marker import Match, Search, match_at, search

texts = st.text("ab", max_size=8)
markers = st.text("ab", min_size=1, max_size=4)


@settings(max_examples=500)
@given(markers, texts, st.integers(0, 8))
def test_a_search_ends_at_the_first_marker_or_at_the_longest_end_that_may_become_one(
    marker: str, text: str, start: int
) -> None:
    start = min(start, len(text))
    positions = range(start, len(text))
    whole = [position for position in positions if text.startswith(marker, position)]
    perhaps = [position for position in positions if marker.startswith(text[position:])]
    expected = Search(whole[0], found=True) if whole else Search(min(perhaps, default=len(text)), found=False)
    assert search(marker, text, start) == expected


@given(markers, texts, st.integers(0, 8))
def test_a_marker_that_the_text_ends_in_the_middle_of_matches_partially(marker: str, text: str, start: int) -> None:
    rest = text[start:]
    expected = Match.WHOLE if rest.startswith(marker) else Match.PARTIAL if marker.startswith(rest) else Match.NONE
    assert match_at(marker, text, start) is expected
