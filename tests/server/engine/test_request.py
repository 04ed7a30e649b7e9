import math
from dataclasses import replace

import pytest

from server.engine.errors import InvalidArgument
from server.engine.model import SamplingDefaults
from server.engine.request import Request, Stopping
from server.engine.sampling import Sampling
from tests.server.engine.driver import GREEDY, request
from tests.server.fakes import VOCABULARY_SIZE, describe

GREEDY_MODEL = SamplingDefaults(temperature=0.0, top_k=50, top_p=1.0, sampled_temperature=1.0)
SAMPLING_MODEL = SamplingDefaults(temperature=0.6, top_k=20, top_p=0.9, sampled_temperature=0.6)


@pytest.mark.parametrize("temperature", [-0.1, 100.1, math.nan, math.inf])
def test_a_temperature_out_of_range_is_named_with_its_limit(temperature: float) -> None:
    with pytest.raises(InvalidArgument, match=r"sampling\.temperature is .*: must be from 0 to 100") as caught:
        Sampling(temperature, 0, 1.0, 0)
    assert caught.value.field == "sampling.temperature"


@pytest.mark.parametrize("top_p", [0.0, -1.0, 1.1, math.nan])
def test_a_top_p_out_of_range_is_named_with_its_limit(top_p: float) -> None:
    with pytest.raises(InvalidArgument, match=r"sampling\.top_p is .*: must be above 0 and at most 1"):
        Sampling(1.0, 0, top_p, 0)


def test_unset_sampling_is_the_models_default() -> None:
    assert Sampling.resolve(GREEDY_MODEL, seed=1) == Sampling(0.0, 50, 1.0, 1)
    assert Sampling.resolve(SAMPLING_MODEL, seed=1) == Sampling(0.6, 20, 0.9, 1)


def test_setting_top_k_or_top_p_alone_asks_for_sampling() -> None:
    assert Sampling.resolve(GREEDY_MODEL, seed=1, top_p=0.5).temperature == 1.0
    assert Sampling.resolve(GREEDY_MODEL, seed=1, top_k=5).temperature == 1.0
    assert Sampling.resolve(GREEDY_MODEL, seed=1, top_k=5, temperature=0.0).temperature == 0.0


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("stopping.max_new_tokens", {"max_new_tokens": 0}),
        ("stopping.min_new_tokens", {"max_new_tokens": 3, "min_new_tokens": 4}),
        ("stopping.stop", {"stop": ("x",) * 17}),
        ("stopping.stop[1]", {"stop": ("x", "")}),
        ("stopping.stop[0]", {"stop": ("x" * 1025,)}),
        ("stopping.stop_token_ids", {"stop_token_ids": frozenset(range(129))}),
        ("stopping.time_limit", {"time_limit": 0.0}),
        ("stopping.time_limit", {"time_limit": math.nan}),
    ],
)
def test_a_stopping_criterion_out_of_range_is_named(field: str, values: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Stopping(**values)  # type: ignore[arg-type]
    assert caught.value.field == field


def check(req: Request) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        req.check_fits(describe(context_length=20))
    return caught.value


def test_an_empty_prompt_is_refused() -> None:
    assert str(check(request([]))) == "prompt is empty: must have at least 1 token"


def test_a_prompt_that_leaves_no_room_is_refused_with_both_lengths() -> None:
    assert str(check(request([1] * 20))) == (
        "prompt is 20 tokens long: must be at most 19, to leave room for a token in the 20 that fit"
    )
    request([1] * 19, Stopping()).check_fits(describe(context_length=20))


def test_more_new_tokens_than_fit_are_refused() -> None:
    error = check(request([1] * 10, Stopping(max_new_tokens=11)))
    assert str(error) == "stopping.max_new_tokens is 11: must be at most 10: the prompt has 10 tokens and 20 fit in all"
    assert check(request([1] * 10, Stopping(min_new_tokens=11))).field == "stopping.min_new_tokens"
    request([1] * 10, Stopping(max_new_tokens=10)).check_fits(describe(context_length=20))


def test_the_kv_cache_bounds_what_fits_where_it_is_smaller_than_the_context() -> None:
    with pytest.raises(InvalidArgument, match="must be at most 7"):
        request([1] * 8).check_fits(describe(kv_block_count=2, kv_block_size=4, context_length=1000))


def test_an_unknown_token_id_is_refused() -> None:
    of_input = replace(request([1, VOCABULARY_SIZE]), prompt_field="inputs[1].prompt_token_ids")
    assert check(of_input).field == "inputs[1].prompt_token_ids.ids"
    stopping = Stopping(stop_token_ids=frozenset({VOCABULARY_SIZE}))
    assert check(request([1], stopping)).field == "stopping.stop_token_ids"


def test_requests_are_numbered_by_us_and_compared_by_identity() -> None:
    one, other = request(), request()
    assert one.number != other.number
    assert one != other


def test_without_a_time_limit_a_request_never_expires() -> None:
    assert request(sampling=GREEDY).expires_at == math.inf


def test_a_cache_salt_that_is_too_long_is_named_with_its_limit() -> None:
    with pytest.raises(InvalidArgument, match="cache_salt is 129 characters long: must be at most 128"):
        request(cache_salt="x" * 129)
