"""The manifests in docs/production/kubernetes.yaml: they are valid, and agree with the container and the service."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient

from factorcell.commands.cli.main import main
from factorcell.options.limits import STORE_VARIABLE
from factorcell.service.engine import Service
from factorcell.service.http.application import Site, application
from factorcell.service.http.server import uvicorn_server
from factorcell.service.record import StoreError
from tests import ROOT

TEXT = (ROOT / "docs" / "production" / "kubernetes.yaml").read_text(encoding="utf-8")
MANIFESTS: dict[str, Any] = {manifest["kind"]: manifest for manifest in yaml.safe_load_all(TEXT)}
POD = MANIFESTS["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
VERSIONS = ("1.29", "1.37")  # of Kubernetes
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")

# Each function makes one field of a copy of the manifests invalid.
FAULTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a number as text": lambda kinds: kinds["Deployment"]["spec"].update(replicas="two"),
    "a mistyped field": lambda kinds: kinds["Deployment"]["spec"]["template"]["spec"]["containers"][0].update(
        livenesProbe={"httpGet": {"path": "/healthz", "port": 8000}}
    ),
    "a missing field": lambda kinds: kinds["Deployment"]["spec"].pop("selector"),
    "a misplaced field": lambda kinds: kinds["Deployment"]["spec"].update(terminationGracePeriodSeconds=60),
    "a port without a number": lambda kinds: kinds["Service"]["spec"]["ports"][0].pop("port"),
    "a list as a number": lambda kinds: kinds["PodDisruptionBudget"]["spec"].update(minAvailable=[1]),
}


def validate(manifests: dict[str, Any], version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="needs the extra `slow`")
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_follow_the_schemas_of_kubernetes(version: str) -> None:
    assert sorted(MANIFESTS) == ["Deployment", "PodDisruptionBudget", "Service"]
    validate(MANIFESTS, version)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_schemas_find_wrong_fields(fault: str) -> None:
    wrong = copy.deepcopy(MANIFESTS)
    FAULTS[fault](wrong)
    jsonschema = pytest.importorskip("jsonschema", reason="needs the extra `slow`")
    with pytest.raises(jsonschema.ValidationError):
        validate(wrong, VERSIONS[-1])


def test_command_names_options_that_exist(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STORE_VARIABLE, raising=False)
    assert main([*CONTAINER["args"], "--port", "0"]) == 2
    assert "/keys/keys.toml: there is no such file" in capsys.readouterr().err  # the first thing that is missing here
    assert [variable["name"] for variable in CONTAINER["env"]] == [STORE_VARIABLE]


def test_pod_is_confined_as_the_image_allows() -> None:
    assert re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Containerfile").read_text(), re.MULTILINE) == [
        (str(POD["securityContext"]["runAsUser"]), str(POD["securityContext"]["runAsGroup"]))
    ]
    assert POD["securityContext"]["runAsNonRoot"]
    security = CONTAINER["securityContext"]
    assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
    assert security["capabilities"] == {"drop": ["ALL"]}
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in CONTAINER["volumeMounts"]}
    assert [path for path, volume in mounts.items() if "emptyDir" in volume] == ["/tmp"]
    assert "postgresql://" not in TEXT, "the URL of the store may contain a password: it belongs into the secret"


def test_names_and_sizes_agree() -> None:
    labels = MANIFESTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert MANIFESTS["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert MANIFESTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert MANIFESTS["Service"]["spec"]["selector"] == labels
    (port,) = CONTAINER["ports"]
    assert MANIFESTS["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    assert {CONTAINER[probe]["httpGet"]["port"] for probe in PROBES} == {port["name"]}
    threads = CONTAINER["args"][CONTAINER["args"].index("--threads") + 1]
    assert CONTAINER["resources"]["requests"]["cpu"] == threads


def test_running_requests_finish_before_the_pod_is_killed(service: Service) -> None:
    server = uvicorn_server(application(Site(service)))
    (_, seconds) = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert server.config.timeout_graceful_shutdown is not None
    assert POD["terminationGracePeriodSeconds"] > int(seconds) + server.config.timeout_graceful_shutdown


def test_only_the_start_needs_the_store(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def statuses(client: TestClient) -> list[int]:
        return [client.get(CONTAINER[probe]["httpGet"]["path"]).status_code for probe in PROBES]

    def fail() -> None:
        raise StoreError("store: it does not answer")

    with TestClient(application(Site(service))) as client:
        assert statuses(client) == [200, 200, 200]
        monkeypatch.setattr(service, "check", fail)
        assert statuses(client) == [503, 200, 200]
