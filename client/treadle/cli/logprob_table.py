"""Log-probabilities for people: one line a token."""

import json
from collections.abc import Iterator, Sequence

from treadle.events import TokenLogprob

HEADING = f"{'token':>8}  {'':<16}  {'logprob':>9}  {'rank':>6}  alternatives"


def lines(logprobs: Sequence[TokenLogprob]) -> Iterator[str]:
    """A token's text is known where it is one of its own alternatives."""
    yield HEADING
    for each in logprobs:
        text = next((_quote(other.text) for other in each.alternatives if other.token_id == each.token_id), "")
        alternatives = ", ".join(f"{_quote(other.text)} {other.logprob:.4f}" for other in each.alternatives)
        yield f"{each.token_id:>8}  {text:<16}  {each.logprob:>9.4f}  {each.rank:>6}  {alternatives}".rstrip()


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
