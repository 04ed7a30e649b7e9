"""Envoy with the settings that are shipped, but for its addresses and the places of its files."""

import json
import subprocess
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from tests.mesh.replica import PATIENCE, Replica, eventually, is_listening

SHIPPED = Path(__file__).parents[2] / "deploy" / "envoy"
DESCRIPTOR = "/etc/envoy/treadle.binpb"
DIRECTORY = "/etc/envoy"

Settings: TypeAlias = dict[str, Any]
Change: TypeAlias = Callable[[Settings], None]


def unchanged(settings: Settings) -> None:
    """The shipped settings are what most tests are of."""


def connection_manager(settings: Settings) -> Settings:
    (listener,) = settings["static_resources"]["listeners"]
    (chain,) = listener["filter_chains"]
    manager: Settings = chain["filters"][0]["typed_config"]
    return manager


def cluster(settings: Settings) -> Settings:
    (only,) = settings["static_resources"]["clusters"]
    found: Settings = only
    return found


def fitted(text: str, replicas: Sequence[tuple[str, int]], places: Mapping[str, Path]) -> Settings:
    """The settings for these replicas, with free ports for Envoy's own and its files in other places."""
    for shipped, place in places.items():
        text = text.replace(shipped, str(place))
    settings: Settings = yaml.safe_load(text)
    settings["admin"]["address"] = _address("127.0.0.1", 0)
    (listener,) = settings["static_resources"]["listeners"]
    listener["address"] = _address("127.0.0.1", 0)
    endpoints = [{"endpoint": {"address": _address(host, port)}} for host, port in replicas]
    cluster(settings)["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]
    return settings


def _address(host: str, port: int) -> Settings:
    return {"socket_address": {"address": host, "port_value": port}}


@dataclass
class Envoy:
    popen: "subprocess.Popen[bytes]"
    admin: str
    port: int = 0

    @classmethod
    def start(cls, binary: Path, directory: Path, settings: Settings, *, base_id: int) -> "Envoy":
        """Once it knows the health of every replica. Its files go into the directory."""
        config, admin, log = (directory / name for name in ("envoy.json", "admin", "log"))
        config.write_text(json.dumps(settings))
        command = [str(binary), "-c", str(config), "--admin-address-path", str(admin), "--concurrency", "1"]
        with log.open("wb") as output:
            popen = subprocess.Popen(
                [*command, "--base-id", str(base_id), "--log-level", "warning"], stdout=output, stderr=output
            )
        envoy = cls(popen, "")
        try:
            envoy._wait_until_serving(admin)
        except BaseException as error:
            envoy.close()
            error.add_note(log.read_text())
            raise
        return envoy

    def _wait_until_serving(self, admin: Path) -> None:
        eventually(lambda: (admin.exists() and admin.read_text()) or self.popen.poll() is not None)
        assert self.popen.poll() is None
        self.admin = admin.read_text()
        eventually(lambda: all(host["checked"] for host in self.hosts().values()))
        eventually(lambda: self.ask("/listeners?format=json").get("listener_statuses"))
        (listener,) = self.ask("/listeners?format=json")["listener_statuses"]
        self.port = listener["local_address"]["socket_address"]["port_value"]
        eventually(lambda: is_listening("127.0.0.1", self.port))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self, path: str) -> Any:
        """An answer of the administration's."""
        with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=PATIENCE) as answer:
            return json.load(answer)

    def counter(self, name: str) -> int:
        """A statistic of the cluster, such as upstream_rq_retry."""
        full_name = f"cluster.treadle.{name}"
        stats = self.ask(f"/stats?format=json&filter=^{full_name}$")["stats"]
        value: int = stats[0]["value"] if stats else 0
        return value

    def hosts(self) -> dict[int, dict[str, bool]]:
        """Each replica by its port: whether it was checked, is healthy, and is left out after a failure."""
        hosts = {}
        for status in self.ask("/clusters?format=json")["cluster_statuses"]:
            for host in status.get("host_statuses", []):
                health = host["health_status"]
                hosts[host["address"]["socket_address"]["port_value"]] = {
                    "checked": not health.get("pending_active_hc", False),
                    "failed": health.get("failed_active_health_check", False),
                    "left out": health.get("failed_outlier_check", False),
                }
        return hosts

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait(PATIENCE)


def addresses(replicas: Sequence[Replica]) -> list[tuple[str, int]]:
    return [(replica.host, replica.port) for replica in replicas]
