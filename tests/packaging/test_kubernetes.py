"""The manifests for Kubernetes: rendered, held against the schemas of the API, and against what the desk needs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from refdesk.config.loading import load
from refdesk.config.models import Config
from tests.packaging.programs import ROOT, has_passed

pytestmark = pytest.mark.anyio

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ["base", "overlays/one", "overlays/several"]
VERSIONS = ["1.29", "1.37"]
"""The oldest that somebody may still have, and the newest whose schemas there are."""

IMAGE = {"MCP_SERVER_HOST": "0.0.0.0", "MCP_AUTH_REQUIRED": "true"}
SECRET = {
    "MCP_API_KEY": "0123456789abcdef0123456789abcdef",
    "R2R_SERVICE_EMAIL": "refdesk@example.com",
    "R2R_SERVICE_PASSWORD": "of-the-account",
}

Resources = dict[tuple[str, str], Any]


async def rendered(overlay: str, home: Path) -> str:
    kubectl, kustomize = shutil.which("kubectl"), shutil.which("kustomize")
    if kubectl:
        return await has_passed(kubectl, "kustomize", FOLDER / overlay, home=home)
    if kustomize:
        return await has_passed(kustomize, "build", FOLDER / overlay, home=home)
    pytest.skip("neither kubectl nor kustomize is installed")


async def resources(overlay: str, home: Path) -> Resources:
    """Each resource by its kind and name; a name that was made from its content is cut to what people wrote."""
    found = yaml.safe_load_all(await rendered(overlay, home))
    return {(each["kind"], each["metadata"]["name"].split("-")[0]): each for each in found}


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
async def test_the_schemas_of_the_api_take_them(version: str, programs: Path, tmp_path: Path) -> None:
    """Those of the largest overlay, which has all that the others have."""
    whole = tmp_path / "all.yaml"
    whole.write_text(await rendered("overlays/several", tmp_path))
    command = ("--strict", "--kubernetes-version", version, whole)
    await has_passed(programs / "kubernetes-validate", *command, home=tmp_path)


@pytest.mark.parametrize("overlay", OVERLAYS)
async def test_the_desk_is_walled_in(overlay: str, tmp_path: Path) -> None:
    pod = (await resources(overlay, tmp_path))["StatefulSet", "refdesk"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/data", "/tmp"}


@pytest.mark.parametrize("overlay", OVERLAYS)
async def test_probes_ask_what_the_desk_answers(overlay: str, tmp_path: Path) -> None:
    pod = (await resources(overlay, tmp_path))["StatefulSet", "refdesk"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/health", "liveness": "/health", "readiness": "/ready"}
    assert pod["terminationGracePeriodSeconds"] > load(None, {}, {}).server.shutdown_grace_seconds + 5


@pytest.mark.parametrize("overlay", OVERLAYS)
async def test_what_the_desk_is_told_is_a_configuration_that_it_takes(overlay: str, tmp_path: Path) -> None:
    config = await configuration(overlay, tmp_path)
    assert config.auth.required


async def configuration(overlay: str, home: Path) -> Config:
    """What a desk makes of the settings, beside those of its image and of the secret."""
    told = (await resources(overlay, home))["ConfigMap", "refdesk"]["data"]
    return load(None, {**IMAGE, **SECRET, **told})


async def test_one_desk_keeps_its_own_documents(tmp_path: Path) -> None:
    desk = (await resources("overlays/one", tmp_path))["StatefulSet", "refdesk"]["spec"]
    assert desk["replicas"] == 1
    assert desk["volumeClaimTemplates"][0]["spec"]["accessModes"] == ["ReadWriteOnce"]


async def test_several_desks_share_r2r_and_redis_and_have_no_sessions(tmp_path: Path) -> None:
    assert (await resources("overlays/several", tmp_path))["StatefulSet", "refdesk"]["spec"]["replicas"] > 1
    config = await configuration("overlays/several", tmp_path)
    assert (config.cache.type, config.rate_limits.type, config.server.stateless) == ("redis", "redis", True)
    assert config.r2r.api_url is not None


@pytest.mark.parametrize("overlay", OVERLAYS)
async def test_each_wall_of_the_network_stands_around_its_own_pods_only(overlay: str, tmp_path: Path) -> None:
    found = await resources(overlay, tmp_path)
    walls = {name: each["spec"] for (kind, name), each in found.items() if kind == "NetworkPolicy"}
    assert walls
    for name, wall in walls.items():
        assert wall["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": name}}
        assert set(wall["policyTypes"]) == {"Ingress", "Egress"}


@pytest.mark.parametrize("overlay", OVERLAYS)
async def test_services_and_monitors_reach_what_they_name(overlay: str, tmp_path: Path) -> None:
    found = await resources(overlay, tmp_path)
    pods = [each["spec"]["template"] for (kind, _), each in found.items() if kind in ("StatefulSet", "Deployment")]
    for (kind, _), each in found.items():
        if kind == "Service":
            wanted = each["spec"]["selector"].items()
            (pod,) = (pod for pod in pods if wanted <= pod["metadata"]["labels"].items())
            ports = {port["name"] for container in pod["spec"]["containers"] for port in container["ports"]}
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= ports
        if kind == "ServiceMonitor":
            service = found["Service", "refdesk"]
            assert each["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
            assert {end["port"] for end in each["spec"]["endpoints"]} <= {
                port["name"] for port in service["spec"]["ports"]
            }


async def test_no_secret_is_among_them(tmp_path: Path) -> None:
    for overlay in OVERLAYS:
        assert not [kind for kind, _ in await resources(overlay, tmp_path) if kind == "Secret"]
