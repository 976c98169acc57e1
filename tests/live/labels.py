"""What records say of the weights behind their tokens, held against transformers on the weights themselves."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.live.engines.reference_client import Row, reference_logprobs
from tests.live.engines.start import Engine
from tests.live.harness import PATIENCE_S
from tests.live.speaking import Json

# Logprobs of other weights are further away than this, in nats; those of a mixed cache too.
FAR = 0.01


def is_interrupted(record: Json) -> bool:
    """Whether it was in flight when the weights changed, and says where; its segments then are the whole of it."""
    ends = [0, *(segment["end"] for segment in record["segments"])]
    assert [segment["start"] for segment in record["segments"]] == ends[:-1]
    assert ends[-1] == len(record["completion_token_ids"]) == len(record["logprobs"])
    return len(record["segments"]) > 1


def interrupted(records: Sequence[Json]) -> list[Json]:
    """Those that were in flight when the weights changed."""
    found = [record for record in records if is_interrupted(record)]
    assert len(found) >= 2, [record["segments"] for record in records]
    return found


def is_doubtful(record: Json) -> bool:
    """Whether it was in flight when the weights changed, and does not say where."""
    return bool(record["segments"][0]["weight_version"] is None)


@dataclass(frozen=True, slots=True)
class Run:
    """Some tokens of a record, and the weights that its segment names."""

    record: Json
    start: int
    end: int
    version: str | None = None


def segments_of(records: Sequence[Json]) -> list[Run]:
    return [
        Run(record, part["start"], part["end"], part["weight_version"])
        for record in records
        for part in record["segments"]
    ]


def furthest(engine: Engine, runs: Sequence[Run], model: Path) -> list[float]:
    """For each run, the largest difference of a logprob from what transformers makes of it on these weights."""
    rows = [
        Row(
            prompt=run.record["prompt_token_ids"] + run.record["completion_token_ids"][: run.start],
            completion=run.record["completion_token_ids"][run.start : run.end],
        )
        for run in runs
    ]
    expected = reference_logprobs(engine, rows, model)
    return [
        max(abs(told - true) for told, true in zip(run.record["logprobs"][run.start : run.end], row, strict=True))
        for run, row in zip(runs, expected, strict=True)
    ]


def check_segments(engine: Engine, records: Sequence[Json], versions: dict[str, Path]) -> float:
    """Each segment's logprobs are those of its own weights and of no others; the largest difference."""
    runs, worst = segments_of(records), 0.0
    for version, model in versions.items():
        for run, difference in zip(runs, furthest(engine, runs, model), strict=True):
            if run.version == version:
                worst = max(worst, difference)
            elif run.end - run.start > 3:
                assert difference > FAR, (run.start, run.end, run.version, version)
    return worst


def asked_on(engine: Engine, record: Json, salt: str, model: Path) -> float:
    """How far the logprobs of a reply behind a record's ids, under a salt, are from a model's."""
    ids = record["prompt_token_ids"] + record["completion_token_ids"]
    body: Json = {
        "model": engine.served_name,
        "messages": [{"role": "user", "content": "-"}],
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 8,
        "logprobs": True,
        "return_token_ids": True,
        "seed": 5,
        "cache_salt": salt,
    }
    body |= {"input_ids": ids} if engine.kind == "sglang" else {"kv_transfer_params": {"prompt_token_ids": ids}}
    answer = httpx.post(f"{engine.url}/v1/chat/completions", json=body, timeout=PATIENCE_S).raise_for_status()
    (choice,) = answer.json()["choices"]
    told = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    drawn = choice["response_token_ids" if engine.kind == "sglang" else "token_ids"]
    (true,) = reference_logprobs(engine, [Row(prompt=ids, completion=drawn)], model)
    return max(abs(one - other) for one, other in zip(told, true, strict=True))
