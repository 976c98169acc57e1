"""Two renderers of a kustomization: kubectl, and a reading of our own for machines without it.

Ours knows what our files use, refuses all else, and leaves out the hash that kustomize adds to generated names. A test
holds the two against each other wherever kubectl is.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]
KNOWN = {"apiVersion", "kind", "resources", "configMapGenerator"}
# kustomize's hash: ten characters at the end of a generated name.
HASH = re.compile(r"-[a-z0-9]{10}$")


def has_kubectl() -> bool:
    """Whether the real renderer is here."""
    return shutil.which("kubectl") is not None


def render_by_kubectl(folder: Path) -> list[Manifest]:
    """The manifests as a cluster would get them, but for the hashes in names."""
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    for document in yaml.safe_load_all(done.stdout):
        if document["kind"] == "ConfigMap":
            name = document["metadata"]["name"]
            assert HASH.search(name), name
            text = text.replace(name, HASH.sub("", name))
    return _sorted(yaml.safe_load_all(text))


def render_by_reading(folder: Path) -> list[Manifest]:
    """The manifests as this module understands them."""
    return _sorted(_read(folder))


def _read(folder: Path) -> Iterator[Manifest]:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := set(kustomization) - KNOWN:
        raise ValueError(f"{folder}: this reading does not know {sorted(unknown)}")
    for name in kustomization["resources"]:
        yield from yaml.safe_load_all((folder / name).read_text())
    for generator in kustomization.get("configMapGenerator", ()):
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": generator["name"]},
            "data": dict(_entry(folder, item) for item in generator["files"]),
        }


def _entry(folder: Path, item: str) -> tuple[str, str]:
    key, equals, file = item.rpartition("=")
    return (key if equals else Path(file).name), (folder / file).read_text()


def _sorted(documents: Any) -> list[Manifest]:
    # By way of JSON, so that YAML's aliases become plain values.
    plain = json.loads(json.dumps(list(documents)))
    return sorted(plain, key=lambda one: (one["kind"], one["metadata"]["name"]))
