"""What `generate` of transformers would do with a model's generation_config, as far as an unset request follows it."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from transformers import GenerationConfig

from server.engine.model import SamplingDefaults
from server.model.errors import ModelNotServable

NEUTRAL = {
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "constraints": None,
    "diversity_penalty": 0.0,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "exponential_decay_length_penalty": None,
    "force_words_ids": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1.0,
    "max_time": None,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "num_beams": 1,
    "num_return_sequences": 1,
    "penalty_alpha": 0.0,
    "prompt_lookup_num_tokens": None,
    "sequence_bias": None,
    "stop_strings": None,
    "suppress_tokens": None,
    "token_healing": False,
    "top_h": 1.0,
    "use_mtp": False,
    "watermarking_config": None,
}
"""Settings that `generate` honours and this server does not, with the value (besides unset) that changes nothing.

`max_length` is not among them: a request without max_new_tokens goes on until its tokens no longer fit.
"""


NEUTRAL_SAMPLING = SamplingDefaults(temperature=0.0, top_k=0, top_p=1.0, sampled_temperature=1.0)


@dataclass(frozen=True, slots=True)
class ConfiguredDefaults:
    """What the server's configuration says an unset parameter means; None leaves it to the model."""

    temperature: float | None = None
    """Above 0 samples."""
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None

    def sampling(self, of_model: SamplingDefaults) -> SamplingDefaults:
        """The model's, but for what is configured.

        A temperature of 0 leaves the one that a request gets which asks for sampling without naming one.
        """
        chosen: dict[str, Any] = {name: value for name, value in asdict(self).items() if value is not None}
        chosen.pop("max_new_tokens", None)
        if self.temperature:
            chosen["sampled_temperature"] = self.temperature
        return replace(of_model, **chosen)


NO_PADDING = -1
"""What old checkpoints of Llama and others have for pad_token_id where there is none."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    sampling: SamplingDefaults
    max_new_tokens: int | None
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    pad_token_id: int | None

    def overridden_by(self, configured: ConfiguredDefaults) -> "GenerationDefaults":
        max_new_tokens = self.max_new_tokens if configured.max_new_tokens is None else configured.max_new_tokens
        return replace(self, sampling=configured.sampling(self.sampling), max_new_tokens=max_new_tokens)

    def check_known(self, vocabulary_size: int) -> None:
        """Raises ModelNotServable where a token id is not in the vocabulary."""
        named = [("bos_token_id", self.bos_token_id), ("pad_token_id", self.pad_token_id)]
        named += [("eos_token_id", token_id) for token_id in sorted(self.eos_token_ids)]
        for name, token_id in named:
            if token_id is not None and not 0 <= token_id < vocabulary_size:
                limit = f"its vocabulary has the ids from 0 to {vocabulary_size - 1}"
                raise ModelNotServable(f"its generation_config has {name}={token_id}, and {limit}")


def generation_defaults(config: GenerationConfig, ignore_settings: bool) -> GenerationDefaults:
    """The defaults that `config` means; with `ignore_settings` only its token ids count, and the default is greedy.

    Raises ModelNotServable, naming them, where it has settings that would be ignored otherwise.
    """
    eos = config.eos_token_id
    if not ignore_settings:
        _refuse_unserved(config)
    return GenerationDefaults(
        sampling=NEUTRAL_SAMPLING if ignore_settings else _sampling(config),
        max_new_tokens=None if ignore_settings else config.max_new_tokens,
        bos_token_id=config.bos_token_id,
        eos_token_ids=frozenset() if eos is None else frozenset([eos] if isinstance(eos, int) else eos),
        pad_token_id=None if config.pad_token_id == NO_PADDING else config.pad_token_id,
    )


def _sampling(config: GenerationConfig) -> SamplingDefaults:
    fallbacks: dict[str, Any] = GenerationConfig._get_default_generation_params()

    def setting(name: str) -> Any:
        value = getattr(config, name)
        return fallbacks.get(name) if value is None else value

    temperature = float(setting("temperature"))
    return SamplingDefaults(
        temperature=temperature if setting("do_sample") else 0.0,
        top_k=int(setting("top_k")),
        top_p=float(setting("top_p")),
        sampled_temperature=temperature,
        min_p=float(setting("min_p") or 0.0),
        typical_p=float(setting("typical_p")),
        repetition_penalty=float(setting("repetition_penalty")),
    )


def _refuse_unserved(config: GenerationConfig) -> None:
    settings = {name: getattr(config, name, None) for name in NEUTRAL}
    unserved = [f"{name}={value}" for name, value in settings.items() if value not in (None, NEUTRAL[name], [], {})]
    if unserved:
        raise ModelNotServable(
            f"its generation_config has {', '.join(unserved)}, which this server does not apply; "
            "ignore_generation_config serves it with plain greedy defaults"
        )
