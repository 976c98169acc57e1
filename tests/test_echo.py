"""What the client will echo: its own names, and tool-call ids that a rerun shows again."""

import pytest

from proxy.echo import client_message, tool_call_id
from proxy.model import Plan, Seed
from tests import make

ENGINES_CALL = {"id": "chatcmpl-tool-5f", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def planned(occurrence: int = 0, choice: int = 0, text: str = "add", **who: object) -> Plan:
    asked = make.ask(make.user(text), of=make.rollout(**({"group": "g"} | who)))
    return make.plan(asked, seed=Seed(1, "minted", occurrence, choice))


def test_an_id_looks_like_any_other() -> None:
    """Harnesses check the form."""
    number = tool_call_id(planned(), 0).removeprefix("call_")

    assert len(number) == 24
    assert int(number, 16)


def test_a_rerun_shows_the_same_ids() -> None:
    """Neither the rollout's name, nor the run, nor the call's own id enters."""
    first, rerun = planned(rollout_id="r1", run="monday"), planned(rollout_id="r2", run="tuesday")

    assert tool_call_id(first, 1) == tool_call_id(rerun, 1)


@pytest.mark.parametrize(
    "other",
    [
        planned(sample=1),
        planned(attempt=1),
        planned(group="h"),
        planned(text="subtract"),
        planned(occurrence=1),
        planned(choice=1),
    ],
    ids=["sample", "attempt", "group", "conversation", "occurrence", "choice"],
)
def test_other_draws_have_other_ids(other: Plan) -> None:
    """Parallel sub-agents with equal later turns must not share one."""
    assert tool_call_id(other, 0) != tool_call_id(planned(), 0)


def test_the_calls_of_one_reply_have_ids_of_their_own() -> None:
    """By their place in it."""
    assert len({tool_call_id(planned(), index) for index in range(10)}) == 10


def test_the_clients_message_has_its_names_and_the_derived_ids() -> None:
    """And the engine's message stays as it was."""
    plan = planned()
    said = {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [ENGINES_CALL]}

    assert client_message(said, plan, "thoughts") == {
        "role": "assistant",
        "content": None,
        "thoughts": "hm",
        "tool_calls": [ENGINES_CALL | {"id": tool_call_id(plan, 0)}],
    }
    assert said["tool_calls"] == [ENGINES_CALL]
    assert ENGINES_CALL["id"] == "chatcmpl-tool-5f"
