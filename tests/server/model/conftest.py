"""The real default model, loaded once for all tests of this folder."""

import os
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, PreTrainedModel

from server.engine.engine import Served
from server.model.default_model import DEFAULT_MODEL, ensure_default_model
from server.model.loading import ModelSettings, load_served


@pytest.fixture(scope="session")
def cache() -> Path:
    return Path(os.environ.get("TREADLE_CACHE", "~/.cache/treadle")).expanduser()


@pytest.fixture(scope="session")
def served(cache: Path) -> Served:
    return load_served(ModelSettings(DEFAULT_MODEL, cache, device="cpu", kv_memory=2**28))


@pytest.fixture(scope="session")
def reference(cache: Path) -> PreTrainedModel:
    """The same weights, as transformers runs them."""
    model = AutoModelForCausalLM.from_pretrained(ensure_default_model(cache))
    assert isinstance(model, PreTrainedModel)
    return model


@pytest.fixture(scope="session")
def cramped(cache: Path) -> Served:
    """The default model with a KV cache of 320 tokens, so that sequences preempt each other."""
    return load_served(ModelSettings(DEFAULT_MODEL, cache, device="cpu", kv_memory=320 * 46080, kv_block_size=4))
