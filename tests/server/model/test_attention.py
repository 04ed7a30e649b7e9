"""The paged attention against a plain one, and the seam to transformers that it hangs on."""

import random

import pytest
import torch
from torch import nn
from transformers import AttentionInterface, AutoModelForCausalLM, LlamaConfig

from server.engine.plan import Span
from server.model.attention import LayerSurvey, PagedBatch, UnsupportedAttention, paged_attention
from server.model.kv_cache import KVCache, KVShape

CPU = torch.device("cpu")
LENGTHS = (0, 1, 15, 16, 127, 128, 129, 300, 700)


class Layer(nn.Module):
    layer_idx = 0
    is_causal = True


def filled_cache(shape: KVShape, block_size: int = 16, blocks: int = 200) -> KVCache:
    cache = KVCache(shape, blocks, block_size, torch.float32, CPU)
    generator = torch.Generator().manual_seed(1)
    cache.keys[:, :-1].normal_(generator=generator)
    cache.values[:, :-1].normal_(generator=generator)
    return cache


def random_spans(rng: random.Random, cache: KVCache) -> list[Span]:
    """Decode rows, then chunks, each in blocks of its own."""
    free = list(range(cache.block_count))
    rng.shuffle(free)
    spans = []
    for slot, count in enumerate(sorted(rng.choice([1, 1, 2, 33]) for _ in range(rng.randint(1, 6)))):
        start = rng.choice(LENGTHS)
        needed = -(-(start + count) // cache.block_size)
        spans.append(Span(slot, start, (0,) * count, tuple(free.pop() for _ in range(needed)), None))
    return spans


def context(cache: KVCache, span: Span) -> tuple[torch.Tensor, torch.Tensor]:
    """A span's keys and values `[kv_heads, positions, dim]`, read one position at a time."""
    places = [
        (span.block_ids[i // cache.block_size], i % cache.block_size) for i in range(span.start + len(span.token_ids))
    ]
    keys = torch.stack([cache.keys[0, block, :, offset] for block, offset in places], dim=1)
    values = torch.stack([cache.values[0, block, :, offset] for block, offset in places], dim=1)
    return keys, values


def plain_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, window: int | None, softcap: float | None
) -> torch.Tensor:
    """query `[heads, tokens, dim]`; returns `[tokens, heads, dim]`."""
    group = query.shape[0] // keys.shape[0]
    scores = query @ keys.repeat_interleave(group, 0).transpose(1, 2) * 0.3
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    for token in range(query.shape[1]):
        for position in range(keys.shape[1]):
            distance = start + token - position
            if distance < 0 or (window is not None and distance >= window):
                scores[:, token, position] = -torch.inf
    return (scores.softmax(-1) @ values.repeat_interleave(group, 0)).transpose(0, 1)


@pytest.mark.parametrize("window", [None, 9, 200])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize(("heads", "kv_heads", "value_dim"), [(6, 2, 8), (3, 3, 4)])
def test_every_span_attends_to_its_own_context(
    window: int | None, softcap: float | None, heads: int, kv_heads: int, value_dim: int
) -> None:
    rng = random.Random(f"{window} {softcap} {heads}")
    for _ in range(3):
        cache = filled_cache(KVShape(1, kv_heads, 8, value_dim))
        spans = random_spans(rng, cache)
        tokens = sum(len(span.token_ids) for span in spans)
        query, key = torch.randn(1, heads, tokens, 8), torch.randn(1, kv_heads, tokens, 8)
        value = torch.randn(1, kv_heads, tokens, value_dim)
        batch = PagedBatch.of(spans, cache)
        output, _ = paged_attention(
            Layer(), query, key, value, None, paged_batch=batch, scaling=0.3, sliding_window=window, softcap=softcap
        )
        row = 0
        for span in spans:
            rows = slice(row, row + len(span.token_ids))
            keys, values = context(cache, span)
            assert torch.equal(keys[:, span.start :], key[0, :, rows])
            assert torch.equal(values[:, span.start :], value[0, :, rows])
            expected = plain_attention(query[0, :, rows], keys, values, span.start, window, softcap)
            torch.testing.assert_close(output[0, rows], expected, rtol=1e-4, atol=1e-5)
            row = rows.stop


def test_a_decode_row_comes_out_bit_for_bit_the_same_in_any_company() -> None:
    cache = filled_cache(KVShape(1, 3, 64, 64))
    rng = random.Random(0)
    spans = [
        Span(i, start := rng.choice(LENGTHS), (0,), tuple(rng.sample(range(200), start // 16 + 1)), None)
        for i in range(24)
    ]
    query = torch.randn(1, 9, len(spans), 64)

    def attend(chosen: list[int]) -> torch.Tensor:
        batch = PagedBatch.of([spans[i] for i in chosen], cache)
        # What is there already is written again, so that the cache stays as it is.
        places = [(spans[i].block_ids[-1], spans[i].start % 16) for i in chosen]
        key = torch.stack([cache.keys[0, block, :, offset] for block, offset in places], dim=1)
        value = torch.stack([cache.values[0, block, :, offset] for block, offset in places], dim=1)
        batch.clear_places = None
        return paged_attention(Layer(), query[:, :, chosen], key[None], value[None], None, paged_batch=batch)[0][0]

    together = attend(list(range(len(spans))))
    assert all(torch.equal(attend([i])[0], together[i]) for i in range(len(spans)))


def test_a_step_writes_nothing_outside_the_blocks_it_fills() -> None:
    cache = filled_cache(KVShape(1, 2, 4, 4), block_size=4, blocks=8)
    before = cache.keys.clone(), cache.values.clone()
    spans = [Span(0, 5, (0,), (7, 2), None), Span(1, 3, (0, 0, 0), (1, 4), None)]
    key = torch.randn(1, 2, 4, 4)
    paged_attention(Layer(), torch.randn(1, 2, 4, 4), key, key, None, paged_batch=PagedBatch.of(spans, cache))
    changed = (cache.keys != before[0]).any(-1) | (cache.values != before[1]).any(-1)
    # The second span begins block 4 and fills half of it: the rest is cleared.
    assert {(block, offset) for _, block, _, offset in changed.nonzero().tolist()} == {
        (2, 1),
        (1, 3),
        *((4, offset) for offset in range(4)),
    }
    assert cache.keys[0, 4, :, 2:].eq(0).all()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"is_causal": False}, "not causal"),
        ({"s_aux": torch.zeros(2)}, "s_aux"),
        ({"position_bias": torch.zeros(1)}, "position_bias"),
    ],
)
def test_what_it_does_not_compute_it_refuses_by_name(arguments: dict[str, object], reason: str) -> None:
    row = torch.zeros(1, 2, 1, 4)
    with pytest.raises(UnsupportedAttention, match=reason):
        paged_attention(Layer(), row, row, row, None, paged_batch=LayerSurvey(), **arguments)  # type: ignore[arg-type]


def test_it_refuses_a_mask_and_a_call_without_a_batch() -> None:
    row = torch.zeros(1, 2, 1, 4)
    with pytest.raises(UnsupportedAttention, match="mask of their own"):
        paged_attention(Layer(), row, row, row, torch.zeros(1), paged_batch=LayerSurvey())
    with pytest.raises(UnsupportedAttention, match="does not hand keyword arguments"):
        paged_attention(Layer(), row, row, row, None)


def test_the_seam_of_transformers_is_where_the_attention_expects_it() -> None:
    """Fails when a version of transformers calls attention functions in another way."""
    calls = []

    def record(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **arguments: object,
    ) -> tuple[torch.Tensor, None]:
        calls.append((module.layer_idx, query.shape, key.shape, value.shape, attention_mask, arguments))
        return torch.zeros(1, query.shape[2], query.shape[1], query.shape[3]), None

    AttentionInterface.register("treadle_seam_test", record)
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="treadle_seam_test")  # type: ignore[no-untyped-call]
    marker = object()
    output = model(
        input_ids=torch.tensor([[1, 2, 3, 4, 5]]),
        position_ids=torch.tensor([[7, 0, 1, 2, 9]]),
        use_cache=False,
        logits_to_keep=torch.tensor([4, 0]),
        paged_batch=marker,
    )
    assert output.logits.shape == (1, 2, 20)
    assert [call[0] for call in calls] == [0, 1]
    for _, query, key, value, mask, arguments in calls:
        assert (query, key, value) == ((1, 4, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8))
        assert mask is None
        assert arguments["paged_batch"] is marker
        assert arguments["scaling"] == 8**-0.5
