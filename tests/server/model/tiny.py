"""Models of a few thousand random weights, saved as real ones are, for everything that needs no sense in the text."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from server.model.loading import ModelSettings

VOCABULARY_SIZE = 300


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and one that ends a sequence."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")  # type: ignore[no-untyped-call]


def word_level_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word, of which there are three."""
    words = {word: i for i, word in enumerate(("<|unknown|>", "<|end|>", "hello"))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<|unknown|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", unk_token="<|unknown|>")  # type: ignore[no-untyped-call]


def save_model(directory: Path, config: PreTrainedConfig) -> PreTrainedModel:
    """Saves a random model of `config` with a tokenizer; returns the model, which attends as transformers does."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    model.eval()
    model.save_pretrained(directory)
    byte_level_tokenizer().save_pretrained(directory)
    assert isinstance(model, PreTrainedModel)
    return model


def settings(directory: Path, **changes: object) -> ModelSettings:
    few = {"kv_memory": 2**22, "kv_block_size": 4, "device": "cpu", "max_slots": 8, "max_step_tokens": 64}
    return ModelSettings(model=str(directory), cache=directory, **(few | changes))  # type: ignore[arg-type]
