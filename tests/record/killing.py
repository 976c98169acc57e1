"""A recorder killed amid its work, and a store held against what that had acknowledged."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from proxy.model import CallId, RolloutId
from proxy.record.store import RolloutCounts, Store
from tests.record.recorder import CALLERS

ACKNOWLEDGED = 400
REPOSITORY = Path(__file__).parents[2]


def kill_amid_recording(url: str) -> list[str]:
    """What a recorder had acknowledged when it was killed."""
    command = [sys.executable, "-m", "tests.record.recorder", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as recorder:
        assert recorder.stdout
        told = [recorder.stdout.readline() for _ in range(ACKNOWLEDGED)]
        recorder.send_signal(signal.SIGKILL)
        return told + [line for line in recorder.stdout if line.endswith("\n")]


async def assert_kept(store: Store, told: Sequence[str]) -> list[RolloutCounts]:
    """Every acknowledged record is there, and nothing is left reserved; how each caller's rollout stands."""
    for line in told:
        call_id, number = line.split()
        document = await store.call(CallId(call_id))
        assert document is not None
        assert (document["state"], document["completion_token_ids"]) == ("done", [int(number)])
    counts = [await store.counts(RolloutId(f"r{n}")) for n in range(CALLERS)]
    assert sum(count.reserved for count in counts) == 0
    return counts
