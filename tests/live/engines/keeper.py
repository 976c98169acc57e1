"""Stands between a test run and an engine, so that the engine never outlives the run, however that ends.

Run as `python keeper.py OWNER_PID LOG COMMAND...`; prints the engine's process id. It ends the engine's whole
process group on SIGTERM, when the owner is gone, and when the engine's first process ends.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

# How often the keeper looks around.
LOOK_EVERY_S = 0.2
# How long an engine may take over an orderly end before its group is killed, and its group over that.
GRACE_S = 10.0


def keep(owner: int, log: str, command: list[str]) -> int:
    """Start the command and hold it until it, its owner or our welcome ends."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    with Path(log).open("wb") as sink:
        engine = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True)
    print(engine.pid, flush=True)
    while engine.poll() is None and os.getppid() == owner and not asked:
        time.sleep(LOOK_EVERY_S)
    end_group(engine)
    return engine.returncode


def end_group(engine: subprocess.Popen[bytes]) -> None:
    """Ask the engine's first process to end, then kill whatever is left of its group and see it gone."""
    engine.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        engine.wait(GRACE_S)
    give_up_at = time.monotonic() + GRACE_S
    while kill_group(engine.pid) and time.monotonic() < give_up_at:
        engine.poll()
        time.sleep(LOOK_EVERY_S / 4)


def kill_group(leader: int) -> bool:
    """Kill the group, and tell whether anything was left to kill."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
