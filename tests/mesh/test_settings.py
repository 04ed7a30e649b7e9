"""The files that are shipped, held against each other."""

from typing import Any

import yaml

from tests.mesh.envoy import SHIPPED, Settings, connection_manager


def shipped(name: str) -> Settings:
    settings: Settings = yaml.safe_load((SHIPPED / name).read_text())
    return settings


def test_the_file_with_certificates_differs_in_nothing_else() -> None:
    plain, with_certificates = shipped("envoy.yaml"), shipped("envoy-mtls.yaml")
    (listener,) = with_certificates["static_resources"]["listeners"]
    assert listener["filter_chains"][0].pop("transport_socket")
    for setting in ("forward_client_cert_details", "set_current_client_cert_details"):
        assert connection_manager(with_certificates).pop(setting)
    assert with_certificates == plain


def test_the_two_ways_of_streaming_json_differ_in_nothing_else() -> None:
    manager = connection_manager(shipped("envoy.yaml"))
    (transcoder,) = [f for f in manager["http_filters"] if f["name"] == "envoy.filters.http.grpc_json_transcoder"]
    first, second = manager["route_config"]["virtual_hosts"][0]["routes"]
    events: dict[str, Any] = first["typed_per_filter_config"]["envoy.filters.http.grpc_json_transcoder"]
    assert events["print_options"].pop("stream_sse_style_delimited")
    assert transcoder["typed_config"]["print_options"].pop("stream_newline_delimited")
    assert events == transcoder["typed_config"]
    assert first["route"] == second["route"]
