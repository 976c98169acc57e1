"""Asks transformers, in an engine's own environment, for the logprobs of tokens that the engine made."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

from tests.live.engines.places import KIT, run_python
from tests.live.engines.start import Engine


class Row(TypedDict):
    """One completion to score."""

    prompt: list[int]
    completion: list[int]
    temperature: NotRequired[float]


def reference_logprobs(engine: Engine, rows: Sequence[Row], model_dir: Path | None = None) -> list[list[float]]:
    """The logprobs of each row's completion under the engine's weights, or those in `model_dir`."""
    question = {"model_dir": str(model_dir or engine.model_dir), "rows": list(rows)}
    answer = run_python(engine.kind, KIT / "reference.py", text=json.dumps(question))
    return json.loads(answer)["logprobs"]
