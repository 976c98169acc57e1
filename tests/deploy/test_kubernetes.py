"""The manifests say what docs/deploy.md promises: who can reach what, in which order things start and end."""

import copy
import functools
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from proxy.settings import Settings, is_loopback
from proxy.settings_sources import load_settings
from tests.deploy.kustomize import Manifest, has_kubectl, render_by_kubectl, render_by_reading

ROOT = Path(__file__).parents[2]
FOLDERS = {name: ROOT / "deploy" / "kubernetes" / name for name in ("base", "standalone")}
RENDERERS = {"kubectl": render_by_kubectl, "reading": render_by_reading}
# The first version with sidecars on by default, and a later one.
VERSIONS = ("1.29", "1.33")
NO_KUBECTL = "no kubectl here: rendered by tests/deploy/kustomize.py alone"
ROLLPIN_USER = 10001
# What the trainer's companion may take for its last reading.
TRAINER_S = 20


@pytest.fixture(params=RENDERERS)
def renderer(request: pytest.FixtureRequest) -> str:
    """Each renderer that is here."""
    if request.param == "kubectl" and not has_kubectl():
        pytest.skip(NO_KUBECTL)
    return str(request.param)


class Rendered:
    """The manifests of one folder."""

    def __init__(self, manifests: list[Manifest]) -> None:
        self.manifests = manifests

    def one(self, kind: str, name: str | None = None) -> Manifest:
        (found,) = [m for m in self.manifests if m["kind"] == kind and name in (None, m["metadata"]["name"])]
        return found

    @property
    def pod(self) -> dict[str, Any]:
        (owner,) = [m for m in self.manifests if m["kind"] in {"Job", "Deployment"}]
        return dict(owner["spec"]["template"]["spec"])

    def containers(self) -> Iterator[dict[str, Any]]:
        yield from self.pod.get("initContainers", ())
        yield from self.pod["containers"]

    def container(self, name: str) -> dict[str, Any]:
        (found,) = [container for container in self.containers() if container["name"] == name]
        return found


@functools.cache
def manifests(renderer: str, name: str) -> list[Manifest]:
    """One folder through one renderer, once."""
    return RENDERERS[renderer](FOLDERS[name])


def rendered(renderer: str, name: str) -> Rendered:
    """The same, to be changed at will."""
    return Rendered(copy.deepcopy(manifests(renderer, name)))


@pytest.fixture
def base(renderer: str) -> Rendered:
    """The harness pod with its sidecars."""
    return rendered(renderer, "base")


@pytest.fixture
def standalone(renderer: str) -> Rendered:
    """One Rollpin for many pods."""
    return rendered(renderer, "standalone")


@pytest.fixture(params=FOLDERS)
def each(renderer: str, request: pytest.FixtureRequest) -> Rendered:
    """Either of them."""
    return rendered(renderer, request.param)


def settings_of(files: Rendered, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """What Rollpin makes of the mounted file and of the Secret's variables."""
    file = tmp_path / "rollpin.toml"
    file.write_text(files.one("ConfigMap", "rollpin-settings")["data"]["rollpin.toml"])
    values = {"ROLLPIN_ENGINES": '[{"url": "http://engine:8000", "api_key": "k"}]', "ROLLPIN_ADMIN_TOKEN": "a" * 32}
    for variable in files.container("rollpin")["env"]:
        monkeypatch.setenv(variable["name"], values.get(variable["name"], ""))
    return load_settings([], file)


def mounts(container: dict[str, Any]) -> dict[str, str]:
    """Where a container sees which volume."""
    return {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}


# --- both -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)
def test_our_reading_is_kubectls(folder: Path) -> None:
    """Where there is no kubectl, the reading of our own may be trusted."""
    if not has_kubectl():
        pytest.skip(NO_KUBECTL)

    assert render_by_reading(folder) == render_by_kubectl(folder)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_fit_the_schemas_of_kubernetes(each: Rendered, version: str) -> None:
    """Strictly: a misspelt key is an error too."""
    for manifest in each.manifests:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_misspelt_key_would_be_found(base: Rendered) -> None:
    """The check above can fail."""
    job = base.one("Job")
    job["spec"]["template"]["spec"]["terminationGracePeriod"] = 1

    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(job, VERSIONS[0], strict=True)


def test_values_that_no_schema_checks_are_among_those_that_exist(each: Rendered) -> None:
    """Schemas take any string here."""
    pod = each.pod

    assert pod.get("restartPolicy", "Always") in {"Always", "OnFailure", "Never"}
    assert pod["securityContext"]["seccompProfile"]["type"] in {"RuntimeDefault", "Localhost", "Unconfined"}
    assert pod["securityContext"]["fsGroupChangePolicy"] in {"OnRootMismatch", "Always"}
    for volume in pod["volumes"]:
        assert volume.get("emptyDir", {}).get("medium", "") in {"", "Memory"}
    for container in each.containers():
        assert container.get("imagePullPolicy", "Always") in {"Always", "IfNotPresent", "Never"}
    for policy in (m for m in each.manifests if m["kind"] == "NetworkPolicy"):
        assert set(policy["spec"]["policyTypes"]) <= {"Ingress", "Egress"}
        ports = [port for rule in policy["spec"]["ingress"] for port in rule.get("ports", ())]
        assert all(port["protocol"] in {"TCP", "UDP", "SCTP"} for port in ports)


def test_no_container_has_more_rights_than_it_needs(each: Rendered) -> None:
    """Neither root nor a way to become it."""
    assert each.pod["securityContext"]["runAsNonRoot"] is True
    assert each.pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert each.pod["automountServiceAccountToken"] is False
    for container in each.containers():
        security = container["securityContext"]
        assert security["runAsUser"] >= 10000
        assert security["runAsNonRoot"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]


def test_rollpin_writes_to_volumes_alone(each: Rendered) -> None:
    """The store, and where it may leave scratch files."""
    rollpin = each.container("rollpin")

    assert rollpin["securityContext"]["runAsUser"] == ROLLPIN_USER == each.pod["securityContext"]["fsGroup"]
    assert rollpin["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"/data", "/tmp", "/etc/rollpin"} <= set(mounts(rollpin).values())


def test_every_mount_has_its_volume_and_every_volume_its_mount(each: Rendered) -> None:
    """No name is left over."""
    volumes = {volume["name"] for volume in each.pod["volumes"]}

    assert {name for container in each.containers() for name in mounts(container)} == volumes


def test_the_settings_start_a_proxy(each: Rendered, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every key and variable sets something, and the store lies on its volume."""
    settings = settings_of(each, monkeypatch, tmp_path)

    assert settings.store_path.parent == settings.secrets_file.parent == Path("/data")
    assert settings.log_format == "json"


def test_secrets_come_from_a_secret_and_stand_in_no_manifest(each: Rendered) -> None:
    """Nor do the engines, whose keys they carry."""
    assert not [m for m in each.manifests if m["kind"] == "Secret"]
    env = {variable["name"]: variable for variable in each.container("rollpin")["env"]}
    assert all(variable["valueFrom"]["secretKeyRef"]["name"] == "rollpin" for variable in env.values())
    assert {"ROLLPIN_ENGINES", "ROLLPIN_ADMIN_TOKEN"} <= set(env)
    settings = tomllib.loads(each.one("ConfigMap", "rollpin-settings")["data"]["rollpin.toml"])
    assert not {"engines", "admin_token", "read_token", "key_secret"} & set(settings)


def test_a_service_named_rollpin_stops_no_start(each: Rendered) -> None:
    """It would put ROLLPIN_PORT=tcp://… into every pod of its namespace."""
    assert each.pod["enableServiceLinks"] is False


def test_the_pod_outlasts_drain_and_commits(each: Rendered, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else calls in flight would be killed before they are recorded."""
    timeouts = settings_of(each, monkeypatch, tmp_path).timeouts
    companions = TRAINER_S if each.pod.get("initContainers") else 0

    grace_s = each.pod["terminationGracePeriodSeconds"]
    assert grace_s >= timeouts.drain_s + timeouts.commit_wait_s + companions + 10


def test_liveness_does_not_hang_on_engines(each: Rendered) -> None:
    """A restart would lose the calls in flight and mend nothing."""
    rollpin = each.container("rollpin")

    assert asked_path(rollpin["livenessProbe"]) == "/healthz"
    assert asked_path(rollpin["readinessProbe"]) == "/readyz"
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert rollpin[name]["timeoutSeconds"] > 4  # the probe's own patience, deploy/probe.py


def asked_path(probe: dict[str, Any]) -> str:
    """What a probe asks Rollpin."""
    return str(probe["exec"]["command"][-1] if "exec" in probe else probe["httpGet"]["path"])


# --- the harness pod --------------------------------------------------------------------------------------------


def test_rollpin_and_the_trainer_are_native_sidecars_in_this_order(base: Rendered) -> None:
    """They start before the harness and end after it, the first one last."""
    sidecars = base.pod["initContainers"]

    assert [container["name"] for container in sidecars] == ["rollpin", "trainer"]
    assert all(container["restartPolicy"] == "Always" for container in sidecars)
    assert [container["name"] for container in base.pod["containers"]] == ["harness"]
    # A hook of a sidecar would run at the beginning of the end, while the harness still works.
    assert not any("lifecycle" in container for container in sidecars)


def test_the_harness_starts_when_calls_would_be_served(base: Rendered) -> None:
    """And when it can be told its key."""
    assert asked_path(base.container("rollpin")["startupProbe"]) == "/readyz"
    handed = mounts(base.container("trainer"))["handover"]
    assert base.container("trainer")["startupProbe"]["exec"]["command"] == ["test", "-s", f"{handed}/env"]
    assert shlex.split(base.container("harness")["command"][2])[:2] == [".", f"{mounts_of_harness(base)}/env"]


def mounts_of_harness(base: Rendered) -> str:
    """Where the harness finds what it is told."""
    return mounts(base.container("harness"))["handover"]


def test_the_data_plane_is_on_loopback(base: Rendered, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the harness in the same pod is a client."""
    assert is_loopback(settings_of(base, monkeypatch, tmp_path).host)
    assert not any("ports" in container for container in base.containers())
    assert base.one("NetworkPolicy")["spec"]["ingress"] == []
    assert base.one("NetworkPolicy")["spec"]["policyTypes"] == ["Ingress"]


def test_no_probe_of_the_harness_pod_comes_from_outside(base: Rendered) -> None:
    """The kubelet does not reach loopback."""
    for container in base.containers():
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert set(container.get(name, {"exec": {}})) & {"httpGet", "tcpSocket", "grpc"} == set()


def test_the_harness_cannot_reach_the_control_plane(
    base: Rendered, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is a socket, of another user, on a volume that the harness does not mount."""
    settings = settings_of(base, monkeypatch, tmp_path)
    harness, rollpin, trainer = (base.container(name) for name in ("harness", "rollpin", "trainer"))

    assert settings.control_socket is not None
    assert settings.control_port is None
    assert mounts(rollpin)["control"] == mounts(trainer)["control"] == str(settings.control_socket.parent)
    assert set(mounts(harness)) == {"handover", "workspace"}
    assert trainer["securityContext"]["runAsUser"] == ROLLPIN_USER  # the socket is open to its owner alone
    assert harness["securityContext"]["runAsUser"] != ROLLPIN_USER
    assert not base.pod["shareProcessNamespace"]
    assert not base.pod.get("hostNetwork")


def test_the_harness_holds_no_secret_but_its_own_key(base: Rendered) -> None:
    """No token, and nothing from the Secret."""
    assert "env" not in base.container("harness")
    assert "envFrom" not in base.container("harness")
    (handover,) = [mount for mount in base.container("harness")["volumeMounts"] if mount["name"] == "handover"]
    assert handover["readOnly"] is True


def test_samples_in_different_pods_share_the_run_seed(
    base: Rendered, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each pod has a store of its own, which would draw its own."""
    assert settings_of(base, monkeypatch, tmp_path).run_seed is not None


def test_a_rollout_is_never_tried_twice_under_one_id(base: Rendered) -> None:
    """Neither by the Job nor by the kubelet."""
    job = base.one("Job")

    assert job["spec"]["backoffLimit"] == 0
    assert base.pod["restartPolicy"] == "Never"


# --- Rollpin of its own -----------------------------------------------------------------------------------------


def test_never_two_processes_hold_the_store(standalone: Rendered) -> None:
    """Not even during an update."""
    deployment = standalone.one("Deployment")

    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert standalone.one("PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteOncePod"]


def test_services_lead_to_the_ports_of_the_settings(
    standalone: Rendered, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Data and control apart, and harnesses are told the data Service."""
    settings = settings_of(standalone, monkeypatch, tmp_path)
    ports = {port["name"]: port["containerPort"] for port in standalone.container("rollpin")["ports"]}

    assert ports == {"data": settings.port, "control": settings.control_port}
    assert settings.host == settings.control_host == "0.0.0.0"
    for service, port in (("rollpin", "data"), ("rollpin-control", "control")):
        spec = standalone.one("Service", service)["spec"]
        assert [item["targetPort"] for item in spec["ports"]] == [port]
        assert spec["selector"] == standalone.one("Deployment")["spec"]["selector"]["matchLabels"]
    assert settings.public_url == f"http://rollpin:{settings.port}"
    # A Rollpin that is not ready can be asked why.
    assert standalone.one("Service", "rollpin-control")["spec"]["publishNotReadyAddresses"] is True


def test_harnesses_reach_the_data_port_and_only_the_trainer_the_control_port(standalone: Rendered) -> None:
    """By label; nobody else reaches anything."""
    spec = standalone.one("NetworkPolicy", "rollpin")["spec"]

    assert spec["podSelector"]["matchLabels"] == standalone.one("Deployment")["spec"]["selector"]["matchLabels"]
    assert {port["port"]: callers(rule) for rule in spec["ingress"] for port in rule["ports"]} == {
        "data": [{"rollpin-access": "harness"}],
        "control": [{"rollpin-access": "trainer"}],
    }


def test_harnesses_do_not_reach_engines(standalone: Rendered) -> None:
    """What they asked there would be neither pinned nor recorded."""
    spec = standalone.one("NetworkPolicy", "rollpin-engines")["spec"]

    assert spec["podSelector"]["matchLabels"] == {"rollpin-access": "engine"}
    (rule,) = spec["ingress"]
    assert callers(rule) == [{"app.kubernetes.io/name": "rollpin"}, {"rollpin-access": "trainer"}]


def callers(rule: dict[str, Any]) -> list[dict[str, str]]:
    """The labels of the pods that a rule lets in."""
    return [peer["podSelector"]["matchLabels"] for peer in rule["from"]]
