"""docs/engines.md and docs/deploy.md say what the program and the files do."""

import itertools
import re
import shutil
from pathlib import Path

import kubernetes_validate
import pytest

from proxy.engine.fit import check_fit
from proxy.model import EngineFacts, EngineKind, Finding, Profile
from tests.deploy.kustomize import has_kubectl, render_by_kubectl

ROOT = Path(__file__).parents[2]
ENGINES = (ROOT / "docs" / "engines.md").read_text()
DEPLOY = (ROOT / "docs" / "deploy.md").read_text()
SHIPPED = ("Dockerfile", ".dockerignore", "compose.yaml", "docs/deploy.md", "docs/engines.md")


def engine(kind: EngineKind, *, deterministic: bool | None = None, auto_truncates: bool = False) -> EngineFacts:
    """An engine that was asked about itself."""
    return EngineFacts(kind, "1", "m", 4096, 1024, deterministic, auto_truncates)


def all_findings() -> set[Finding]:
    """Everything that a profile can meet."""
    profiles = [
        Profile("p", temperature=0.0),
        Profile("p", top_k=1),
        Profile("p", min_p=0.1),
        Profile("p", presence_penalty=1.0),
        Profile("p", temperature=0.001),
        Profile("p", model="another"),
    ]
    engines = [
        engine("vllm"),
        engine("sglang", deterministic=True, auto_truncates=True),
        engine("sglang", deterministic=False),
    ]
    return {
        finding
        for profile, facts, strict in itertools.product(profiles, engines, (True, False))
        for finding in check_fit(profile, "e", facts, require_replayable=strict)
    }


def test_every_finding_is_told_with_its_remedy() -> None:
    """In the program's own words."""
    found = {(finding.message, finding.remedy) for finding in all_findings()}

    assert len(found) == 10
    table = ENGINES.partition("## What Rollpin refuses")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    for message, remedy in found:
        assert any(f"| {message} | {remedy} |" in row for row in rows), message


def test_what_costs_replay_is_marked() -> None:
    """As what `require_replayable` turns into a refusal."""
    severities: dict[str, set[str]] = {}
    for finding in all_findings():
        severities.setdefault(finding.message, set()).add(finding.severity)

    for message, met in severities.items():
        (row,) = [line for line in ENGINES.splitlines() if f"| {message} |" in line]
        becomes = {"costs replay": len(met) == 2, "refusal": met == {"refuse"}}
        assert all((word in row.split("|")[3]) == so for word, so in becomes.items()), row


def test_the_overlay_of_the_page_renders(tmp_path: Path) -> None:
    """As a reader would write it, beside the base."""
    if not has_kubectl():
        pytest.skip("no kubectl here: the overlay of docs/deploy.md was not rendered")
    (overlay,) = re.findall(r"```yaml\n# kustomization.yaml\n(.*?)```", DEPLOY, re.DOTALL)
    shutil.copytree(ROOT / "deploy" / "kubernetes" / "base", tmp_path / "base")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kustomization.yaml").write_text(overlay)

    manifests = render_by_kubectl(tmp_path / "mine")

    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.33", strict=True)
    (job,) = [manifest for manifest in manifests if manifest["kind"] == "Job"]
    spec = job["spec"]["template"]["spec"]
    assert job["metadata"] | {"labels": None} == {"name": "step-12-task-7-0", "namespace": "rollouts", "labels": None}
    assert [one["image"] for one in (*spec["initContainers"], *spec["containers"])] == [
        "my-registry/rollpin:0.1.0",
        "my-registry/rollpin:0.1.0",
        "my-registry/harness:7",
    ]
    assert "step-12-task-7" in job["spec"]["template"]["metadata"]["annotations"]["rollpin/rollout"]


def test_links_lead_somewhere() -> None:
    """To pages, and to headings of the same page."""
    for page in (ENGINES, DEPLOY):
        headings = {
            re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", page, re.MULTILINE)
        }
        for target in re.findall(r"\]\(([^)]+)\)", page):
            if target.startswith("#"):
                assert target[1:] in headings, target
            else:
                assert (ROOT / "docs" / target).is_file(), target


def test_lines_of_prose_fit() -> None:
    """Tables and commands apart."""
    for name in SHIPPED:
        text = re.sub(r"```.*?```", "", (ROOT / name).read_text(), flags=re.DOTALL)
        long = [
            line for line in text.splitlines() if len(line) > 120 and not line.startswith(("|", "LABEL", "      org."))
        ]
        assert not long, (name, long)
