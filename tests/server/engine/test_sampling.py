import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.errors import InvalidArgument
from server.engine.model import SamplingDefaults
from server.engine.sampling import (
    MAX_FORBIDDEN_SEQUENCE_LENGTH,
    MAX_FORBIDDEN_SEQUENCES,
    MAX_LOGIT_BIAS,
    Sampling,
)

PLAIN = Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=0)
TINY = 1e-45

RANGES = [
    ("temperature", [0.0, TINY, 100.0], [-TINY, 100.0001]),
    ("top_p", [TINY, 1.0], [0.0, -0.1, 1.0001]),
    ("min_p", [0.0, 1.0], [-TINY, 1.0001]),
    ("typical_p", [TINY, 1.0], [0.0, 1.0001]),
    ("repetition_penalty", [TINY, 1.0, 100.0], [0.0, -1.0, 100.0001]),
    ("frequency_penalty", [-100.0, 0.0, 100.0], [-100.0001, 100.0001]),
    ("presence_penalty", [-100.0, 0.0, 100.0], [-100.0001, 100.0001]),
]


@pytest.mark.parametrize(("name", "inside", "outside"), RANGES, ids=[name for name, _, _ in RANGES])
def test_a_number_is_taken_up_to_the_ends_of_its_range_and_refused_by_name_past_them(
    name: str, inside: list[float], outside: list[float]
) -> None:
    for value in inside:
        assert getattr(with_(name, value), name) == value
    for value in [*outside, math.nan, math.inf, -math.inf]:
        with pytest.raises(InvalidArgument) as refused:
            with_(name, value)
        assert refused.value.field == f"sampling.{name}"


def with_(name: str, value: Any) -> Sampling:
    return replace(PLAIN, **{name: value})


TOO_MANY: list[tuple[str, Any]] = [
    ("logit_bias", tuple((i, 1.0) for i in range(MAX_LOGIT_BIAS + 1))),
    ("forbidden_sequences", ((1,),) * (MAX_FORBIDDEN_SEQUENCES + 1)),
]


@pytest.mark.parametrize(("name", "values"), TOO_MANY)
def test_a_list_may_be_as_long_as_its_limit_and_no_longer(name: str, values: Any) -> None:
    assert getattr(with_(name, values[:-1]), name) == values[:-1]
    with pytest.raises(InvalidArgument) as refused:
        with_(name, values)
    assert refused.value.field == f"sampling.{name}"


@pytest.mark.parametrize("bias", [-100.0001, 100.0001, math.nan, math.inf])
def test_a_bias_past_its_range_is_refused_with_its_token(bias: float) -> None:
    assert replace(PLAIN, logit_bias=((7, -100.0), (8, 100.0)))
    with pytest.raises(InvalidArgument) as refused:
        replace(PLAIN, logit_bias=((7, 1.0), (8, bias)))
    assert refused.value.field == "sampling.logit_bias[8]"


def test_a_forbidden_sequence_has_at_least_one_id_and_at_most_the_limit() -> None:
    assert replace(PLAIN, forbidden_sequences=((1,), (1,) * MAX_FORBIDDEN_SEQUENCE_LENGTH))
    for wrong in ((), (1,) * (MAX_FORBIDDEN_SEQUENCE_LENGTH + 1)):
        with pytest.raises(InvalidArgument) as refused:
            replace(PLAIN, forbidden_sequences=((1,), wrong))
        assert refused.value.field == "sampling.forbidden_sequences[1]"


def test_token_ids_past_the_vocabulary_are_refused() -> None:
    replace(PLAIN, logit_bias=((9, 1.0),), forbidden_sequences=((9, 0),)).check_known(10)
    for sampling, field in (
        (replace(PLAIN, logit_bias=((10, 1.0),)), "sampling.logit_bias[10]"),
        (replace(PLAIN, forbidden_sequences=((1,), (0, 10))), "sampling.forbidden_sequences[1]"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            sampling.check_known(10)
        assert refused.value.field == field


DEFAULTS = SamplingDefaults(
    temperature=0.6, top_k=40, top_p=0.9, sampled_temperature=0.6, min_p=0.1, typical_p=0.8, repetition_penalty=1.1
)
GREEDY_DEFAULTS = replace(DEFAULTS, temperature=0.0)


def test_what_is_unset_is_the_model_s_own_and_the_additive_parts_nothing() -> None:
    assert Sampling.resolve(DEFAULTS, 3) == Sampling(0.6, 40, 0.9, 3, 0.1, 0.8, 1.1)


chosen = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 1.0,
    "presence_penalty": -1.0,
    "logit_bias": ((1, 2.0),),
    "forbidden_sequences": ((1,),),
}


@given(st.sets(st.sampled_from(sorted(chosen))))
def test_what_is_set_is_taken_as_it_is_be_it_zero_and_nothing_else_changes(names: set[str]) -> None:
    unset = Sampling.resolve(DEFAULTS, 3)
    set_: dict[str, Any] = {name: chosen[name] for name in names}
    assert Sampling.resolve(DEFAULTS, 3, **set_) == replace(unset, **set_)


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p", "typical_p"])
def test_a_filter_without_a_temperature_asks_a_greedy_model_to_sample(name: str) -> None:
    set_: dict[str, Any] = {name: chosen[name]}
    assert Sampling.resolve(GREEDY_DEFAULTS, 3, **set_).temperature == 0.6
    assert Sampling.resolve(GREEDY_DEFAULTS, 3, temperature=0.0, **set_).temperature == 0
    assert Sampling.resolve(GREEDY_DEFAULTS, 3).temperature == 0


@pytest.mark.parametrize("name", ["repetition_penalty", "frequency_penalty", "presence_penalty"])
def test_a_history_is_needed_only_where_a_penalty_does_something(name: str) -> None:
    assert not PLAIN.penalises
    assert with_(name, 1.5).penalises
