"""What the replay tests share: asking the route, and reading its lines."""

import json
from dataclasses import dataclass
from typing import Any

from tests.served import ServedProxy

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Told:
    """The lines of one reply."""

    head: Json
    verdicts: list[Json]
    summary: Json

    @property
    def words(self) -> list[str]:
        return [verdict["verdict"] for verdict in self.verdicts]

    @property
    def verdict(self) -> Json:
        """The one that there is."""
        (verdict,) = self.verdicts
        return verdict


def rescore(proxy: ServedProxy, rollout_id: str, **asked: Any) -> tuple[list[Json], Json]:
    """Rescore a rollout by its route: what is told of each call, and the summary."""
    answer = proxy.control.post(f"/rollouts/{rollout_id}/rescore", json=asked)
    assert answer.status_code == 200, answer.text
    _head, *told, last = [json.loads(line) for line in answer.text.splitlines()]
    return [line["rescore"] for line in told], last["summary"]


def replay(proxy: ServedProxy, rollout_id: str, **asked: Any) -> Told:
    """Replay a rollout by its route."""
    answer = proxy.control.post(f"/rollouts/{rollout_id}/replay", json=asked)
    assert answer.status_code == 200, answer.text
    head, *told, last = [json.loads(line) for line in answer.text.splitlines()]
    return Told(head, [line["verdict"] for line in told], last["summary"])
