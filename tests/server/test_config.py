import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.config import (
    Config,
    ConfigError,
    environment_variable,
    flag,
    parse_config,
    service_links,
    unknown_variables,
)

NAMES = [field.name for field in dataclasses.fields(Config)]


def test_the_defaults_are_valid() -> None:
    assert parse_config([], {}) == Config()


def test_flags_beat_the_environment_and_the_environment_beats_the_defaults() -> None:
    environment = {"TREADLE_MAX_SLOTS": "8", "TREADLE_PORT": "1", "UNRELATED": "x"}
    config = parse_config(["--port", "2"], environment)
    assert (config.max_slots, config.port, config.host) == (8, 2, "127.0.0.1")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("kv_memory", "512MiB", 512 << 20),
        ("kv_memory", "2GiB", 2 << 30),
        ("max_message_bytes", "4096", 4096),
        ("grace", "2m", 120.0),
        ("grace", "0", 0.0),
        ("stuck_after", "500ms", 0.5),
        ("max_step_time", "100ms", 0.1),
        ("max_connection_age", "30m", 1800.0),
        ("priority_aging", "1m", 60.0),
        ("preempt_lower_priority", "true", True),
        ("kv_memory", "unset", None),
        ("default_temperature", "0.7", 0.7),
        ("default_temperature", "unset", None),
        ("default_top_k", "0", 0),
        ("default_repetition_penalty", "1.1", 1.1),
        ("default_max_new_tokens", "256", 256),
        ("log_prompts", "yes", True),
        ("prefix_cache", "off", False),
        ("cache", "~/models", Path.home() / "models"),
        ("dtype", "bfloat16", "bfloat16"),
    ],
)
def test_a_value_is_read_the_same_from_a_flag_and_the_environment(name: str, text: str, value: object) -> None:
    assert getattr(parse_config([flag(name), text], {}), name) == value
    assert getattr(parse_config([], {environment_variable(name): text}), name) == value


def test_a_switch_needs_no_value() -> None:
    assert parse_config(["--log-prompts"], {}).log_prompts
    assert parse_config(["--log-prompts", "--port", "1"], {"TREADLE_LOG_PROMPTS": "no"}).log_prompts


@pytest.mark.parametrize(
    ("name", "text", "limit"),
    [
        ("max_slots", "0", "from 1 to 4096"),
        ("max_slots", "two", "whole number"),
        ("port", "65536", "from 0 to 65535"),
        ("port", "http://10.0.0.1:50051", "whole number"),
        ("kv_memory", "12 parsecs", "512MiB"),
        ("kv_memory", "1KiB", "from 1MiB"),
        ("max_message_bytes", "1GiB", "from 1KiB to 512MiB"),
        ("priority_aging", "0", "at least 0.001s"),
        ("default_temperature", "hot", "must be a number"),
        ("default_temperature", "nan", "from 0 to 100"),
        ("default_temperature", "100.5", "from 0 to 100"),
        ("default_top_k", "-1", "from 0 to 4294967295"),
        ("default_top_p", "0", "above 0 and at most 1"),
        ("default_min_p", "1.5", "from 0 to 1"),
        ("default_typical_p", "0", "above 0 and at most 1"),
        ("default_repetition_penalty", "0", "above 0 and at most 100"),
        ("default_max_new_tokens", "0", "from 1 to"),
        ("max_connection_age", "1000h", "from 0.001s to 1000000s"),
        ("grace", "-1", "duration"),
        ("grace", "1 fortnight", "such as 500ms"),
        ("log_format", "xml", "auto, json, text"),
        ("log_prompts", "maybe", "true or false"),
        ("model", "", "must not be empty"),
    ],
)
def test_a_bad_value_names_its_source_the_value_and_the_limit(name: str, text: str, limit: str) -> None:
    with pytest.raises(ConfigError, match=limit) as by_flag:
        parse_config([f"{flag(name)}={text}"], {})
    assert str(by_flag.value).startswith(f"{flag(name)} is {text!r}: ")
    with pytest.raises(ConfigError, match=limit) as by_variable:
        parse_config([], {environment_variable(name): text})
    assert str(by_variable.value).startswith(f"{environment_variable(name)} is {text!r}: ")


def test_settings_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_step_tokens is 32: must be above max_slots, 32"):
        parse_config(["--max-step-tokens", "32"], {})
    with pytest.raises(ConfigError, match="max_connection_age_grace is 5s: needs max_connection_age"):
        parse_config(["--max-connection-age-grace", "5s"], {})


TLS = ["--tls-certificate=c", "--tls-key=k"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "fd00::1", "example.test", "127.1", "::ffff:127.0.0.1"])
def test_others_are_listened_to_with_tls_or_by_an_explicit_choice(host: str) -> None:
    with pytest.raises(
        ConfigError, match=r"host is .*: give --tls-certificate and --tls-key .* or --insecure"
    ) as refused:
        parse_config(["--host", host], {})
    assert "\n" not in str(refused.value)
    assert parse_config(["--host", host, "--insecure"], {}).host == host
    assert parse_config(["--host", host, *TLS], {}).host == host
    assert parse_config(["--host", host, "--fetch-only"], {}).host == host


def test_the_metrics_port_is_for_other_machines_only_where_that_is_meant() -> None:
    encrypted = ["--host=0.0.0.0", "--tls-certificate=a", "--tls-key=b"]
    assert parse_config(encrypted, {}).metrics_host == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"metrics_host is 0\.0\.0\.0, .* --metrics-insecure"):
        parse_config([*encrypted, "--metrics-host=0.0.0.0"], {})
    for meant in ("--metrics-insecure", "--metrics-port=off"):
        parse_config([*encrypted, "--metrics-host=0.0.0.0", meant], {})
    parse_config(["--insecure", "--metrics-host=0.0.0.0"], {})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_a_loopback_address_needs_neither(host: str) -> None:
    assert parse_config(["--host", host], {}).host == host


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--tls-certificate=c"], "tls_certificate and tls_key need each other"),
        (["--tls-key=k"], "tls_certificate and tls_key need each other"),
        (["--tls-client-ca=a"], "tls_client_ca needs tls_certificate"),
        ([*TLS, "--insecure"], "insecure and tls_certificate exclude each other"),
        (["--jwks-file=j"], "jwks_file and jwt_audience need each other"),
        (["--jwt-audience=a"], "jwks_file and jwt_audience need each other"),
        (["--jwt-issuer=i"], "jwt_issuer needs jwks_file"),
        (["--identity-max-queued=0"], "identity_max_queued needs tokens_file, jwks_file or tls_client_ca"),
        ([*TLS, "--identity-limits-file=l"], "identity_limits_file needs tokens_file, jwks_file or tls_client_ca"),
    ],
)
def test_settings_of_security_that_do_not_go_together_are_refused(flags: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_config(flags, {})


def test_what_looks_like_a_setting_and_is_none_is_noticed() -> None:
    with pytest.raises(SystemExit) as exit_:
        parse_config(["--max-slot", "3"], {})
    assert exit_.value.code == 2
    assert unknown_variables({"TREADLE_MAX_SLOT": "3", "TREADLE_PORT": "1"}) == ("TREADLE_MAX_SLOT",)


SERVICE_LINKS = {
    "TREADLE_SERVICE_HOST": "10.0.0.1",
    "TREADLE_SERVICE_PORT": "50051",
    "TREADLE_SERVICE_PORT_GRPC": "50051",
    "TREADLE_PORT": "tcp://10.0.0.1:50051",
    "TREADLE_PORT_50051_TCP": "tcp://10.0.0.1:50051",
    "TREADLE_PORT_50051_TCP_PROTO": "tcp",
    "TREADLE_PORT_50051_TCP_PORT": "50051",
    "TREADLE_PORT_50051_TCP_ADDR": "10.0.0.1",
}
OF_ANOTHER_SERVICE = {name.replace("TREADLE_", "TREADLE_CANARY_", 1): text for name, text in SERVICE_LINKS.items()}


@pytest.mark.parametrize("links", [SERVICE_LINKS, OF_ANOTHER_SERVICE, {"TREADLE_PORT": "udp://[fd00::1]:53"}])
def test_what_kubernetes_sets_for_a_service_of_our_name_is_no_setting_and_not_misspelt(links: dict[str, str]) -> None:
    environment = {**links, "TREADLE_MAX_SLOTS": "3", "TREADLE_MAX_SLOT": "4"}
    assert parse_config([], environment) == Config(max_slots=3)
    assert service_links(environment) == tuple(sorted(links))
    assert unknown_variables(environment) == ("TREADLE_MAX_SLOT",)


def test_no_setting_but_a_port_can_be_mistaken_for_what_kubernetes_sets() -> None:
    ours = {environment_variable(name): "x" for name in NAMES} | {"TREADLE_PORT": "8080", "TREADLE_PORTS": "tcp://x"}
    assert service_links(ours) == ()
    assert parse_config([], {"TREADLE_PORT": "8080"}).port == 8080
    with pytest.raises(ConfigError, match="--port is 'tcp:"):
        parse_config(["--port=tcp://10.0.0.1:50051"], {})


def test_help_names_every_flag_in_a_group_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_config(["--help"], {})
    text = capsys.readouterr().out
    assert all(flag(name) in text for name in NAMES)
    assert text.count("(default:") == len(NAMES)
    assert "Capacity:" in text


@given(
    st.integers(1, 4096),
    st.none() | st.integers(1 << 20, 1 << 40),
    st.integers(0, 10**6),
    st.booleans(),
    st.none() | st.floats(0, 100),
)
def test_what_is_shown_can_be_given_back_as_flags(
    slots: int, memory: int | None, seconds: int, prompts: bool, temperature: float | None
) -> None:
    config = Config(
        max_slots=slots,
        max_step_tokens=slots + 1,
        kv_memory=memory,
        grace=float(seconds),
        log_prompts=prompts,
        default_temperature=temperature,
    )
    flags = [f"{flag(name)}={text}" for name, text in config.shown().items()]
    assert parse_config(flags, {}) == config
