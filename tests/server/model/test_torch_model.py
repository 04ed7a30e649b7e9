"""Greedy output against transformers' `generate`, in every kind of company; and what a fault may and may not touch."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    CohereConfig,
    DeepseekV3Config,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    OPTConfig,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from server.engine.engine import Served
from server.engine.plan import Draw, Drawn, Fault, Span, StepPlan
from server.model.loading import load_served
from server.model.torch_model import TorchModel
from tests.server.model import tiny
from tests.server.model.driver import GREEDY, generate_by_transformers, generate_in_company

# A wide spread of weights makes attention matter: a mask off by one changes tokens.
SMALL: dict[str, Any] = {
    "vocab_size": tiny.VOCABULARY_SIZE,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA_LIKE: dict[str, Any] = SMALL | {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**LLAMA_LIKE),
    "llama of one key-value head": LlamaConfig(**LLAMA_LIKE | {"num_key_value_heads": 1}),
    "qwen2": Qwen2Config(**LLAMA_LIKE),
    "qwen3": Qwen3Config(**LLAMA_LIKE, head_dim=16),
    "mistral with a sliding window": MistralConfig(**LLAMA_LIKE, sliding_window=7),
    "gemma2 with alternating windows and soft caps": Gemma2Config(
        **LLAMA_LIKE, head_dim=8, sliding_window=6, attn_logit_softcapping=2.0
    ),
    "mixtral": MixtralConfig(**LLAMA_LIKE, num_local_experts=3, num_experts_per_tok=2, sliding_window=None),
    "cohere": CohereConfig(**LLAMA_LIKE),
    "deepseek-v3, whose values are narrower than its keys": DeepseekV3Config(
        **LLAMA_LIKE | {"num_key_value_heads": 4},
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=12,
    ),
    "phi": PhiConfig(**LLAMA_LIKE | {"num_key_value_heads": 4}),
    "gpt-neox": GPTNeoXConfig(
        **SMALL, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    ),
    "gpt2": GPT2Config(
        **{k: v for k, v in SMALL.items() if k != "max_position_embeddings"},
        n_positions=128,
        n_embd=32,
        n_layer=2,
        n_head=4,
    ),
    "opt": OPTConfig(
        **{k: v for k, v in SMALL.items() if k != "initializer_range"},
        init_std=0.3,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=4,
    ),
}


@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("seed", [0, 1])
def test_greedy_output_is_that_of_generate(architecture: str, seed: int, tmp_path: Path) -> None:
    reference = tiny.save_model(tmp_path, CONFIGS[architecture])
    model = load_torch_model(tmp_path)
    rng = random.Random(seed)
    prompts = [[rng.randrange(tiny.VOCABULARY_SIZE) for _ in range(rng.randint(1, 60))] for _ in range(12)]
    new_tokens = [rng.randint(1, 20) for _ in prompts]
    expected = [generate_by_transformers(reference, p, n) for p, n in zip(prompts, new_tokens, strict=True)]
    assert generate_in_company(model, prompts, new_tokens, rng) == expected


TEXT = (
    "The treadle is the part of a machine which is moved with the foot. On a spinning wheel each press turns the wheel "
    "once, and the thread grows by what one turn twists. Nobody spins faster by pressing harder; one presses again. "
)


def test_greedy_output_of_the_real_model_is_that_of_generate(served: Served, reference: PreTrainedModel) -> None:
    assert isinstance(served.model, TorchModel)
    rng = random.Random(7)
    text = served.tokenizer.encode(TEXT * 8, add_special_tokens=False)
    starts = [rng.randrange(len(text) // 2) for _ in range(8)]
    prompts = [
        text[start : start + length] for start, length in zip(starts, (1, 2, 15, 16, 17, 33, 64, 200), strict=True)
    ]
    new_tokens = [rng.randint(4, 12) for _ in prompts]
    expected = [generate_by_transformers(reference, p, n) for p, n in zip(prompts, new_tokens, strict=True)]
    assert generate_in_company(served.model, prompts, new_tokens, rng, longest_chunk=120) == expected


def load_torch_model(directory: Path) -> TorchModel:
    model = load_served(tiny.settings(directory)).model
    assert isinstance(model, TorchModel)
    return model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> TorchModel:
    directory = tmp_path_factory.mktemp("llama")
    tiny.save_model(directory, CONFIGS["llama"])
    return load_torch_model(directory)


def test_a_plan_gives_the_same_outcome_when_it_is_executed_again(llama: TorchModel) -> None:
    first = StepPlan((Span(0, 0, (1, 2, 3, 4, 5, 6), (9, 4), None), Span(1, 0, (7,), (2,), GREEDY)))
    second = StepPlan((Span(0, 6, (8,), (9, 4), GREEDY), Span(1, 1, (9, 1), (2,), GREEDY)))
    once = [llama.step(first), llama.step(second)]
    again = [llama.step(first), llama.step(first), llama.step(second), llama.step(second)]
    assert [again[1], again[3]] == once


def test_a_span_without_a_draw_gets_no_outcome(llama: TorchModel) -> None:
    assert llama.step(StepPlan((Span(0, 0, (1, 2), (0,), None),))).draws == (None,)


def test_outcomes_come_in_the_order_of_the_plan(llama: TorchModel) -> None:
    spans = [Span(0, 0, (1, 2, 3), (0,), GREEDY), Span(1, 0, (4,), (1,), GREEDY), Span(2, 0, (5, 6), (2,), GREEDY)]
    alone = [llama.step(StepPlan((span,))).draws[0] for span in spans]
    assert list(llama.step(StepPlan(tuple(spans))).draws) == alone
    assert list(llama.step(StepPlan(tuple(reversed(spans)))).draws) == alone[::-1]


def test_what_a_failed_sequence_left_in_its_blocks_reaches_nobody(tmp_path: Path) -> None:
    tiny.save_model(tmp_path, CONFIGS["llama"])
    model = load_torch_model(tmp_path)
    fresh = [
        Span(0, 0, (1, 2, 3, 4, 5), (3, 6), GREEDY),
        Span(0, 5, (6,), (3, 6), GREEDY),
        Span(0, 6, (7,), (3, 6), GREEDY),
    ]
    expected = [model.step(StepPlan((span,))) for span in fresh]
    model._cache.keys[:, :-1] = torch.nan
    model._cache.values[:, :-1] = torch.nan
    assert [model.step(StepPlan((span,))) for span in fresh] == expected


def test_a_sequence_whose_cache_is_not_finite_faults_and_the_others_do_not(tmp_path: Path) -> None:
    tiny.save_model(tmp_path, CONFIGS["llama"])
    model = load_torch_model(tmp_path)
    good = Span(0, 0, (1, 2, 3, 4, 5), (0, 1), GREEDY)
    expected = model.step(StepPlan((good,))).draws[0]
    model._cache.keys[:, 5] = torch.nan
    bad = [Span(1, 3, (8,), (5,), GREEDY), Span(2, 2, (8, 9), (5,), Draw(1.0, 0, 1.0, 0.5))]
    outcome = model.step(StepPlan((bad[0], good, bad[1])))
    assert isinstance(expected, Drawn)
    assert outcome.draws == (Fault("its logits are not finite"), expected, Fault("its logits are not finite"))


def test_warming_up_leaves_the_model_as_it_was(llama: TorchModel) -> None:
    span = Span(0, 0, tuple(range(1, 30)), tuple(range(20, 28)), GREEDY)
    before = llama.step(StepPlan((span,)))
    llama.warm_up()
    assert llama.step(StepPlan((span,))) == before
