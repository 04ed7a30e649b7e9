"""Unset sampling parameters mean what `generate` makes of the same generation_config."""

import pytest
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig

from server.engine.model import SamplingDefaults
from server.model.errors import ModelNotServable
from server.model.generation_defaults import NEUTRAL, ConfiguredDefaults, generation_defaults


def made(**settings: object) -> GenerationConfig:
    return GenerationConfig(**settings)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, SamplingDefaults(0.0, 50, 1.0, 1.0)),
        ({"do_sample": True}, SamplingDefaults(1.0, 50, 1.0, 1.0)),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, SamplingDefaults(0.6, 50, 0.9, 0.6)),
        ({"do_sample": False, "temperature": 0.6, "top_k": 20}, SamplingDefaults(0.0, 20, 1.0, 0.6)),
        ({"do_sample": True, "top_k": 0}, SamplingDefaults(1.0, 0, 1.0, 1.0)),
        (
            {"do_sample": True, "min_p": 0.1, "typical_p": 0.9, "repetition_penalty": 1.1},
            SamplingDefaults(1.0, 50, 1.0, 1.0, min_p=0.1, typical_p=0.9, repetition_penalty=1.1),
        ),
    ],
)
def test_sampling_defaults(config: dict[str, object], expected: SamplingDefaults) -> None:
    assert generation_defaults(made(**config), ignore_settings=False).sampling == expected


def test_they_are_what_generate_prepares() -> None:
    model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    )
    model.generation_config = made(do_sample=True, temperature=0.7)
    prepared, _ = model._prepare_generation_config(None)
    ours = generation_defaults(model.generation_config, ignore_settings=False).sampling
    assert (ours.temperature, ours.top_k, ours.top_p) == (prepared.temperature, prepared.top_k, prepared.top_p)


OF_MODEL = SamplingDefaults(0.0, 50, 0.9, 0.6, min_p=0.1)


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        (ConfiguredDefaults(), OF_MODEL),
        (ConfiguredDefaults(temperature=0.8), SamplingDefaults(0.8, 50, 0.9, 0.8, min_p=0.1)),
        (ConfiguredDefaults(temperature=0.0, top_k=0), SamplingDefaults(0.0, 0, 0.9, 0.6, min_p=0.1)),
        (
            ConfiguredDefaults(1.5, 7, 0.5, 0.0, 0.4, 1.2, 99),
            SamplingDefaults(1.5, 7, 0.5, 1.5, min_p=0.0, typical_p=0.4, repetition_penalty=1.2),
        ),
    ],
)
def test_what_is_configured_comes_before_what_the_model_says(
    configured: ConfiguredDefaults, expected: SamplingDefaults
) -> None:
    config = made(do_sample=False, temperature=0.6, top_p=0.9, min_p=0.1, max_new_tokens=5)
    defaults = generation_defaults(config, ignore_settings=False).overridden_by(configured)
    assert defaults.sampling == expected
    assert defaults.max_new_tokens == (configured.max_new_tokens or 5)


@pytest.mark.parametrize(("given", "ids"), [(None, set()), (2, {2}), ([2, 5], {2, 5})])
def test_end_of_sequence_ids(given: int | list[int] | None, ids: set[int]) -> None:
    config = made(eos_token_id=given, bos_token_id=1, pad_token_id=0, max_new_tokens=7)
    defaults = generation_defaults(config, ignore_settings=False)
    assert defaults.eos_token_ids == ids
    assert (defaults.bos_token_id, defaults.pad_token_id, defaults.max_new_tokens) == (1, 0, 7)


@pytest.mark.parametrize(
    ("name", "value"), [("no_repeat_ngram_size", 2), ("num_beams", 4), ("suppress_tokens", [3]), ("eta_cutoff", 0.1)]
)
def test_a_setting_that_is_not_served_is_refused_by_name_or_ignored_when_told(name: str, value: object) -> None:
    config = made(do_sample=True, eos_token_id=2, **{name: value})
    with pytest.raises(ModelNotServable, match=name):
        generation_defaults(config, ignore_settings=False)
    defaults = generation_defaults(config, ignore_settings=True)
    assert defaults.sampling == SamplingDefaults(0.0, 0, 1.0, 1.0)
    assert defaults.eos_token_ids == {2}


def test_what_generate_would_do_anyway_is_not_refused() -> None:
    fallbacks = GenerationConfig._get_default_generation_params()
    for name in NEUTRAL.keys() & fallbacks.keys():
        generation_defaults(made(**{name: fallbacks[name]}), ignore_settings=False)


def test_every_setting_of_transformers_is_served_refused_or_of_no_effect_here() -> None:
    """Fails when a version of transformers has a setting that nobody has judged."""
    served = {"do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty"}
    served |= {"max_new_tokens", "bos_token_id", "eos_token_id", "pad_token_id"}
    without_effect = {
        # How long, where max_new_tokens does not say: the server's own rule.
        "max_length",
        # How `generate` computes, or what else it returns.
        *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile"),
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
        *("prefill_chunk_size", "low_memory", "continuous_batching_config", "transformers_version"),
        # Of beam search and encoder-decoders only.
        *("early_stopping", "length_penalty", "decoder_start_token_id"),
        # Of speculation, which changes no token.
        *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
        *("max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind", "target_lookbehind"),
        *("assistant_ensemble_weight", "speculation_type"),
        # A row that is not finite ends its request; probabilities are normalized always.
        *("remove_invalid_values", "renormalize_logits"),
    }
    settings = {name for name in vars(made()) if not name.startswith("_")}
    assert settings == served | without_effect | set(NEUTRAL)
