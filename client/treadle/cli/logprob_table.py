"""Log-probabilities for people: one line a token."""

import json
from collections.abc import Iterator, Sequence

from treadle.events import TokenLogprob


def lines(whose: str, logprobs: Sequence[TokenLogprob]) -> Iterator[str]:
    """`whose` heads the column of the tokens' texts."""
    yield f"{'token':>8}  {whose:<16}  {'logprob':>9}  {'rank':>6}  alternatives"
    for each in logprobs:
        text = _quote(each.text)
        alternatives = ", ".join(f"{_quote(other.text)} {other.logprob:.4f}" for other in each.alternatives)
        yield f"{each.token_id:>8}  {text:<16}  {each.logprob:>9.4f}  {each.rank:>6}  {alternatives}".rstrip()


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
