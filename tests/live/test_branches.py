"""The worked example of trajectories on real engines: lanes, choices, a title call, and why each is where it is."""

from tests.live.harness import Site, Tell
from tests.live.speaking import NO_THINKING
from tests.trajectory.example import check_example, play


def test_the_worked_example_holds_on_a_real_engine(site: Site, tell: Tell) -> None:
    """Random weights say what they say; every call stands where it belongs, and only refused prefixes break a row."""
    rollout = site.rollout("branches")
    play(rollout, max_tokens=24, **NO_THINKING)
    calls = rollout.calls()
    control = site.proxy.control
    trajectory = control.get(f"/rollouts/{rollout.rollout_id}/trajectory").json()
    why = control.get(f"/rollouts/{rollout.rollout_id}/why").json()
    found = {call["call_id"]: call for call in why["calls"]}
    health = trajectory["health"]
    rows = [len(branch["owned_call_ids"]) for branch in trajectory["branches"]]
    prefixes = f"{health['prefix_supplied']} of {health['prefix_eligible']} prefixes supplied"
    tell(f"{site.kind}: branches of {rows} calls, {health['trained_tokens']} tokens trained on, {prefixes}")

    check_example(trajectory, calls)
    for branch in trajectory["branches"]:
        for link in branch["links"]:
            if link["reason"] == "not_extending":
                assert {one["what"] for one in found[link["call_id"]]["findings"]} == {"fork", "prefix"}
    for call in why["calls"]:
        if call["difference"] and call["difference"]["differs"]:
            assert call["difference"]["texts_by"]
            sides = [*call["difference"]["parent"], *call["difference"]["prompt"]]
            assert all(isinstance(one["text"], str) for one in sides)


def test_a_conversation_without_supply_tells_where_it_parts(site: Site) -> None:
    """The validation profile supplies nothing: the tokens of both sides are told by the engine itself."""
    rollout = site.rollout("parted", profile="validation")
    said = rollout.chat("import os", max_tokens=40, **NO_THINKING).json()["choices"][0]["message"]
    messages = [{"role": "user", "content": "import os"}, said, {"role": "user", "content": "go on"}]
    body = {"model": "policy", "messages": messages, "max_tokens": 8, **NO_THINKING}
    assert rollout.post(body).status_code == 200
    second = rollout.calls()[1]
    why = site.proxy.control.get(f"/rollouts/{rollout.rollout_id}/why", params={"call": second["call_id"]}).json()

    (call,) = why["calls"]
    assert [one["reason"] for one in call["findings"]][-1] == "off_in_profile"
    difference = call["difference"]
    assert (difference["differs"], difference["texts_by"]) == (True, "engine-0")
    assert all(isinstance(one["text"], str) for side in ("parent", "prompt") for one in difference[side])
    # The empty thought of the generation prompt never comes back in a later render.
    (parted,) = [one["text"] for one in difference["parent"] if one["place"] == difference["shared"]]
    assert parted == "<think>"
