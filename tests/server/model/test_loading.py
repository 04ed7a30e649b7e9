"""What is loaded is described as it is; what could not be served correctly is refused in one line that says why."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs
from transformers import (
    AutoConfig,
    BertConfig,
    BloomConfig,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    RwkvConfig,
    T5Config,
)

from server.__main__ import load
from server.config import parse_config
from server.engine.engine import Served
from server.engine.model import SamplingDefaults
from server.model import loading, servable
from server.model.attention import LayerDemand, PagedBatch
from server.model.errors import ModelNotServable
from server.model.generation_defaults import ConfiguredDefaults
from server.model.loading import ModelSettings, load_served
from tests.server.model import tiny

LLAMA: dict[str, Any] = {
    "vocab_size": tiny.VOCABULARY_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 100,
    "eos_token_id": 7,
    "bos_token_id": None,
}


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    tiny.save_model(tmp_path, LlamaConfig(**LLAMA))
    return tmp_path


def refusal(settings: ModelSettings) -> str:
    with pytest.raises(ModelNotServable) as refused:
        load_served(settings)
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(f"{settings.model} cannot be served: ")
    return message


def change_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_default_model_is_described(served: Served) -> None:
    description = served.model.description
    assert description.id == "smollm2-135m-instruct"
    assert description.architecture == "LlamaForCausalLM"
    assert (description.context_length, description.vocabulary_size) == (8192, 49152)
    assert (description.weight_type, description.device) == ("float32", "cpu")
    assert (description.bos_token_id, description.pad_token_id) == (1, 2)
    assert description.eos_token_ids == {2}
    assert description.sampling_defaults == SamplingDefaults(0.0, 50, 1.0, 1.0)
    assert description.default_max_new_tokens is None
    assert description.kv_block_count == 2**28 // (30 * 3 * 2 * 64 * 4 * 16)


def test_the_settings_decide_dtype_and_cache(llama: Path) -> None:
    block_bytes = 2 * 2 * 2 * 8 * 2 * 8
    settings = tiny.settings(llama, dtype="bfloat16", kv_block_size=8, kv_memory=5 * block_bytes)
    description = load_served(settings).model.description
    assert description.weight_type == "bfloat16"
    assert (description.kv_block_size, description.kv_block_count) == (8, 5)
    assert description.max_total_tokens == 40


def test_the_cache_is_no_larger_than_the_slots_can_use(llama: Path) -> None:
    description = load_served(tiny.settings(llama, kv_memory=None, max_slots=3)).model.description
    assert description.kv_block_count == 3 * 100 // 4


def test_a_cache_that_holds_less_than_one_context_is_warned_of_with_both_numbers(llama: Path) -> None:
    token_bytes = 2 * 2 * 2 * 8 * 4
    for tokens, warnings in ((96, [(96, 100)]), (100, [])):
        with capture_logs() as lines:
            load_served(tiny.settings(llama, kv_memory=tokens * token_bytes))
        assert [(line["kv_cache_tokens"], line["context_length"]) for line in lines] == warnings


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (T5Config(), "encoder-decoder"),
        (BloomConfig(), "BloomForCausalLM does not support attention backends"),
        (RwkvConfig(), "recurrent state"),
        (MambaConfig(), "linear_attention"),
        (AutoConfig.for_model("llava"), "takes more than text"),
        (AutoConfig.for_model("vit"), "not a causal language model"),
        (Qwen2Config(layer_types=["full_attention"] * 31 + ["chunked_attention"]), "chunked_attention"),
        (AutoConfig.for_model("llama", quantization_config={"quant_method": "gptq"}), "quantized (gptq)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, PreTrainedConfig) else "",
)
def test_a_configuration_that_tells_already_is_refused_before_any_weights(
    config: PreTrainedConfig, reason: str, tmp_path: Path
) -> None:
    config.save_pretrained(tmp_path)
    assert reason in refusal(tiny.settings(tmp_path))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GptOssConfig(**LLAMA, num_local_experts=2, head_dim=8), "its attention layers use s_aux"),
        (
            BertConfig(
                vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
            ),
            "its attention is not causal",
        ),
        (
            AutoConfig.for_model("diffllama", **LLAMA),
            "its attention layer 0 attends more than once",
        ),
    ],
    ids=["attention sinks", "attention both ways", "differential attention"],
)
def test_attention_that_is_not_served_is_refused(config: PreTrainedConfig, reason: str, tmp_path: Path) -> None:
    tiny.save_model(tmp_path, config)
    assert reason in refusal(tiny.settings(tmp_path))


def test_a_window_that_the_layers_do_not_hand_on_is_refused() -> None:
    windowed, full = LayerDemand(1, 8, 8, sliding_window=5), LayerDemand(1, 8, 8, sliding_window=None)
    mistral = MistralConfig(sliding_window=5)
    servable.check_windows(mistral, {0: windowed})
    with pytest.raises(ModelNotServable, match="layer 1 does not hand on its sliding window"):
        servable.check_windows(mistral, {0: windowed, 1: full})
    servable.check_windows(LlamaConfig(), {0: full})


def test_a_model_whose_logits_are_not_reproduced_is_refused(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mistaken(PagedBatch):
        def decode_mask(self, window: int | None) -> torch.Tensor:
            return super().decode_mask(3)

    monkeypatch.setattr(servable, "PagedBatch", Mistaken)
    assert "paged attention does not reproduce its logits" in refusal(tiny.settings(llama))


def test_longrope_is_served_up_to_the_length_where_it_would_change(tmp_path: Path) -> None:
    factors = [1.0] * 4
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": factors, "long_factor": [4.0] * 4}
    config = Phi3Config(
        **LLAMA,
        pad_token_id=0,
        rope_parameters=rope | {"original_max_position_embeddings": 40},
        original_max_position_embeddings=40,
    )
    tiny.save_model(tmp_path, config)
    assert load_served(tiny.settings(tmp_path)).model.description.context_length == 40


def test_a_generation_config_that_is_not_served_is_refused_unless_it_is_to_be_ignored(llama: Path) -> None:
    change_json(llama / "generation_config.json", no_repeat_ngram_size=2, eos_token_id=9)
    assert "no_repeat_ngram_size=2" in refusal(tiny.settings(llama))
    served = load_served(tiny.settings(llama, ignore_generation_config=True))
    assert served.model.description.eos_token_ids == {9}


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize(
    ("name", "token_ids", "told"),
    [
        ("eos_token_id", 300, "eos_token_id=300"),
        ("eos_token_id", [2, 12345], "eos_token_id=12345"),
        ("eos_token_id", -1, "eos_token_id=-1"),
        ("bos_token_id", 300, "bos_token_id=300"),
        ("pad_token_id", 300, "pad_token_id=300"),
    ],
)
def test_a_token_id_that_is_not_in_the_vocabulary_is_refused(
    llama: Path, name: str, token_ids: object, told: str, ignored: bool
) -> None:
    change_json(llama / "generation_config.json", **{name: token_ids})
    message = refusal(tiny.settings(llama, ignore_generation_config=ignored))
    assert f"its generation_config has {told}, and its vocabulary has the ids from 0 to 299" in message


def test_a_padding_token_of_minus_one_is_none(llama: Path) -> None:
    change_json(llama / "generation_config.json", pad_token_id=-1)
    assert load_served(tiny.settings(llama)).model.description.pad_token_id is None


def test_the_last_id_of_the_vocabulary_may_end_a_sequence(llama: Path) -> None:
    change_json(llama / "generation_config.json", eos_token_id=299)
    assert load_served(tiny.settings(llama)).model.description.eos_token_ids == {299}


def test_configured_defaults_are_described_and_do_not_make_an_unserved_generation_config_served(llama: Path) -> None:
    configured = ConfiguredDefaults(temperature=0.5, max_new_tokens=12)
    description = load_served(tiny.settings(llama, configured_defaults=configured)).model.description
    assert description.sampling_defaults.temperature == description.sampling_defaults.sampled_temperature == 0.5
    assert description.default_max_new_tokens == 12
    change_json(llama / "generation_config.json", no_repeat_ngram_size=2)
    assert "no_repeat_ngram_size=2" in refusal(tiny.settings(llama, configured_defaults=configured))


def test_every_default_of_requests_that_the_configuration_has_reaches_the_model(llama: Path) -> None:
    flags = [f"--model={llama}", "--device=cpu", "--kv-memory=4MiB", "--kv-block-size=4", "--default-temperature=0.5"]
    flags += ["--default-top-k=3", "--default-top-p=0.9", "--default-min-p=0.1", "--default-typical-p=0.8"]
    flags += ["--default-repetition-penalty=1.1", "--default-max-new-tokens=12"]
    description = load(parse_config(flags, {})).model.description
    expected = SamplingDefaults(0.5, 3, 0.9, 0.5, min_p=0.1, typical_p=0.8, repetition_penalty=1.1)
    assert description.sampling_defaults == expected
    assert description.default_max_new_tokens == 12


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert "no such directory" in refusal(tiny.settings(tmp_path / "nothing"))


def test_a_directory_without_a_model(tmp_path: Path) -> None:
    assert "configuration cannot be read" in refusal(tiny.settings(tmp_path))


def test_a_name_that_the_hub_does_not_give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "configuration cannot be read" in refusal(ModelSettings("nobody/nothing", tmp_path))


def test_an_architecture_that_transformers_does_not_know(llama: Path) -> None:
    change_json(llama / "config.json", model_type="unheard-of", auto_map={"AutoConfig": "code.Config"})
    (llama / "code.py").write_text("raise SystemExit('code of a model was run')")
    assert "configuration cannot be read" in refusal(tiny.settings(llama))


def test_a_configuration_with_a_value_of_the_wrong_type(llama: Path) -> None:
    change_json(llama / "config.json", hidden_size="wide")
    assert "configuration cannot be read" in refusal(tiny.settings(llama))


def test_a_configuration_without_a_context_length() -> None:
    with pytest.raises(ModelNotServable, match="does not say its context length"):
        servable.context_length(PreTrainedConfig())


def test_a_model_without_a_tokenizer(llama: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (llama / name).unlink()
    assert "tokenizer" in refusal(tiny.settings(llama))


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    tiny.save_model(tmp_path, LlamaConfig(**LLAMA | {"vocab_size": 256}))
    assert "its tokenizer has id 256 and its vocabulary only 256 ids" in refusal(tiny.settings(tmp_path))


def test_weights_that_lack_a_tensor(llama: Path) -> None:
    weights = load_file(llama / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, llama / "model.safetensors", metadata={"format": "pt"})
    assert "lack 1 tensors, model.layers.1.mlp.up_proj.weight" in refusal(tiny.settings(llama))


def test_weights_that_are_cut_short(llama: Path) -> None:
    path = llama / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    assert "weights cannot be loaded" in refusal(tiny.settings(llama))


def test_weights_that_are_pickled_are_not_read(llama: Path) -> None:
    torch.save(load_file(llama / "model.safetensors"), llama / "pytorch_model.bin")
    (llama / "model.safetensors").unlink()
    assert "weights cannot be loaded" in refusal(tiny.settings(llama))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "int3"}, "dtype int3 is not one of auto, float32"),
        ({"device": "abacus"}, "there is no device abacus"),
        ({"device": "meta"}, "device meta is not available"),
        ({"kv_memory": 10}, "10 bytes of KV memory hold no block"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, object], reason: str, llama: Path) -> None:
    assert reason in refusal(tiny.settings(llama, **changes))


def test_the_libraries_print_nothing_where_nobody_looks(llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_served(tiny.settings(llama))
    assert capfd.readouterr() == ("", "")


def test_the_default_model_is_fetched_by_its_name(monkeypatch: pytest.MonkeyPatch, llama: Path) -> None:
    monkeypatch.setattr(loading, "ensure_default_model", lambda cache: llama)
    settings = tiny.settings(Path("smollm2-135m-instruct"))
    assert load_served(settings).model.description.vocabulary_size == tiny.VOCABULARY_SIZE
