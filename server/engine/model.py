"""The Model: what the scheduler drives, one step at a time."""

from dataclasses import dataclass
from typing import Protocol

from server.engine.plan import StepOutcome, StepPlan


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What an unset sampling parameter means: what transformers' `generate` would use with the model's settings."""

    temperature: float
    top_k: int
    top_p: float
    sampled_temperature: float
    """The temperature when a request asks for sampling without naming one."""
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What a client or the scheduler may need to know of a loaded model."""

    id: str
    architecture: str
    context_length: int
    vocabulary_size: int
    weight_type: str
    device: str
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    pad_token_id: int | None
    kv_block_size: int
    """Tokens in a block of the KV cache."""
    kv_block_count: int
    """Blocks in the KV cache; block ids are below this."""
    sampling_defaults: SamplingDefaults
    default_max_new_tokens: int | None
    model_type: str = ""
    """The family of its architecture, such as "llama", by its configuration."""

    @property
    def max_total_tokens(self) -> int:
        """Most tokens of a prompt and its generation together."""
        return min(self.context_length, self.kv_block_count * self.kv_block_size)


class Model(Protocol):
    """Computes steps. Used by one thread, the one that built it."""

    @property
    def description(self) -> ModelDescription: ...

    def step(self, plan: StepPlan) -> StepOutcome:
        """Computes every span's tokens, writes their keys and values into the KV blocks, and draws the next tokens.

        The same plan may be executed again after a failure: a step writes only positions its spans name, and what is
        still unfilled in the blocks that they begin. A span whose logits are not finite gets a Fault; the others are
        unaffected. Anything that fails as a whole raises.
        """
        ...

    def warm_up(self) -> None:
        """Runs steps of every shape that is slow the first time. Leaves the KV cache free to use."""
        ...
