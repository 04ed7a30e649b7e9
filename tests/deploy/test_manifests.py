"""The manifests: that they build, that they are valid, and what no validator sees."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from kubernetes_validate.utils import ValidationError, latest_version, validate

from server.config import Config, environment_variable, parse_config
from server.rpc.call import SERVICE
from server.rpc.health import LIVENESS
from server.rpc.server import CLOSING_TIME
from tests.deploy.container import CACHE
from tests.deploy.dockerfile import REPOSITORY, stages
from tests.deploy.manifests import COMPONENTS, DEPLOY, VARIANTS, Manifests, Resource, build, build_stack

CHECKER = Path(__file__).parent / "custom_resources"
CHECKED_BY_TYPES = {
    "gateway.networking.k8s.io",
    "keda.sh",
    "monitoring.coreos.com",
    "networking.istio.io",
    "security.istio.io",
}
UNCHECKED = {"policy.linkerd.io"}
"""No package publishes their schemas; docs/KUBERNETES.md says so."""

MARGIN = 5.0
"""Seconds between the end of all work and the kubelet's SIGKILL."""


@pytest.fixture(scope="module", params=["base", *(f"overlays/{variant}" for variant in VARIANTS), "production"])
def manifests(request: pytest.FixtureRequest) -> Manifests:
    """Of everything that is deployed as it stands."""
    return build(DEPLOY / request.param)


@pytest.fixture(scope="module")
def layered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Manifests]:
    """The cpu variant with one component each."""
    return {name: build_stack("cpu", [name], tmp_path_factory.mktemp(name)) for name in COMPONENTS}


def group_of(resource: Resource) -> str:
    group, _, version = resource["apiVersion"].rpartition("/")
    assert version
    return str(group)


def is_custom(resource: Resource) -> bool:
    return group_of(resource) in CHECKED_BY_TYPES | UNCHECKED


def assert_valid(manifests: Manifests) -> None:
    """Against Kubernetes' own schemas, which allow no unknown field."""
    for resource in manifests.resources:
        if not is_custom(resource):
            validate(resource, latest_version(), strict=True)


def test_every_overlay_is_tried() -> None:
    assert {path.name for path in (DEPLOY / "overlays").iterdir()} == {*VARIANTS, *COMPONENTS}


def test_what_is_deployed_as_it_stands_is_valid(manifests: Manifests) -> None:
    assert_valid(manifests)


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_builds_alone_and_over_each_variant(component: str, tmp_path: Path) -> None:
    alone = build(DEPLOY / "overlays" / component)
    assert_valid(alone)
    for variant in VARIANTS:
        (tmp_path / variant).mkdir()
        stack = build_stack(variant, [component], tmp_path / variant)
        assert_valid(stack)
        assert all(resource in stack.resources for resource in alone.resources)


def test_a_wrong_field_is_found(layered: dict[str, Manifests]) -> None:
    policy = layered["monitoring"].only("NetworkPolicy") | {"specification": {}}
    with pytest.raises(ValidationError):
        assert_valid(Manifests([policy]))


@pytest.fixture(scope="module")
def checker() -> Path:
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("the schemas of custom resources are npm packages, and npm is not installed")
    installed = CHECKER / "node_modules" / ".package-lock.json"
    lock = CHECKER / "package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        got = subprocess.run(command, cwd=CHECKER, capture_output=True, text=True, check=False)
        if got.returncode != 0:
            pytest.skip(f"the schemas of custom resources cannot be had: {got.stderr.strip()[-200:]}")
    return CHECKER / "check.mjs"


def problems(checker: Path, resources: list[Resource]) -> list[str]:
    asked = json.dumps([resource for resource in resources if group_of(resource) in CHECKED_BY_TYPES])
    done = subprocess.run(["node", checker], input=asked, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def test_custom_resources_are_as_their_schemas_and_types_want_them_and_a_spoilt_one_is_found(
    checker: Path, layered: dict[str, Manifests]
) -> None:
    custom = [resource for stack in layered.values() for resource in stack.resources if is_custom(resource)]
    assert {group_of(resource) for resource in custom} == CHECKED_BY_TYPES | UNCHECKED
    spoilt = json.dumps(layered["istio"].only("DestinationRule") | {"metadata": {"name": "spoilt"}})
    spoilt = spoilt.replace("LEAST_REQUEST", "LEAST").replace("baseEjection", "basicEjection")
    found = problems(checker, [*custom, json.loads(spoilt)])
    assert [problem for problem in found if not problem.startswith("DestinationRule spoilt: ")] == []
    assert "must be equal to one of the allowed values" in "\n".join(found)
    assert "basicEjectionTime" in "\n".join(found)


def test_what_is_unchecked_is_documented() -> None:
    text = (REPOSITORY / "docs" / "KUBERNETES.md").read_text()
    assert all(group in text for group in UNCHECKED)


def test_a_pod_may_finish_its_streams_before_it_is_killed(manifests: Manifests) -> None:
    pause = manifests.server()["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = parse_config([], manifests.settings()).grace
    assert manifests.pod()["spec"]["terminationGracePeriodSeconds"] >= pause + grace + CLOSING_TIME + MARGIN


def test_probes_ask_for_services_that_the_server_has(manifests: Manifests) -> None:
    server = manifests.server()
    asked = {name: server[f"{name}Probe"]["grpc"]["service"] for name in ("startup", "liveness", "readiness")}
    assert asked == {"startup": LIVENESS, "liveness": LIVENESS, "readiness": SERVICE}


def test_balancers_hear_of_a_pod_that_goes_before_it_refuses(manifests: Manifests) -> None:
    assert manifests.server()["lifecycle"]["preStop"]["sleep"]["seconds"] >= 5


def test_settings_are_the_servers_own_and_it_takes_them(manifests: Manifests) -> None:
    known = {environment_variable(name) for name in Config.__dataclass_fields__}
    own = {variable["name"] for container in manifests.containers() for variable in container["env"]}
    assert set(manifests.settings()) <= known
    assert {name for name in own if name.startswith("TREADLE_")} <= known
    parse_config([], manifests.settings())


def test_ports_are_the_same_everywhere(manifests: Manifests) -> None:
    settings, server = manifests.settings(), manifests.server()
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert ports == {"grpc": int(settings["TREADLE_PORT"]), "metrics": int(settings["TREADLE_METRICS_PORT"])}
    assert {server[f"{name}Probe"]["grpc"]["port"] for name in ("startup", "liveness", "readiness")} == {ports["grpc"]}
    for service in manifests.of_kind("Service"):
        assert all(port["targetPort"] == port["name"] in ports for port in service["spec"]["ports"])
        assert all(port["port"] == ports[port["name"]] for port in service["spec"]["ports"])
    let_in = manifests.named("NetworkPolicy", "treadle")["spec"]["ingress"]
    assert {port["port"] for rule in let_in for port in rule["ports"]} == set(ports)


def test_selectors_select_the_pods(layered: dict[str, Manifests]) -> None:
    for stack in layered.values():
        labels = stack.pod()["metadata"]["labels"].items()
        selectors = [service["spec"]["selector"] for service in stack.of_kind("Service")]
        selectors += [resource["spec"]["podSelector"]["matchLabels"] for resource in stack.of_kind("NetworkPolicy")]
        selectors += [resource["spec"]["podSelector"]["matchLabels"] for resource in stack.of_kind("Server")]
        selectors += [
            resource["spec"]["selector"]["matchLabels"]
            for kind in ("Deployment", "PodDisruptionBudget", "PeerAuthentication", "AuthorizationPolicy")
            for resource in stack.of_kind(kind)
            if group_of(resource) != "policy.linkerd.io"
        ]
        spread = stack.pod()["spec"]["topologySpreadConstraints"]
        selectors += [constraint["labelSelector"]["matchLabels"] for constraint in spread]
        assert all(selector.items() <= labels for selector in selectors)


def test_pods_have_no_rights_and_run_as_the_images_user(manifests: Manifests) -> None:
    user, group = map(int, stages()[-1].only("USER").split(":"))
    pod = manifests.pod()["spec"]
    context = pod["securityContext"]
    assert context["runAsNonRoot"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (user, group, group)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    assert not pod["enableServiceLinks"]
    for container in manifests.containers():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_what_is_written_is_a_volume_and_the_model_is_fetched_into_what_the_server_reads(manifests: Manifests) -> None:
    fetch, server = manifests.containers()
    assert fetch["args"] == ["--fetch-only"]
    assert fetch["image"] == server["image"]
    assert fetch["envFrom"] == server["envFrom"]
    volumes = {volume["name"] for volume in manifests.pod()["spec"]["volumes"]}
    for container in (fetch, server):
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {CACHE: "model-cache", "/tmp": "tmp"}
        assert set(mounts.values()) == volumes


def test_images_are_of_this_version_and_the_variants_of_the_dockerfile() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    tags = [build(DEPLOY / "overlays" / name).server()["image"].partition(":")[2] for name in VARIANTS]
    assert tags == [f"{version}-cpu", f"{version}-cuda"]
    assert {"build-cpu", "build-cuda"} <= {stage.base.rpartition(" AS ")[2] for stage in stages()}


def test_a_scaler_that_sets_the_replicas_is_not_set_back(layered: dict[str, Manifests]) -> None:
    stack = layered["autoscaling"]
    deployment = stack.only("Deployment")
    target = stack.only("ScaledObject")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (deployment["kind"], deployment["metadata"]["name"])
    assert "replicas" not in deployment["spec"]


def test_a_mesh_ends_no_stream_and_tries_again_only_what_was_refused(layered: dict[str, Manifests]) -> None:
    (route,) = layered["istio"].only("VirtualService")["spec"]["http"]
    assert route["timeout"] == "0s"
    assert "perTryTimeout" not in route["retries"]
    refusals = {"unavailable", "resource-exhausted"}
    assert set(route["retries"]["retryOn"].split(",")) == {"connect-failure", "refused-stream"} | refusals
    annotations = layered["linkerd"].named("Service", "treadle")["metadata"]["annotations"]
    assert set(annotations["retry.linkerd.io/grpc"].split(",")) == refusals
    assert not any(name.startswith("timeout.linkerd.io/") for name in annotations)


def test_meshes_and_gateways_let_through_what_the_server_serves_and_lead_to_its_service(
    layered: dict[str, Manifests],
) -> None:
    served = {SERVICE, "grpc.health.v1.Health"}
    (calls, _) = layered["istio"].only("AuthorizationPolicy")["spec"]["rules"]
    assert set(calls["to"][0]["operation"]["paths"]) == {f"/{name}/*" for name in served}
    routes = [rule for route in layered["linkerd"].of_kind("HTTPRoute") for rule in route["spec"]["rules"]]
    assert {match["path"]["value"] for rule in routes for match in rule["matches"]} == {f"/{name}/" for name in served}
    gateway = layered["gateway-api"].only("GRPCRoute")["spec"]["rules"][0]
    assert {match["method"]["service"] for match in gateway["matches"]} == served
    service = layered["gateway-api"].named("Service", "treadle")
    port = service["spec"]["ports"][0]["port"]
    assert [(backend["name"], backend["port"]) for backend in gateway["backendRefs"]] == [("treadle", port)]
    (route,) = layered["istio"].only("VirtualService")["spec"]["http"]
    (destination,) = [entry["destination"] for entry in route["route"]]
    assert destination["port"]["number"] == port
    assert destination["host"] == layered["istio"].only("DestinationRule")["spec"]["host"]
    assert destination["host"].startswith(f"treadle.{service['metadata']['namespace']}.svc.")


def test_what_a_policy_refers_to_is_there(layered: dict[str, Manifests]) -> None:
    stack = layered["linkerd"]
    for policy in stack.of_kind("AuthorizationPolicy"):
        for reference in [policy["spec"]["targetRef"], *policy["spec"]["requiredAuthenticationRefs"]]:
            assert group_of(stack.named(reference["kind"], reference["name"])) == reference["group"]
    for route in stack.of_kind("HTTPRoute"):
        assert [stack.named(parent["kind"], parent["name"]) for parent in route["spec"]["parentRefs"]]
    route = layered["gateway-api"].only("GRPCRoute")["spec"]
    gateway = layered["gateway-api"].only("Gateway")
    (listener,) = gateway["spec"]["listeners"]
    (parent,) = route["parentRefs"]
    assert (parent["name"], parent["sectionName"]) == (gateway["metadata"]["name"], listener["name"])
    assert route["hostnames"] == [listener["hostname"]]
    account = layered["monitoring"].pod()["spec"]["serviceAccountName"]
    assert layered["monitoring"].named("ServiceAccount", account)


def test_a_scraper_sees_each_pod_once(layered: dict[str, Manifests]) -> None:
    stack = layered["monitoring"]
    monitor = stack.only("ServiceMonitor")["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    (service,) = [found for found in stack.of_kind("Service") if wanted <= found["metadata"]["labels"].items()]
    assert service["spec"]["clusterIP"] == "None"
    ports = {port["name"] for port in service["spec"]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["endpoints"]} <= ports
    dashboard = stack.named("ConfigMap", "treadle-dashboard")
    assert json.loads(dashboard["data"]["dashboard.json"])["panels"]


def test_alerts_and_queries_ask_for_this_namespace_and_this_service(layered: dict[str, Manifests]) -> None:
    triggers = layered["autoscaling"].only("ScaledObject")["spec"]["triggers"]
    namespace = layered["autoscaling"].only("Namespace")["metadata"]["name"]
    for trigger in triggers:
        metrics = re.findall(r"treadle_\w+(\{[^}]*\})?", trigger["metadata"]["query"])
        assert metrics
        assert set(metrics) == {f'{{namespace="{namespace}"}}'}
