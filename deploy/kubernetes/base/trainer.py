"""The trainer's companion in a harness pod: opens the rollout, tells the harness its key, keeps what was recorded.

It is a sidecar that starts after Rollpin and before the harness. Kubernetes sends it SIGTERM when the harness has
ended, and ends Rollpin only after it. An example: a real trainer adds a reward, and reads into where it learns.
"""

import json
import os
import shlex
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

# Calls that the harness left behind end, or are cut, within the orphan grace and a commit.
SETTLE_S = 15
LOOK_EVERY_S = 0.5


class Trainer:
    """One rollout, from its opening to its records."""

    def __init__(self, control: httpx.Client, rollout_id: str) -> None:
        self._control = control
        self._rollout_id = rollout_id

    def open(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Open the rollout; again, after a restart of this container, gives the same answer."""
        body = {"rollout_id": self._rollout_id, **fields}
        key = {"idempotency-key": self._rollout_id}
        return self._answer(self._control.post("/rollouts", json=body, headers=key))

    def settle(self, stop_after_s: float) -> None:
        """Wait until every call has an outcome, or the time is over."""
        pause = threading.Event()
        for _ in range(int(stop_after_s / LOOK_EVERY_S)):
            if not self.rollout()["counts"]["reserved"]:
                return
            pause.wait(LOOK_EVERY_S)

    def finish(self) -> None:
        """No more calls. The place to PUT a reward as the rollout's outcome is before this."""
        self._answer(self._control.post(f"/rollouts/{self._rollout_id}/finish"))

    def rollout(self) -> dict[str, Any]:
        return self._answer(self._control.get(f"/rollouts/{self._rollout_id}"))

    def calls(self) -> Iterator[dict[str, Any]]:
        """Every call, page by page."""
        query: dict[str, Any] = {"limit": 100}
        while True:
            page = self._answer(self._control.get(f"/rollouts/{self._rollout_id}/calls", params=query))
            yield from page["calls"]
            if not page["cursor"]:
                return
            query["cursor"] = page["cursor"]

    def _answer(self, answer: httpx.Response) -> dict[str, Any]:
        if answer.is_error:
            raise SystemExit(f"Rollpin answered {answer.status_code}: {answer.text}")
        return dict(answer.json())


def hand_over(opened: dict[str, Any], folder: Path) -> None:
    """What the harness needs, as shell text; whole or not at all."""
    variables = {
        "OPENAI_BASE_URL": opened["base_url"],
        "OPENAI_API_KEY": opened["api_key"],
        "ANTHROPIC_BASE_URL": opened["anthropic_base_url"],
        "ANTHROPIC_API_KEY": opened["api_key"],
    }
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
    write_whole(folder / "env", "".join(lines))


def keep(trainer: Trainer, folder: Path, rollout_id: str) -> None:
    """The rollout and its calls, one JSON document a line."""
    documents = [trainer.rollout(), *trainer.calls()]
    write_whole(folder / f"{rollout_id}.jsonl", "".join(f"{json.dumps(document)}\n" for document in documents))


def write_whole(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)


def main() -> None:
    """Open, hand over, wait for the end of the harness, keep."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    rollout_id = os.environ["ROLLOUT_ID"]
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=os.environ["CONTROL_SOCKET"]),
        base_url="http://rollpin",
        headers={"authorization": f"Bearer {os.environ['ADMIN_TOKEN']}"},
        timeout=30,
    ) as control:
        trainer = Trainer(control, rollout_id)
        hand_over(trainer.open(json.loads(os.environ.get("ROLLOUT") or "{}")), Path(os.environ["HANDOVER"]))
        ended.wait()
        trainer.settle(SETTLE_S)
        trainer.finish()
        keep(trainer, Path(os.environ["RECORDS"]), rollout_id)


if __name__ == "__main__":
    main()
