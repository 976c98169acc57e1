"""Consistent hashing with bounded loads: laws over any loads and weights."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from proxy.engine.share import ALWAYS_ROOM, LOAD_FACTOR, Seat, choose_seat, has_room
from proxy.model import RolloutId

LOADS = st.lists(st.tuples(st.integers(0, 500), st.floats(0.1, 10)), min_size=1, max_size=8)


def seats_of(loads: list[tuple[int, float]]) -> list[Seat]:
    return [Seat(f"e{place}", f"http://e{place}:1", weight, load) for place, (load, weight) in enumerate(loads)]


@given(LOADS)
def test_one_engine_at_least_has_room(loads: list[tuple[int, float]]) -> None:
    """A bound that nobody meets would leave a call without an engine."""
    seats = seats_of(loads)

    assert any(has_room(seat, seats) for seat in seats)


@given(LOADS, st.text(), st.integers(0, 7))
def test_a_rollout_moves_only_when_its_engine_is_over_the_bound(
    loads: list[tuple[int, float]], name: str, home: int
) -> None:
    """And never to one that is."""
    seats = seats_of(loads)
    chosen = choose_seat(RolloutId(name), seats, f"e{home}")

    assert has_room(chosen, seats)
    stays = home < len(seats) and has_room(seats[home], seats)
    assert not stays or chosen.name == f"e{home}"


def test_no_engine_gets_far_over_its_share_however_the_names_fall() -> None:
    """4000 rollouts with one call each, weights 1, 1 and 2: within a quarter of what is theirs."""
    weights, loads = {"e0": 1.0, "e1": 1.0, "e2": 2.0}, Counter[str]()
    for number in range(4000):
        seats = [Seat(name, f"http://{name}:1", weight, loads[name]) for name, weight in weights.items()]
        loads[choose_seat(RolloutId(f"r{number}"), seats, None).name] += 1

    for name, weight in weights.items():
        assert loads[name] <= LOAD_FACTOR * 4000 * weight / 4 + 1
    assert loads["e2"] > 1.5 * loads["e0"]


def test_few_calls_never_make_a_rollout_move() -> None:
    """Where no engine feels the load its cache is worth more."""
    seats = [Seat("e0", "http://e0:1", 1, ALWAYS_ROOM - 1), Seat("e1", "http://e1:1", 1, 0)]

    assert choose_seat(RolloutId("r"), seats, "e0").name == "e0"


def test_an_engine_that_comes_takes_from_all_and_moves_nobody_else() -> None:
    """Preferences among those that were there stay what they were."""
    three = [Seat(f"e{place}", f"http://e{place}:1", 1, 0) for place in range(3)]
    four = [*three, Seat("e3", "http://e3:1", 1, 0)]
    moves = Counter[tuple[str, str]]()
    for number in range(2000):
        rollout = RolloutId(f"r{number}")
        moves[choose_seat(rollout, three, None).name, choose_seat(rollout, four, None).name] += 1

    assert all(now in {was, "e3"} for was, now in moves)
    assert sum(count for (_, now), count in moves.items() if now == "e3") > 400
