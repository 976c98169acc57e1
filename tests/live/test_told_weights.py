"""A real vLLM outside of development mode, started anew under the weights that a trainer had told of."""

from pathlib import Path
from typing import Any

from tests.live.engines.start import running
from tests.live.harness import Site, Tell, site_before, until

NO_WORD: dict[str, Any] = {"env": {"VLLM_SERVER_DEV_MODE": "0"}}


def test_a_trainers_word_ends_with_the_process_that_it_was_about(tmp_path: Path, tell: Tell) -> None:
    """The same server on the same port has its first weights again: unknown until somebody tells."""
    with running("vllm", **NO_WORD) as engine, site_before(engine, tmp_path) as site:
        port = int(engine.url.rpartition(":")[2])
        first = process_of(site)
        site.order("/weights", {"version": "w1"})
        before = label(site)
        engine.stop()
        with running("vllm", port=port, **NO_WORD):
            until(lambda: site.is_ready(proven=False) and process_of(site) != first)
            behind = label(site)
            second = process_of(site)
            site.order("/weights", {"version": "w2"})
            again = label(site)
    tell(f"vllm: its processes began at {first} and {second}")

    assert None not in (first, second)
    assert (before, behind, again) == (("w1", []), (None, ["version_not_told"]), ("w2", []))


def process_of(site: Site) -> str | None:
    ref = site.proxy.wiring.pool.engines[0].ref
    return ref.facts.process if ref else None


def label(site: Site) -> tuple[str | None, list[str]]:
    """What a new call says of its weights."""
    client = site.rollout("told")
    assert client.chat(max_tokens=4).status_code == 200
    (segment,) = client.call()["segments"]
    return segment["weight_version"], segment["notes"]
