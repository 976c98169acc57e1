"""`rollpin check`, the probe at start and the class gate on real engines."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proxy.cli import app
from tests.live.engines.start import Engine, running
from tests.live.harness import Site, at_once, site_before
from tests.live.speaking import NO_END

ENGINES: dict[str, dict[str, Any]] = {
    "sglang": {"kind": "sglang"},
    "sglang without its mode": {"kind": "sglang", "deterministic": False},
    "vllm": {"kind": "vllm"},
    "vllm as docs/engines.md has it": {
        "kind": "vllm",
        "flags": ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"],
    },
}
ODD = {
    "sglang": {"classes": "warn", "defaults": "warn"},
    "sglang without its mode": {
        "seeds": "warn",
        "determinism": "warn",
        "defaults": "warn",
        "company": "skip",
        "classes": "skip",
        "resume": "skip",
    },
    "vllm": {"determinism": "warn", "defaults": "warn", "logprobs": "warn"},
    "vllm as docs/engines.md has it": {"determinism": "warn"},
}

only_where_classes_matter = pytest.mark.parametrize("named", ["sglang"], indirect=True)


@pytest.fixture(scope="module", params=ENGINES)
def named(request: pytest.FixtureRequest) -> Iterator[tuple[str, Engine]]:
    """Each engine in turn, under its name."""
    with running(**ENGINES[request.param]) as engine:
        yield request.param, engine


def test_check_finds_what_is_wrong_with_a_real_engine_and_nothing_else(
    named: tuple[str, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves it alive; a validation profile at temperature 0.7 makes raw logprobs a warning."""
    name, engine = named
    monkeypatch.chdir(tmp_path)
    flags = ["--engines", engine.url, "--profiles.validation.temperature", "0.7", "--json"]
    result = CliRunner().invoke(app, ["check", *flags])
    (report,) = json.loads(result.output)["engines"]

    assert {line["check"]: line["verdict"] for line in report["checks"] if line["verdict"] != "pass"} == ODD[name]
    assert result.exit_code == 0
    assert engine.is_alive()


def test_the_probe_at_start_tells_what_a_call_may_be_called(named: tuple[str, Engine], tmp_path: Path) -> None:
    """`yes` on an engine that promises and proves; elsewhere the reason."""
    name, engine = named
    with site_before(engine, tmp_path, prove_engines=True) as site:
        client = site.rollout("probed")
        client.chat("import os", max_tokens=8)
        (shown,) = site.proxy.control.get("/engines").json()["engines"]
        replayable = client.call()["replayable"]

    assert (
        replayable
        == {
            "sglang": {"value": "yes", "reasons": []},
            "sglang without its mode": {"value": "no", "reasons": ["engine_ignores_seeds"]},
            "vllm": {"value": "unproven", "reasons": ["determinism_not_reported"]},
            "vllm as docs/engines.md has it": {"value": "unproven", "reasons": ["determinism_not_reported"]},
        }[name]
    )
    if name != "sglang without its mode":
        assert shown["probe"]["faults"] == []
        assert shown["probe"]["draws_by_position"] is (engine.kind == "sglang")
        assert shown["takes_exact_prompts"]


@only_where_classes_matter
def test_a_greedy_call_beside_training_calls_changes_none_of_their_tokens(
    named: tuple[str, Engine], tmp_path: Path
) -> None:
    """The gate keeps them apart: what is drawn beside is what is drawn alone, and nothing is marked."""
    greedy = {"train": {}, "validation": {"temperature": 0.0}}
    with site_before(named[1], tmp_path, profiles=greedy) as site:
        alone = [drawn(site, sample)["completion_token_ids"] for sample in range(3)]
        calls = at_once([*(lambda at=at: drawn(site, at) for at in range(3)), lambda: evaluated(site)])

    assert [call["completion_token_ids"] for call in calls[:3]] == alone
    assert all(call["replayable"]["reasons"] == ["no_replay_probe"] for call in calls)


@only_where_classes_matter
def test_calls_that_had_to_share_a_batch_are_marked_and_differ(named: tuple[str, Engine], tmp_path: Path) -> None:
    """Without patience the classes mix: a training call's tokens change, and its record says that they may have."""
    greedy, hasty = {"train": {}, "validation": {"temperature": 0.0}}, {"class_patience_s": 0.05}
    with site_before(named[1], tmp_path, profiles=greedy, timeouts=hasty) as site:
        alone = [drawn(site, sample)["completion_token_ids"] for sample in range(3)]
        calls = at_once([lambda: evaluated(site), *(lambda at=at: drawn(site, at) for at in range(3))])

    disturbed = [call for call in calls if call["replayable"] == {"value": "no", "reasons": ["class_disturbed"]}]
    assert len(disturbed) >= 2
    untouched = [call for call in calls[1:] if call not in disturbed]
    assert all(call["completion_token_ids"] in alone for call in untouched)
    assert any(call["completion_token_ids"] not in alone for call in disturbed)


def drawn(site: Site, sample: int) -> dict[str, Any]:
    """A training call of 120 tokens."""
    client = site.rollout("drawn", sample)
    assert client.chat("import os", max_tokens=120, **NO_END).status_code == 200
    return client.call()


def evaluated(site: Site) -> dict[str, Any]:
    """A greedy call that outlasts them."""
    client = site.rollout("evaluated", profile="validation")
    assert client.chat("def main():", max_tokens=400, **NO_END).status_code == 200
    return client.call()
