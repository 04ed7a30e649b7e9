"""What a server says of itself: its model, its load, its health."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum


class Health(Enum):
    """An answer of the standard health service, grpc.health.v1."""

    SERVING = "serving"
    NOT_SERVING = "not_serving"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The model's special tokens."""

    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this server and this model can do; None where the server does not say."""

    chat: bool | None
    tools: bool | None
    request_template: bool | None
    """Whether a chat may bring its own template."""
    constraint: bool | None
    logprobs: bool | None
    priority_preemption: bool | None
    """Whether a request of higher priority takes the slot of one of lower priority."""
    embeddings: bool | None
    scores: bool | None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask for."""

    max_total_tokens: int
    """Most tokens of a prompt and its generation together."""
    max_slots: int
    max_waiting: int
    max_stop_sequences: int
    max_stop_sequence_length: int
    max_stop_token_ids: int
    max_message_bytes: int
    max_generations: int
    """Most generations of one request: its inputs times its n or best_of."""
    max_logprobs: int
    max_logit_bias: int
    max_forbidden_sequences: int
    max_forbidden_sequence_length: int
    max_constraint_bytes: int
    max_template_bytes: int
    max_tool_bytes: int
    max_text_bytes: int
    """Most bytes of UTF-8 in a prompt, and in a chat put into text."""
    max_chat_messages: int


@dataclass(frozen=True, slots=True)
class Defaults:
    """What an option that is not given means."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    max_new_tokens: int | None
    """None: as many as fit."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model that is served."""

    id: str
    architecture: str
    context_length: int
    vocabulary_size: int
    weight_type: str
    device: str
    has_chat_template: bool
    special_tokens: SpecialTokens
    capabilities: Capabilities
    limits: Limits
    defaults: Defaults


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the server is now."""

    running: int
    waiting: int
    slots: int
    kv_blocks_used: int
    kv_blocks_cached: int
    kv_blocks_total: int
    kv_block_size: int
    tokens_per_second: float
    """Over the last ten seconds."""
    tokens_generated: int
    since: datetime
    """When the server became ready, in UTC."""
