"""The process: wires configuration, logs, model, engine and server together, and says how they start and end."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from server.installation import missing_packages

if missing := missing_packages():
    sys.exit(f"treadle: error: the server needs {', '.join(missing)}: install with pip install '.[server]'")

import structlog

from server.config import Config, ConfigError, parse_config, service_links, unknown_variables
from server.engine.engine import Engine, EngineSettings, Lifecycle, Served
from server.model.errors import ModelNotServable
from server.observe.logs import set_up_logs
from server.observe.metrics_server import CannotServeMetrics
from server.observe.observation import Observation, ObservationSettings, TracingNotInstalled
from server.rpc.security.errors import BadSecurityFile
from server.rpc.security.limits import Limits
from server.rpc.security.settings import JWTSettings, SecuritySettings, TLSFiles
from server.rpc.server import CannotListen, GatewayNotInstalled, Server, ServerSettings
from server.rpc.statuses import REASONS

log = structlog.stdlib.get_logger("treadle.main")

EXIT_FAILED = 1
EXIT_BAD_SETTING = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    try:
        config = parse_config(arguments, os.environ)
        set_up_logs(config.log_format, config.log_level)
        log.info("configuration", **config.shown())
        if links := service_links(os.environ):
            log.warning("passed over what Kubernetes sets for a Service called treadle", variables=links)
        for variable in unknown_variables(os.environ):
            log.warning("no setting has this environment variable", variable=variable)
        if config.fetch_only:
            load(config)
            return 0
        return asyncio.run(serve(config))
    except (ConfigError, GatewayNotInstalled, TracingNotInstalled) as error:
        return _give_up(str(error), EXIT_BAD_SETTING)
    except (BadSecurityFile, CannotListen, CannotServeMetrics, ModelNotServable) as error:
        return _give_up(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def load(config: Config) -> Served:
    """Runs on the scheduler's thread, imports included: they take seconds, and the port answers meanwhile."""
    from server.model.generation_defaults import ConfiguredDefaults
    from server.model.loading import ModelSettings, load_served

    settings = ModelSettings(
        model=config.model,
        cache=config.cache,
        device=config.device,
        dtype=config.dtype,
        kv_memory=config.kv_memory,
        kv_block_size=config.kv_block_size,
        max_slots=config.max_slots,
        max_step_tokens=config.max_step_tokens,
        ignore_generation_config=config.ignore_generation_config,
        allow_request_templates=config.allow_request_templates,
        configured_defaults=ConfiguredDefaults(
            temperature=config.default_temperature,
            top_k=config.default_top_k,
            top_p=config.default_top_p,
            min_p=config.default_min_p,
            typical_p=config.default_typical_p,
            repetition_penalty=config.default_repetition_penalty,
            max_new_tokens=config.default_max_new_tokens,
        ),
    )
    return load_served(settings)


async def serve(config: Config) -> int:
    """Serves until a signal or the engine's failure ends it; the exit status."""
    stopping = _stopping_on_signals()
    engine = Engine(lambda: load(config), _engine_settings(config))
    observation = Observation(engine, _observation_settings(config), REASONS)
    server = Server(engine, _server_settings(config), observation.observers)
    metrics_port = await observation.start()
    port = await server.start()
    log.info("listening; the model loads", host=config.host, port=port, metrics_port=metrics_port)
    engine.start()
    signalled = asyncio.create_task(stopping.wait())
    failed = asyncio.create_task(_announce_then_wait_for_failure(engine, config, port))
    await asyncio.wait({signalled, failed}, return_when=asyncio.FIRST_COMPLETED)
    if not failed.done():
        await drain(engine, server, config.grace)
    await engine.stop()
    await server.stop()
    await observation.stop()
    return 0 if engine.failure is None else _report(engine.failure)


async def drain(engine: Engine, server: Server, grace: float) -> None:
    """Refuses new work and gives what is running `grace` seconds to finish."""
    log.info("shutting down: running requests may finish", grace=grace)
    engine.drain()
    try:
        await asyncio.wait_for(server.idle(), grace)
    except TimeoutError:
        log.warning("the grace has passed: what still runs is ended")


def _stopping_on_signals() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT; a SIGINT after that ends the process at once."""
    stopping = asyncio.Event()

    def interrupt() -> None:
        if stopping.is_set():
            os._exit(EXIT_INTERRUPTED)
        stopping.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    return stopping


async def _announce_then_wait_for_failure(engine: Engine, config: Config, port: int) -> None:
    if await engine.lifecycle_after(Lifecycle.LOADING) is Lifecycle.READY:
        _announce(engine.served.model.description.id, config, port)
    while engine.lifecycle is not Lifecycle.FAILED:
        await engine.lifecycle_after(engine.lifecycle)


def _announce(model: str, config: Config, port: int) -> None:
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    address = f"[{reachable}]:{port}" if ":" in reachable else f"{reachable}:{port}"
    message = """'{"prompt": "Once upon a time", "stopping": {"max_new_tokens": 32}}'"""
    print(f"Treadle serves {model} on {address}. Try:")
    flags = ["-plaintext"] if config.tls_certificate is None else ["-cacert AUTHORITY"]
    if config.tls_client_ca is not None:
        flags.append("-cert CERTIFICATE -key KEY")
    if config.tokens_file is not None or config.jwks_file is not None:
        flags.append("-H 'authorization: Bearer TOKEN'")
    print(f"  grpcurl {' '.join(flags)} -d {message} {address} treadle.v1.GenerationService/Generate", flush=True)


def _report(failure: BaseException) -> int:
    if not isinstance(failure, ModelNotServable):
        log.critical("the scheduler thread died", exc_info=failure)
        return _give_up(f"the engine failed: {type(failure).__name__}: {failure}", EXIT_FAILED)
    return _give_up(str(failure), EXIT_FAILED)


def _give_up(message: str, status: int) -> int:
    print(f"treadle: error: {message}", file=sys.stderr)
    return status


def _engine_settings(config: Config) -> EngineSettings:
    return EngineSettings(
        max_slots=config.max_slots,
        max_waiting=config.max_waiting,
        max_step_tokens=config.max_step_tokens,
        max_unread_tokens=config.max_unread_tokens,
        stuck_after=config.stuck_after,
        prefix_cache=config.prefix_cache,
        priority_aging=config.priority_aging,
        preempt_lower_priority=config.preempt_lower_priority,
        max_step_time=config.max_step_time,
    )


def _server_settings(config: Config) -> ServerSettings:
    return ServerSettings(
        host=config.host,
        port=config.port,
        max_message_bytes=config.max_message_bytes,
        max_open_requests=config.max_open_requests,
        max_open_bytes=config.max_open_bytes,
        max_connection_age=config.max_connection_age,
        max_connection_age_grace=config.max_connection_age_grace,
        log_prompts=config.log_prompts,
        vllm_engine=config.vllm_engine,
        security=_security_settings(config),
    )


def _security_settings(config: Config) -> SecuritySettings:
    tls, jwt = None, None
    if config.tls_certificate is not None and config.tls_key is not None:
        tls = TLSFiles(config.tls_certificate, config.tls_key, config.tls_client_ca)
    if config.jwks_file is not None and config.jwt_audience is not None:
        jwt = JWTSettings(config.jwks_file, config.jwt_audience, config.jwt_issuer)
    return SecuritySettings(
        tls=tls,
        tokens_file=config.tokens_file,
        jwt=jwt,
        is_health_open=config.auth_health == "open",
        is_reflection_open=config.auth_reflection == "open",
        limits=Limits(config.identity_max_concurrent, config.identity_max_queued, config.identity_tokens_per_minute),
        limits_file=config.identity_limits_file,
    )


def _observation_settings(config: Config) -> ObservationSettings:
    return ObservationSettings(
        metrics_host=config.metrics_host,
        metrics_port=config.metrics_port,
        otlp_endpoint=config.otlp_endpoint,
    )


def run(arguments: Sequence[str]) -> NoReturn:
    """Ends the process. Not by sys.exit, which would wait for threads deep in a load, a step or a long text."""
    status = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    run(sys.argv[1:])
