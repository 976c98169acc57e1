"""What exact prefixes cost, and whether a turn's cost grows with the conversation.

    .venv/bin/python -m bench.supply [--turns 60] [--rounds 3]

One conversation of tool calls to a simulated engine (byte tokens, so prompts are long), in two arms that take turns:
with the prefix supplied, and with the engine left to render. Told are the median time of a turn, early and late, and
the ratios between them; and how much the store grew for each turn, early and late.
"""

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from bench.overhead import ADMIN, free_port, process, wait_for

RESULT = "a line of output, as tools print them\n" * 15
TURN_TOKENS = 24
CONTEXT = 2_000_000
# The template's part of a growing conversation is compared between its first and its last so many turns.
SHARE = 4


def new_rollout(proxy: str, profile: str) -> tuple[str, dict[str, str]]:
    asked = {"profile": profile}
    headers = {"authorization": f"Bearer {ADMIN}"}
    created = httpx.post(f"{proxy}/rollouts", json=asked, headers=headers, timeout=30).json()
    return f"{created['base_url']}/chat/completions", {"authorization": f"Bearer {created['api_key']}"}


def conversation(proxy: str, profile: str, turns: int, store: Path) -> tuple[list[float], list[int]]:
    """Seconds and bytes of store of each turn."""
    url, headers = new_rollout(proxy, profile)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    seconds, sizes = list[float](), [size_of(store)]
    with httpx.Client(headers=headers, timeout=60) as client:
        for number in range(turns):
            started = time.perf_counter()
            answer = client.post(url, json={"messages": messages, "max_tokens": TURN_TOKENS})
            seconds.append(time.perf_counter() - started)
            answer.raise_for_status()
            said = answer.json()["choices"][0]["message"]
            told = {"role": "assistant", "content": said["content"] or "."}
            messages += [told, {"role": "user", "content": f"{number}: {RESULT}"}]
            sizes.append(size_of(store))
    return seconds, [later - earlier for earlier, later in itertools.pairwise(sizes)]


def size_of(store: Path) -> int:
    return sum(file.stat().st_size for file in store.parent.glob(f"{store.name}*"))


def report(proxy: str, store: Path, arguments: argparse.Namespace) -> None:
    part = arguments.turns // SHARE
    ratios = []
    for number in range(arguments.rounds):
        medians = {}
        for profile in ("train", "bare"):
            seconds, grown = conversation(proxy, profile, arguments.turns, store)
            early, late = (statistics.median(some) * 1000 for some in (seconds[1:part], seconds[-part:]))
            kept_early, kept_late = (sum(some) / part / 1000 for some in (grown[1 : part + 1], grown[-part:]))
            medians[profile] = late
            print(
                f"round {number}, {'supplied' if profile == 'train' else 'rendered'}: "
                f"a turn takes {early:.0f} ms early, {late:.0f} ms late, ratio {late / early:.2f}; "
                f"the store grows {kept_early:.0f} kB a turn early, {kept_late:.0f} kB late"
            )
        ratios.append(medians["train"] / medians["bare"])
    print(f"late turns, supplied against rendered: median ratio {statistics.median(ratios):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    engine_port, proxy_port, store = free_port(), free_port(), Path(tempfile.mkdtemp()) / "bench.db"
    engine, proxy = f"http://127.0.0.1:{engine_port}", f"http://127.0.0.1:{proxy_port}"
    environment = {
        "ROLLPIN_ENGINES": engine,
        "ROLLPIN_PORT": str(proxy_port),
        "ROLLPIN_STORE": f"sqlite:///{store}",
        "ROLLPIN_SECRETS_FILE": str(store.parent / "secrets.json"),
        "ROLLPIN_ADMIN_TOKEN": ADMIN,
        "ROLLPIN_DURABILITY": "wal",
        "ROLLPIN_PROFILES__BARE__PREFIX_SUPPLY": "false",
    }
    sim = ("-m", "proxy", "sim", "--kind", "vllm", "--port", str(engine_port), "--max-model-len", str(CONTEXT))
    with process(sys.executable, *sim, **os.environ):
        wait_for(f"{engine}/v1/models")
        with process(sys.executable, "-m", "proxy", "serve", **environment):
            wait_for(f"{proxy}/readyz")
            report(proxy, store, arguments)


if __name__ == "__main__":
    main()
