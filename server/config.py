"""Every setting, once: the flags, the TREADLE_* environment and the printed configuration derive from it."""

import argparse
import dataclasses
import ipaddress
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from server.engine.errors import InvalidArgument
from server.engine.sampling import Sampling

ENVIRONMENT_PREFIX = "TREADLE_"
UNSET = "unset"
SERVICE_LINK_NAMES = re.compile(
    r"TREADLE(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
SERVICE_LINK_URL = re.compile(r"(tcp|udp|sctp)://.*")


class ConfigError(Exception):
    """A setting has a value it must not have; the message names where it came from, the value and the limit."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a setting's text is read; `read` raises ValueError with the limit in words."""

    metavar: str
    read: Callable[[str], Any]
    show: Callable[[Any], str] = str


def _text(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def _whole(least: int, most: int) -> Kind:
    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,18}", text) or not least <= int(text) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(text)

    return Kind("N", read)


def _port_or_off(text: str) -> int | None:
    return None if text == "off" else _whole(0, 65535).read(text)


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://\S+", text):
        raise ValueError("must be a URL of http:// or https://")
    return text


UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def _size(least: int, most: int) -> Kind:
    def read(text: str) -> int:
        match = re.fullmatch(r"(\d{1,18})\s*([A-Za-z]*)", text)
        if match is None or match[2] not in UNITS or not least <= int(match[1]) * UNITS[match[2]] <= most:
            limit = f"must be a size from {_show_size(least)} to {_show_size(most)}"
            raise ValueError(f"{limit}, such as 1048576, 512MiB or 2GiB")
        return int(match[1]) * UNITS[match[2]]

    return Kind("SIZE", read, _show_size)


def _show_size(size: int) -> str:
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if size and size % UNITS[unit] == 0), "B")
    return f"{size // UNITS[unit]}{unit}"


def _duration(least: float, most: float = math.inf) -> Kind:
    seconds = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
    limit = f"of at least {least:g}s" if most == math.inf else f"from {least:g}s to {most:.12g}s"

    def read(text: str) -> float:
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]*)", text)
        if match is None or match[2] not in seconds or not least <= float(match[1]) * seconds[match[2]] <= most:
            raise ValueError(f"must be a duration {limit}, such as 500ms, 30s or 2m")
        return float(match[1]) * seconds[match[2]]

    return Kind("DURATION", read, lambda value: f"{value:.12g}s")


def _sampling(parameter: str) -> Kind:
    """A number within the limits of the sampling parameter of a request."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError("must be a number") from None
        try:
            chosen: dict[str, Any] = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, parameter: value}
            Sampling(seed=0, **chosen)
        except InvalidArgument as error:
            raise ValueError(error.limit) from None
        return value

    return Kind("NUMBER", read)


def _optional(kind: Kind) -> Kind:
    """Of a setting that may be left unset, which is None and said by the word."""

    def read(text: str) -> Any:
        return None if text == UNSET else kind.read(text)

    return Kind(kind.metavar, read, lambda value: UNSET if value is None else kind.show(value))


def _choice(*choices: str) -> Kind:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text

    return Kind("|".join(choices), read)


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "1", "yes", "on", "false", "0", "no", "off"):
        raise ValueError("must be true or false")
    return text.lower() in ("true", "1", "yes", "on")


TEXT = Kind("NAME", _text)
PATH = Kind("PATH", lambda text: Path(_text(text)).expanduser())
PORT_OR_OFF = Kind("N|off", _port_or_off, lambda value: "off" if value is None else str(value))
URL = Kind("URL", _url)
SWITCH = Kind("", _switch, lambda value: str(value).lower())

MOST_MESSAGE_BYTES = 512 << 20
"""gRPC is given a limit of twice this much, which must fit a signed number of 32 bits."""

MOST_UINT32 = (1 << 32) - 1
"""What a field of a request can hold."""

MOST_CONNECTION_SECONDS = 1_000_000
"""gRPC takes a signed number of 32 bits of milliseconds."""

MODEL = "The model"
ADDRESS = "The address"
SECURITY = "Security"
CAPACITY = "Capacity"
DEFAULTS = "Defaults of requests"
CALLS = "Calls"
LIFE = "Starting and stopping"
LOGS = "Logs"
OBSERVATION = "Metrics and traces"


@dataclass(frozen=True, slots=True)
class Setting:
    """What there is to know of a setting but its name, type and default."""

    group: str
    kind: Kind
    help: str


def _setting(group: str, kind: Kind, default: Any, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"setting": Setting(group, kind, text)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The server's settings. Raises ConfigError where two of them do not go together."""

    model: str = _setting(
        MODEL, TEXT, "smollm2-135m-instruct", "the default model, a directory, a .gguf file, or a model on the hub"
    )
    device: str = _setting(MODEL, TEXT, "auto", "where the model runs: auto, cpu, cuda or cuda:N")
    dtype: str = _setting(
        MODEL,
        _choice("auto", "float32", "bfloat16", "float16"),
        "auto",
        "type of the weights; auto is float32 on a CPU and bfloat16 elsewhere",
    )
    cache: Path = _setting(MODEL, PATH, Path("~/.cache/treadle").expanduser(), "directory that keeps the default model")
    ignore_generation_config: bool = _setting(
        MODEL, SWITCH, False, "serve a model whose generation_config asks for what is not served, without it"
    )
    fetch_only: bool = _setting(MODEL, SWITCH, False, "fetch, convert and load the model once, then exit")

    host: str = _setting(ADDRESS, TEXT, "127.0.0.1", "address to listen on")
    port: int = _setting(ADDRESS, _whole(0, 65535), 50051, "port to listen on; 0 takes any free one")

    vllm_engine: bool = _setting(
        ADDRESS, SWITCH, False, "serve vllm.grpc.engine.VllmEngine too, for a gateway such as smg; needs '.[gateway]'"
    )

    tls_certificate: Path | None = _setting(
        SECURITY,
        _optional(PATH),
        None,
        "PEM file of the server's certificate chain; needs --tls-key; read again on change",
    )
    tls_key: Path | None = _setting(SECURITY, _optional(PATH), None, "PEM file of the certificate's private key")
    tls_client_ca: Path | None = _setting(
        SECURITY, _optional(PATH), None, "PEM file of authorities: each client must have a certificate of one of them"
    )
    insecure: bool = _setting(SECURITY, SWITCH, False, "listen without TLS on an address that others can reach")
    tokens_file: Path | None = _setting(
        SECURITY,
        _optional(PATH),
        None,
        "file of bearer tokens' hashes, made with python -m server.rpc.security.new_token",
    )
    jwks_file: Path | None = _setting(
        SECURITY, _optional(PATH), None, "JSON Web Key Set that verifies JSON Web Tokens; needs --jwt-audience"
    )
    jwt_audience: str | None = _setting(SECURITY, _optional(TEXT), None, "audience that a JSON Web Token must be for")
    jwt_issuer: str | None = _setting(SECURITY, _optional(TEXT), None, "issuer that a JSON Web Token must be of")
    auth_health: str = _setting(
        SECURITY, _choice("open", "closed"), "open", "whether health needs no credential where other calls need one"
    )
    auth_reflection: str = _setting(
        SECURITY, _choice("open", "closed"), "closed", "whether reflection needs none where other calls need one"
    )
    identity_max_concurrent: int | None = _setting(
        SECURITY, _optional(_whole(1, 1_000_000)), None, "requests that one identity may have open at once"
    )
    identity_max_queued: int | None = _setting(
        SECURITY, _optional(_whole(0, 1_000_000)), None, "requests of one identity that may wait while no slot is free"
    )
    identity_tokens_per_minute: int | None = _setting(
        SECURITY, _optional(_whole(1, 10**12)), None, "tokens of prompts and output that one identity may have a minute"
    )
    identity_limits_file: Path | None = _setting(
        SECURITY, _optional(PATH), None, "TOML file of identities that have other limits than these"
    )

    max_slots: int = _setting(CAPACITY, _whole(1, 4096), 32, "sequences that run at once")
    max_waiting: int = _setting(
        CAPACITY, _whole(0, 1_000_000), 256, "requests that wait for a slot; one more is refused"
    )
    max_step_tokens: int = _setting(
        CAPACITY, _whole(2, 1_000_000), 512, "most tokens a step of the model computes; above --max-slots"
    )
    max_step_time: float = _setting(
        CAPACITY,
        _duration(0.001),
        0.25,
        "time a step may last, about: prompts are computed in pieces that fit, so running requests wait no longer",
    )
    kv_memory: int | None = _setting(
        CAPACITY,
        _optional(_size(1 << 20, 1 << 50)),
        None,
        "memory of the KV cache; unset takes a share of what is free",
    )
    kv_block_size: int = _setting(CAPACITY, _whole(1, 1024), 16, "tokens in a block of the KV cache")
    prefix_cache: bool = _setting(CAPACITY, SWITCH, True, "share the KV blocks of equal beginnings of prompts")

    allow_request_templates: bool = _setting(
        CALLS, SWITCH, False, "take chats that bring a template of their own; each is rendered in a process of its own"
    )
    priority_aging: float = _setting(
        CAPACITY, _duration(0.001), 10.0, "time of waiting that is worth a point of a request's priority"
    )
    preempt_lower_priority: bool = _setting(
        CAPACITY, SWITCH, False, "let a request take the slot of a running one of lower priority, which goes on later"
    )

    default_temperature: float | None = _setting(
        DEFAULTS, _optional(_sampling("temperature")), None, "above 0 samples; unset: as the model's generation_config"
    )
    default_top_k: int | None = _setting(
        DEFAULTS, _optional(_whole(0, MOST_UINT32)), None, "0 keeps all tokens; unset: as the model's generation_config"
    )
    default_top_p: float | None = _setting(
        DEFAULTS, _optional(_sampling("top_p")), None, "unset: as the model's generation_config"
    )
    default_min_p: float | None = _setting(
        DEFAULTS, _optional(_sampling("min_p")), None, "unset: as the model's generation_config"
    )
    default_typical_p: float | None = _setting(
        DEFAULTS, _optional(_sampling("typical_p")), None, "unset: as the model's generation_config"
    )
    default_repetition_penalty: float | None = _setting(
        DEFAULTS, _optional(_sampling("repetition_penalty")), None, "unset: as the model's generation_config"
    )
    default_max_new_tokens: int | None = _setting(
        DEFAULTS, _optional(_whole(1, MOST_UINT32)), None, "unset: as the model's generation_config"
    )

    max_message_bytes: int = _setting(CALLS, _size(1 << 10, MOST_MESSAGE_BYTES), 16 << 20, "largest request message")
    max_open_requests: int = _setting(
        CALLS, _whole(1, 1_000_000), 1024, "calls open at once: running, waiting, being tokenized or being read"
    )
    max_open_bytes: int = _setting(
        CALLS, _size(1 << 10, 1 << 40), 256 << 20, "request messages of all open calls together"
    )
    max_unread_tokens: int = _setting(
        CALLS, _whole(1, 1_000_000), 4096, "tokens a client may leave unread before its request is ended"
    )

    max_connection_age: float | None = _setting(
        CALLS,
        _optional(_duration(0.001, MOST_CONNECTION_SECONDS)),
        None,
        "age at which a connection takes no new calls, so that its client connects anew, perhaps to another server",
    )
    max_connection_age_grace: float | None = _setting(
        CALLS,
        _optional(_duration(0.001, MOST_CONNECTION_SECONDS)),
        None,
        "time the calls of such a connection get to finish; unset: as long as they take",
    )

    stuck_after: float = _setting(
        LIFE, _duration(0.001), 60.0, "time one step may last before the server counts as stuck (health `liveness`)"
    )
    grace: float = _setting(LIFE, _duration(0.0), 30.0, "time running requests get to finish after SIGTERM or SIGINT")

    log_format: str = _setting(LOGS, _choice("auto", "json", "text"), "auto", "auto is text on a terminal, else json")
    log_level: str = _setting(LOGS, _choice("debug", "info", "warning", "error"), "info", "least level that is logged")
    log_prompts: bool = _setting(LOGS, SWITCH, False, "log prompts and generated text too")

    metrics_port: int | None = _setting(
        OBSERVATION, PORT_OR_OFF, 9464, "port for Prometheus, at /metrics; 0 takes any free one, off serves none"
    )
    metrics_host: str = _setting(OBSERVATION, TEXT, "127.0.0.1", "address the metrics' port listens on")
    metrics_insecure: bool = _setting(
        OBSERVATION, SWITCH, False, "let --metrics-host be reached by other machines: it is plain and asks for nothing"
    )
    otlp_endpoint: str | None = _setting(
        OBSERVATION, _optional(URL), None, "OTLP collector that takes traces by gRPC, such as http://localhost:4317"
    )

    def __post_init__(self) -> None:
        if self.max_step_tokens <= self.max_slots:
            limit = f"must be above max_slots, {self.max_slots}, so that a prompt can start while all slots run"
            raise ConfigError(f"max_step_tokens is {self.max_step_tokens}: {limit}")
        if self.max_open_bytes < self.max_message_bytes:
            limit = f"must be at least max_message_bytes, {self.max_message_bytes}, so that such a message is taken"
            raise ConfigError(f"max_open_bytes is {self.max_open_bytes}: {limit}")
        if self.max_connection_age is None and self.max_connection_age_grace is not None:
            raise ConfigError(
                f"max_connection_age_grace is {self.max_connection_age_grace:g}s: needs max_connection_age"
            )
        self._check_security()

    @property
    def asks_for_credentials(self) -> bool:
        return any((self.tls_client_ca, self.tokens_file, self.jwks_file))

    def _check_security(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError("tls_certificate and tls_key need each other")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ConfigError("tls_client_ca needs tls_certificate and tls_key")
        if self.insecure and self.tls_certificate is not None:
            raise ConfigError("insecure and tls_certificate exclude each other")
        is_encrypted_or_meant = self.fetch_only or self.insecure or self.tls_certificate is not None
        if not is_encrypted_or_meant and not _is_loopback(self.host):
            ways = "give --tls-certificate and --tls-key to encrypt, or --insecure to listen without"
            raise ConfigError(f"host is {self.host}, which other machines may reach: {ways}")
        is_open_meant = self.fetch_only or self.insecure or self.metrics_insecure or self.metrics_port is None
        if not is_open_meant and not _is_loopback(self.metrics_host):
            ways = "give --metrics-insecure to listen there without TLS and credentials, or --metrics-port off"
            raise ConfigError(f"metrics_host is {self.metrics_host}, which other machines may reach: {ways}")
        if (self.jwks_file is None) != (self.jwt_audience is None):
            raise ConfigError("jwks_file and jwt_audience need each other")
        if self.jwt_issuer is not None and self.jwks_file is None:
            raise ConfigError("jwt_issuer needs jwks_file")
        limits = ("max_concurrent", "max_queued", "tokens_per_minute", "limits_file")
        for name in (f"identity_{limit}" for limit in limits):
            if getattr(self, name) is not None and not self.asks_for_credentials:
                proofs = "tokens_file, jwks_file or tls_client_ca"
                raise ConfigError(f"{name} needs {proofs}: without one nobody has an identity")

    def shown(self) -> dict[str, str]:
        """Every setting in the form a flag takes."""
        return {field.name: _of(field).kind.show(getattr(self, field.name)) for field in dataclasses.fields(self)}


def parse_config(arguments: Sequence[str], environment: Mapping[str, str]) -> Config:
    """Flags beat the environment, which beats the defaults. Raises ConfigError; `--help` and such raise SystemExit."""
    flags = vars(_parser().parse_args(arguments))
    environment = {name: value for name, value in environment.items() if not _is_service_link(name, value)}
    values = {}
    for field in dataclasses.fields(Config):
        variable = environment_variable(field.name)
        if flags[field.name] is not None:
            values[field.name] = _read(field, flag(field.name), flags[field.name])
        elif variable in environment:
            values[field.name] = _read(field, variable, environment[variable])
    return Config(**values)


def unknown_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that look like settings and are none: misspelt, most likely."""
    known = {environment_variable(field.name) for field in dataclasses.fields(Config)} | set(service_links(environment))
    return tuple(sorted(name for name in environment if name.startswith(ENVIRONMENT_PREFIX) and name not in known))


def service_links(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that Kubernetes gives every pod beside a Service whose name begins with `treadle`; no settings.

    See https://kubernetes.io/docs/tutorials/services/connect-applications-service/#environment-variables.
    """
    return tuple(sorted(name for name, value in environment.items() if _is_service_link(name, value)))


def _is_service_link(name: str, value: str) -> bool:
    is_url = name.startswith(ENVIRONMENT_PREFIX) and name.endswith("_PORT") and SERVICE_LINK_URL.fullmatch(value)
    return bool(is_url or SERVICE_LINK_NAMES.fullmatch(name))


def _is_loopback(host: str) -> bool:
    """Without asking any name server: another name than localhost counts as one that others may reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def environment_variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _of(field: "dataclasses.Field[Any]") -> Setting:
    setting = field.metadata["setting"]
    assert isinstance(setting, Setting)
    return setting


def _read(field: "dataclasses.Field[Any]", source: str, text: str) -> Any:
    try:
        return _of(field).kind.read(text)
    except ValueError as error:
        raise ConfigError(f"{source} is {text!r}: {error}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m server",
        description="Treadle, a text-generation server.",
        epilog="Each flag has an environment variable, such as TREADLE_MAX_SLOTS for --max-slots; the flag wins.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"treadle {version('treadle')}")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for field in dataclasses.fields(Config):
        setting = _of(field)
        if setting.group not in groups:
            groups[setting.group] = parser.add_argument_group(setting.group)
        text = f"{setting.help} (default: {setting.kind.show(field.default)})".replace("%", "%%")
        if setting.kind is SWITCH:
            groups[setting.group].add_argument(flag(field.name), nargs="?", const="true", metavar="BOOL", help=text)
        else:
            groups[setting.group].add_argument(flag(field.name), metavar=setting.kind.metavar, help=text)
    return parser
