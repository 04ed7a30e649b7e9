"""The Kubernetes manifests, as kustomize builds them."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.dockerfile import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
VARIANTS = ("cpu", "gpu")
COMPONENTS = ("autoscaling", "gateway-api", "istio", "linkerd", "monitoring")

Resource = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Manifests:
    resources: list[Resource]

    def of_kind(self, kind: str) -> list[Resource]:
        return [resource for resource in self.resources if resource["kind"] == kind]

    def only(self, kind: str) -> Resource:
        (resource,) = self.of_kind(kind)
        return resource

    def named(self, kind: str, name: str) -> Resource:
        (resource,) = [resource for resource in self.of_kind(kind) if resource["metadata"]["name"] == name]
        return resource

    def pod(self) -> Resource:
        """The template of the server's pods: metadata and spec."""
        template: Resource = self.only("Deployment")["spec"]["template"]
        return template

    def server(self) -> Resource:
        (container,) = self.pod()["spec"]["containers"]
        assert container["name"] == "server"
        assert isinstance(container, dict)
        return container

    def containers(self) -> list[Resource]:
        return [*self.pod()["spec"]["initContainers"], self.server()]

    def settings(self) -> dict[str, str]:
        """What the pods read their environment from."""
        name = self.server()["envFrom"][0]["configMapRef"]["name"]
        data: dict[str, str] = self.named("ConfigMap", name)["data"]
        return data


def build(directory: Path) -> Manifests:
    """Raises AssertionError with what kustomize says where it cannot."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    built = subprocess.run([kubectl, "kustomize", directory], capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")
    return Manifests([resource for resource in yaml.safe_load_all(built.stdout) if resource is not None])


def build_stack(variant: str, components: list[str], directory: Path) -> Manifests:
    """A variant with components laid over it, by a kustomization of its own in `directory`."""
    overlays = Path(os.path.relpath(DEPLOY / "overlays", directory.resolve()))
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(overlays / variant)],
        "components": [str(overlays / component) for component in components],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return build(directory)
