"""Loads a model and its tokenizer, ready to be driven by the scheduler, or says in one line why it cannot be served."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)

from server.engine.engine import Served
from server.engine.model import ModelDescription
from server.model.attention import ATTENTION
from server.model.constraints import constraint_compiler
from server.model.default_model import DEFAULT_MODEL, ensure_default_model
from server.model.errors import ModelNotServable
from server.model.generation_defaults import ConfiguredDefaults, generation_defaults
from server.model.kv_cache import KVCache, affordable_blocks
from server.model.library_output import quieten_libraries
from server.model.servable import check_against_own_attention, check_config, context_length, survey
from server.model.tokenizer import TransformersTokenizer
from server.model.torch_model import LargestSteps, TorchModel

log = structlog.stdlib.get_logger("treadle.model")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

LOADING_ERRORS = (
    *(OSError, ImportError, ValueError, TypeError, KeyError, AttributeError, RuntimeError),
    StrictDataclassError,
    SafetensorError,
)
"""What the libraries raise on a file that is missing, damaged or not what its name says."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    model: str
    """DEFAULT_MODEL, a directory, a .gguf file, or the name of a model on the hub."""
    cache: Path
    """Where the default model is kept."""
    device: str = "auto"
    """"cpu", "cuda" or "cuda:N"; "auto" is "cuda" where there is one."""
    dtype: str = "auto"
    """One of DTYPES; "auto" is float32 on a CPU, bfloat16 elsewhere."""
    kv_memory: int | None = None
    """Bytes of the KV cache; None takes a share of what is free."""
    kv_block_size: int = 16
    """Tokens in a block of the KV cache."""
    max_slots: int = 32
    """Spans in a step at most."""
    max_step_tokens: int = 512
    """Tokens in a step at most."""
    ignore_generation_config: bool = False
    """Serves a model whose generation_config has settings that are not served, with greedy defaults."""
    allow_request_templates: bool = False
    """Takes chats that bring a template of their own."""
    configured_defaults: ConfiguredDefaults = field(default_factory=ConfiguredDefaults)
    """What unset parameters of requests mean, before what the model says."""


def load_served(settings: ModelSettings) -> Served:
    """Raises ModelNotServable with the reason where the model cannot be loaded or served correctly."""
    quieten_libraries()
    source = _Source.of(settings)
    try:
        return _load(source, settings)
    except ModelNotServable as error:
        raise ModelNotServable(f"{settings.model} cannot be served: {error}") from error


def _load(source: "_Source", settings: ModelSettings) -> Served:
    """Cheap checks come first: weights are read only for a model that may well be served."""
    device = _device(settings.device)
    dtype = _dtype(settings.dtype, device)
    config = source.config()
    check_config(config)
    context = context_length(config)
    tokenizer = source.tokenizer(settings.allow_request_templates)
    transformer = source.transformer(dtype, device)
    vocabulary_size = int(transformer.config.vocab_size)
    if tokenizer.highest_token_id >= vocabulary_size:
        raise ModelNotServable(
            f"its tokenizer has id {tokenizer.highest_token_id} and its vocabulary only {vocabulary_size} ids"
        )
    assert transformer.generation_config is not None, "a causal language model that can generate has one"
    of_model = generation_defaults(transformer.generation_config, settings.ignore_generation_config)
    defaults = of_model.overridden_by(settings.configured_defaults)
    defaults.check_known(vocabulary_size)
    shape = survey(transformer)
    check_against_own_attention(transformer, shape, settings.kv_block_size)
    useful_tokens = settings.max_slots * context
    blocks = affordable_blocks(shape, settings.kv_block_size, dtype, device, settings.kv_memory, useful_tokens)
    description = ModelDescription(
        id=settings.model,
        architecture=type(transformer).__name__,
        context_length=context,
        vocabulary_size=vocabulary_size,
        weight_type=str(dtype).removeprefix("torch."),
        device=str(device),
        bos_token_id=defaults.bos_token_id,
        eos_token_ids=defaults.eos_token_ids,
        pad_token_id=defaults.pad_token_id,
        kv_block_size=settings.kv_block_size,
        kv_block_count=blocks,
        sampling_defaults=defaults.sampling,
        default_max_new_tokens=defaults.max_new_tokens,
        model_type=config.model_type,
    )
    if description.max_total_tokens < context:
        log.warning(
            "the KV cache holds less than one context of the model: no request can be longer than the cache",
            kv_cache_tokens=description.max_total_tokens,
            context_length=context,
        )
    cache = KVCache(shape, blocks, settings.kv_block_size, dtype, device)
    largest = LargestSteps(settings.max_slots, settings.max_step_tokens)
    model = TorchModel(transformer, cache, description, largest)
    return Served(model, tokenizer, constraint_compiler(tokenizer, description))


@dataclass(frozen=True, slots=True)
class _Source:
    """Where transformers finds a model. Code that comes with a model is never run, and pickled weights never read."""

    path: str
    gguf_file: str | None

    @classmethod
    def of(cls, settings: ModelSettings) -> "_Source":
        if settings.model == DEFAULT_MODEL:
            return cls(str(ensure_default_model(settings.cache)), None)
        path = Path(settings.model).expanduser()
        if path.suffix == ".gguf" and path.is_file():
            return cls(str(path.parent), path.name)
        if path.is_dir():
            return cls(str(path), None)
        if path.is_absolute() or settings.model.startswith((".", "~")) or settings.model.count("/") > 1:
            raise ModelNotServable(f"{settings.model} cannot be served: there is no such directory")
        return cls(settings.model, None)

    def config(self) -> PreTrainedConfig:
        try:
            config = AutoConfig.from_pretrained(self.path, **self._options())
        except LOADING_ERRORS as error:
            raise ModelNotServable.because("its configuration cannot be read", error) from error
        assert isinstance(config, PreTrainedConfig)
        return config

    def tokenizer(self, allow_request_templates: bool) -> TransformersTokenizer:
        try:
            tokenizer = AutoTokenizer.from_pretrained(self.path, **self._options())
        except LOADING_ERRORS as error:
            raise ModelNotServable.because("its tokenizer cannot be loaded", error) from error
        return TransformersTokenizer(tokenizer, allows_request_templates=allow_request_templates)

    def transformer(self, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                self.path,
                dtype=dtype,
                attn_implementation=ATTENTION,
                use_safetensors=True,
                output_loading_info=True,
                **self._options(),
            )
        except LOADING_ERRORS as error:
            raise ModelNotServable.because("its weights cannot be loaded", error) from error
        model, info = loaded
        if missing := sorted(info["missing_keys"]):
            raise ModelNotServable(f"its weights lack {len(missing)} tensors, {missing[0]} among them")
        assert isinstance(model, PreTrainedModel)
        module: nn.Module = model
        module.eval().requires_grad_(False).to(device)
        return model

    def _options(self) -> dict[str, Any]:
        return {"trust_remote_code": False} | ({"gguf_file": self.gguf_file} if self.gguf_file else {})


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelNotServable.because(f"there is no device {name}", error) from error
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
        raise ModelNotServable(f"device {name} is not available")
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in DTYPES:
        raise ModelNotServable(f"dtype {name} is not one of auto, {', '.join(DTYPES)}")
    return DTYPES[name]
