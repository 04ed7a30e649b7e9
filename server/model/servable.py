"""Which models can be served correctly: what is refused at load, and the check that what is not refused works.

What a configuration says is checked before its weights are read. What the attention layers ask for is found by running
them once. And because neither can know every architecture, a short text is run in pieces through the paged attention
and compared with the model's own implementation of attention over the whole of it.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from server.engine.plan import Span
from server.model.attention import ATTENTION, LayerDemand, LayerSurvey, PagedBatch, UnsupportedAttention
from server.model.errors import ModelNotServable
from server.model.kv_cache import KVCache, KVShape

SERVED_LAYER_TYPES = {"full_attention", "sliding_attention"}

FORWARD_ERRORS = (TypeError, ValueError, RuntimeError, IndexError, AttributeError)
"""What transformers' forwards raise where a model and its configuration do not fit each other or the call."""

CHECK_PIECES = (0, 5, 6, 19, 20)
"""Where the pieces of the check's text begin and end: chunks and single tokens, from the start and after it."""

CHECK_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 0.2, torch.float16: 0.1}
"""Largest deviation of the logits, relative to how far they spread. A mistake deviates about as far as they spread."""


def check_config(config: PreTrainedConfig) -> None:
    """Raises ModelNotServable where the configuration already tells that the model could not be served correctly."""
    if config.is_encoder_decoder:
        raise ModelNotServable("it is an encoder-decoder; only decoder-only models are served")
    if config.get_text_config() is not config:
        raise ModelNotServable("it takes more than text; only text models are served")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelNotServable(f"{config.model_type} is not a causal language model of transformers")
    if getattr(config, "add_cross_attention", False):
        raise ModelNotServable("it has cross attention")
    if quantization := getattr(config, "quantization_config", None):
        method = quantization.get("quant_method") if isinstance(quantization, dict) else type(quantization).__name__
        raise ModelNotServable(f"its weights are quantized ({method}); only unquantized and GGUF weights are served")
    if unserved := sorted(set(getattr(config, "layer_types", None) or ()) - SERVED_LAYER_TYPES):
        raise ModelNotServable(f"it has layers of type {', '.join(unserved)}; only attention layers are served")
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    check_model_class(model_class)


def check_model_class(model_class: type[PreTrainedModel]) -> None:
    name = model_class.__name__
    if getattr(model_class, "_is_stateful", False):
        raise ModelNotServable(f"{name} carries recurrent state from token to token")
    if not getattr(model_class, "_supports_attention_backend", False):
        raise ModelNotServable(f"{name} does not support attention backends in this version of transformers")
    parameters = inspect.signature(model_class.forward).parameters
    if missing := [p for p in ("position_ids", "logits_to_keep") if p not in parameters]:
        raise ModelNotServable(f"the forward of {name} does not take {' and '.join(missing)}")


def context_length(config: PreTrainedConfig) -> int:
    """Most tokens of a sequence.

    Rotary embeddings that change once a sequence passes a length ("longrope") are served up to there: they would change
    for every sequence of a batch at once.
    """
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int):
        raise ModelNotServable("its configuration does not say its context length (max_position_embeddings)")
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    by_layer_type = [value for value in rope.values() if isinstance(value, dict)]
    for parameters in (rope, *by_layer_type):
        if parameters.get("rope_type") == "longrope":
            length = min(length, parameters.get("original_max_position_embeddings", length))
    return length


@torch.inference_mode()
def survey(model: PreTrainedModel) -> KVShape:
    """What a token leaves in the KV cache. Raises ModelNotServable where a layer asks for what is not served."""
    layers = LayerSurvey()
    pair = torch.tensor([[0, 1]], device=model.device)
    try:
        model(input_ids=pair, position_ids=pair, use_cache=False, logits_to_keep=1, paged_batch=layers)
    except UnsupportedAttention as error:
        raise ModelNotServable.because("its attention is not served", error) from error
    except FORWARD_ERRORS as error:
        raise ModelNotServable.because("its forward fails on a row of tokens with positions", error) from error
    demands = layers.demands
    count = model.config.num_hidden_layers
    if sorted(demands) != list(range(count)):
        raise ModelNotServable(f"{len(demands)} of its {count} layers have attention of their own; all must")
    check_windows(model.config, demands)
    shapes = {(demand.kv_heads, demand.key_dim, demand.value_dim) for demand in demands.values()}
    if len(shapes) > 1:
        raise ModelNotServable("its layers differ in the shape of their keys and values")
    return KVShape(count, *shapes.pop())


def check_windows(config: PreTrainedConfig, demands: dict[int, LayerDemand]) -> None:
    """Raises ModelNotServable where a layer has a sliding window by the configuration and does not ask for it."""
    layer_types = getattr(config, "layer_types", None)
    for layer, demand in demands.items():
        slides = (
            layer_types[layer] == "sliding_attention" if layer_types else bool(getattr(config, "sliding_window", 0))
        )
        if slides and demand.sliding_window is None:
            raise ModelNotServable(f"its attention layer {layer} does not hand on its sliding window")


@torch.inference_mode()
def check_against_own_attention(model: PreTrainedModel, shape: KVShape, block_size: int) -> None:
    """Raises ModelNotServable where the model's logits deviate from those by transformers' own attention."""
    length = CHECK_PIECES[-1]
    token_ids = torch.arange(length, device=model.device)[None] * 7 % model.config.vocab_size
    try:
        with _own_attention(model):
            expected = model(input_ids=token_ids, use_cache=False).logits[0].float()
    except FORWARD_ERRORS as error:
        raise ModelNotServable.because("its forward fails", error) from error
    cache = KVCache(shape, -(-length // block_size), block_size, model.dtype, model.device)
    blocks = tuple(reversed(range(cache.block_count)))
    for start, end in pairwise(CHECK_PIECES):
        piece = token_ids[:, start:end]
        batch = PagedBatch.of([Span(0, start, tuple(piece[0].tolist()), blocks, None)], cache)
        positions = torch.arange(start, end, device=model.device)[None]
        logits = model(input_ids=piece, position_ids=positions, use_cache=False, paged_batch=batch).logits[0].float()
        deviation = ((logits - expected[start:end]).norm() / (expected - expected.mean()).norm()).item()
        if not deviation <= CHECK_TOLERANCE[model.dtype]:
            raise ModelNotServable(f"paged attention does not reproduce its logits: they are {deviation:.0%} off")


@contextmanager
def _own_attention(model: PreTrainedModel) -> Iterator[None]:
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(ATTENTION)
