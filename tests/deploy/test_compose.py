"""compose.yaml keeps its promises: harnesses reach neither engines nor control plane, and engines answer to seeds.

No `docker compose` is at hand here: the file is read, and its keys are held against those that we mean to use.
"""

import ipaddress
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.settings import Settings
from proxy.settings_sources import load_settings

ROOT = Path(__file__).parents[2]
FILE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
ENGINES = ("sim", "vllm", "sglang")
OURS = ("rollpin", "sim")
# Keys of the Compose specification that this file uses; anything else is a slip of the pen.
SERVICE_KEYS = {
    *(
        "build",
        "cap_drop",
        "command",
        "deploy",
        "entrypoint",
        "environment",
        "healthcheck",
        "image",
        "init",
        "networks",
    ),
    *("ports", "profiles", "read_only", "restart", "security_opt", "shm_size", "stop_grace_period", "tmpfs", "volumes"),
}
HEALTH_KEYS = {"test", "interval", "timeout", "retries", "start_period"}
DURATION = re.compile(r"(?:(\d+)m)?(?:(\d+)s)?")
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def filled(text: str, **variables: str) -> str:
    """What compose puts in for variables; all of ours have a default."""
    done = VARIABLE.sub(lambda found: variables.get(found[1]) or found[2], text)
    assert "$" not in done, text
    return done


def seconds(duration: str) -> int:
    """A duration such as 1m15s."""
    match = DURATION.fullmatch(duration)
    assert match, duration
    return 60 * int(match[1] or 0) + int(match[2] or 0)


def settings(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Settings:
    """What the proxy in its container makes of variables and the image's file."""
    for name, value in SERVICES["rollpin"]["environment"].items():
        monkeypatch.setenv(name, filled(value, **variables))
    return load_settings([], ROOT / "deploy" / "image.toml")


def option(service: str, name: str) -> str | None:
    """The value of a flag, empty where it has none; None where the flag is absent."""
    for word in SERVICES[service]["command"]:
        flag, _, value = word.partition("=")
        if flag == name:
            return str(value)
    return None


def test_every_key_is_one_of_the_specification() -> None:
    """At every level that is ours."""
    assert set(FILE) == {"name", "x-rollpin-image", "x-gpu", "services", "networks", "volumes"}
    for name, service in SERVICES.items():
        assert set(service) <= SERVICE_KEYS, name
        assert set(service["healthcheck"]) <= HEALTH_KEYS
        assert service["restart"] in {"no", "always", "on-failure", "unless-stopped"}
        assert set(service["networks"]) <= set(FILE["networks"])
        named = {volume.partition(":")[0] for volume in service.get("volumes", ())}
        assert named <= set(FILE["volumes"])
    assert {name for service in SERVICES.values() for name in service["networks"]} == set(FILE["networks"])


def test_by_default_the_proxy_asks_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU, no model."""
    started = [name for name, service in SERVICES.items() if "profiles" not in service]

    assert started == ["rollpin", "sim"]
    assert [engine.url for engine in settings(monkeypatch).engines] == ["http://sim:8000"]
    assert SERVICES["sim"]["command"][0] == "sim"


@pytest.mark.parametrize("profile", ["vllm", "sglang"])
def test_a_profile_brings_the_engine_and_is_the_engine_that_is_asked(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One variable does both, so that nobody trains on the simulation by mistake."""
    assert SERVICES[profile]["profiles"] == [profile]
    assert [engine.url for engine in settings(monkeypatch, COMPOSE_PROFILES=profile).engines] == [
        f"http://{profile}:8000"
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_listens_where_the_proxy_asks(engine: str) -> None:
    """On port 8000 of every address."""
    words = " ".join(SERVICES[engine]["command"]).replace("=", " ")

    assert "--host 0.0.0.0" in words
    assert "--port 8000" in words


def test_harnesses_reach_no_engine() -> None:
    """The proxy alone is on both sides, and the engines' network has no way in or out."""
    on_engines = {name for name, service in SERVICES.items() if "engines" in service["networks"]}
    on_harness = {name for name, service in SERVICES.items() if "harness" in service["networks"]}

    assert on_harness == {"rollpin"}
    assert on_engines == {"rollpin", *ENGINES}
    assert FILE["networks"]["engines"]["internal"] is True
    assert not any("ports" in SERVICES[engine] for engine in ENGINES)
    assert "downloads" not in SERVICES["rollpin"]["networks"]


def test_the_control_plane_is_bound_to_a_network_without_harnesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """And published on the host's loopback alone."""
    networks = SERVICES["rollpin"]["networks"]
    (pool,) = FILE["networks"]["control"]["ipam"]["config"]
    chosen = settings(monkeypatch)

    assert chosen.control_host == networks["control"]["ipv4_address"]
    assert ipaddress.ip_address(chosen.control_host) in ipaddress.ip_network(pool["subnet"])
    assert [name for name, service in SERVICES.items() if "control" in service["networks"]] == ["rollpin"]
    assert SERVICES["rollpin"]["ports"] == [
        f"127.0.0.1:{chosen.port}:{chosen.port}",
        f"127.0.0.1:{chosen.control_port}:{chosen.control_port}",
    ]
    # Docker publishes to the first by name of the networks that are not internal.
    assert min(name for name in networks if not FILE["networks"][name].get("internal")) == "control"


def test_secrets_come_from_the_environment_or_are_minted(monkeypatch: pytest.MonkeyPatch) -> None:
    """None stands in the file, and empty is as good as unset."""
    chosen = settings(monkeypatch)

    assert (chosen.admin_token, chosen.read_token, chosen.key_secret, chosen.run_seed) == (None, None, None, None)
    assert "store:/data" in SERVICES["rollpin"]["volumes"]
    given = settings(monkeypatch, ROLLPIN_ADMIN_TOKEN="a" * 20)
    assert given.admin_token
    assert given.admin_token.get_secret_value() == "a" * 20


def test_the_stop_outlasts_drain_and_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else calls in flight would be killed before they are recorded."""
    timeouts = settings(monkeypatch).timeouts

    assert seconds(SERVICES["rollpin"]["stop_grace_period"]) >= timeouts.drain_s + timeouts.commit_wait_s + 10


@pytest.mark.parametrize("service", OURS)
def test_our_containers_have_no_more_rights_than_they_need(service: str) -> None:
    """Neither writes but to volumes."""
    ours = SERVICES[service]

    assert ours["read_only"] is True
    assert ours["cap_drop"] == ["ALL"]
    assert ours["security_opt"] == ["no-new-privileges:true"]
    assert "user" not in ours  # the image's own, which is not root
    assert ours["image"] == f"rollpin:{tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['version']}"


def test_no_health_check_generates_a_token() -> None:
    """It would count as traffic and, on SGLang, disturb a seeded batch."""
    asked = {name: re.findall(r"/\w+$|:8000(/\w+)", SERVICES[name]["healthcheck"]["test"][-1]) for name in SERVICES}

    assert asked["vllm"] == ["/health"]
    assert asked["sglang"] == ["/model_info"]
    assert SERVICES["sim"]["healthcheck"]["test"][-1].endswith("/model_info")
    assert SERVICES["rollpin"]["healthcheck"]["test"] == ["CMD", "rollpin-probe", "/healthz"]


def test_sglang_obeys_seeds_and_keeps_to_what_is_sent() -> None:
    """Without the first flag it accepts seeds and ignores them."""
    assert option("sglang", "--enable-deterministic-inference") == ""
    assert option("sglang", "--sampling-defaults") == "openai"
    assert option("sglang", "--allow-auto-truncate") is None


def test_vllm_obeys_seeds_whatever_the_batch_and_reports_what_is_sampled() -> None:
    """By flags that are off by default."""
    assert SERVICES["vllm"]["environment"]["VLLM_BATCH_INVARIANT"] == "1"
    assert option("vllm", "--logprobs-mode") == "processed_logprobs"
    assert option("vllm", "--generation-config") == "vllm"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_real_engines_get_a_gpu_and_one_fixed_version(engine: str) -> None:
    """The versions that docs/engines.md speaks of."""
    (device,) = SERVICES[engine]["deploy"]["resources"]["reservations"]["devices"]
    version = SERVICES[engine]["image"].partition(":v")[2]

    assert device["capabilities"] == ["gpu"]
    assert device["driver"] == "nvidia"
    assert version
    assert version in (ROOT / "docs" / "engines.md").read_text()
