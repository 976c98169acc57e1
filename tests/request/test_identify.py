"""Who is calling: by path, else by key, else by a trusted header; a name alone opens nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import BadAsk, WrongKey
from proxy.keys import Keys
from proxy.model import RolloutId
from proxy.request.identify import (
    LANE_HEADERS,
    Caller,
    authorise,
    check_rollout_id,
    identify,
    lane_signals,
    presented_key,
    retry_count,
)

KEYS = Keys("admin", "read", "secret")
BY_KEY = {"authorization": f"Bearer {KEYS.rollout_key(RolloutId('by-key'))}"}
BY_HEADER = {"x-rollout-id": "by-header"}


@pytest.mark.parametrize(
    ("path_id", "headers", "trust", "named"),
    [
        ("by-path", BY_KEY | BY_HEADER, True, "by-path"),
        (None, BY_KEY | BY_HEADER, True, "by-key"),
        (None, BY_HEADER, True, "by-header"),
        (None, BY_HEADER | {"x-api-key": "a-foreign-key"}, True, "by-header"),
    ],
)
def test_the_path_comes_before_the_key_before_the_header(
    path_id: str | None,
    headers: dict[str, str],
    *,
    trust: bool,
    named: str,
) -> None:
    """One order of precedence, the same for every route."""
    assert identify(headers, path_id, trust_header=trust).rollout_id == named


@pytest.mark.parametrize("headers", [{}, BY_HEADER, BY_HEADER | {"authorization": "Bearer sk-foreign"}])
def test_without_a_name_there_is_no_rollout(headers: dict[str, str]) -> None:
    """Nothing lands in a default session; an untrusted header names nothing."""
    with pytest.raises(WrongKey, match="no rollout"):
        identify(headers, None, trust_header=False)


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, None),
        ({"authorization": "Bearer k"}, "k"),
        ({"authorization": "bearer  k "}, "k"),
        ({"x-api-key": "k"}, "k"),
        ({"authorization": "Bearer a", "x-api-key": "b"}, "a"),
        ({"authorization": "Basic a", "x-api-key": "b"}, "b"),
        ({"authorization": "Bearer ", "x-api-key": "b"}, "b"),
        ({"authorization": "Bearer"}, None),
        ({"x-api-key": ""}, None),
    ],
)
def test_a_key_comes_as_bearer_or_x_api_key(headers: dict[str, str], key: str | None) -> None:
    """OpenAI's and Anthropic's clients each have their own way."""
    assert presented_key(headers) == key


@pytest.mark.parametrize("rollout_id", ["a", "A-1", "gsm8k-17.s0:a1", "a" * 200, "x~y=z+w@v", "0_1", "rk-1", "a..b"])
def test_these_can_be_rollout_ids(rollout_id: str) -> None:
    """Whatever is safe in a URL path as it stands."""
    assert check_rollout_id(rollout_id) == rollout_id


@pytest.mark.parametrize(
    "rollout_id",
    ["", ".", "..", "-a", "a b", "a/b", "a%2Fb", "a\n", "a\x00", "é", "a" * 201, "a?b", "a#b", "\u0661", " a", "a\\b"],
)
def test_these_cannot(rollout_id: str) -> None:
    """The rule is told, with the field."""
    with pytest.raises(BadAsk) as refused:
        check_rollout_id(rollout_id)

    assert (refused.value.code, refused.value.param) == ("invalid_rollout_id", "rollout_id")


def test_the_rollouts_own_key_opens_it() -> None:
    """No exception, no answer."""
    assert authorise(Caller(RolloutId("r"), KEYS.rollout_key(RolloutId("r"))), KEYS) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("key", [None, "", "rk-r-", "admin", "read", KEYS.rollout_key(RolloutId("r2"))])
def test_no_other_key_does(key: str | None) -> None:
    """A name never authorises; another rollout's key and the control tokens are as good as none."""
    with pytest.raises(WrongKey):
        authorise(Caller(RolloutId("r"), key), KEYS)


def test_lane_signals_are_known_headers_cut_to_length() -> None:
    """Recorded as they come, and nothing else with them."""
    headers = dict.fromkeys(LANE_HEADERS, "x" * 500) | {"authorization": "Bearer k", "x-session-id": ""}
    signals = lane_signals(headers)

    assert set(signals) == set(LANE_HEADERS) - {"x-session-id"}
    assert {len(value) for value in signals.values()} == {200}


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("2", 2), ("999", 999), ("1000", 0), ("", 0), ("-1", 0), ("x", 0), ("²", 0), ("1.5", 0)],
)
def test_a_retry_count_is_a_small_number_or_none(text: str, count: int) -> None:
    """A header that is no number is no reason to fail."""
    assert retry_count({"x-stainless-retry-count": text}) == count
    assert retry_count({}) == 0


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:~=+@-]{0,60}", fullmatch=True))
def test_every_possible_id_is_named_by_its_own_key(rollout_id: str) -> None:
    """Ids may hold hyphens: the key is split at the last one."""
    key = KEYS.rollout_key(check_rollout_id(rollout_id))

    assert identify({"x-api-key": key}, None, trust_header=False) == Caller(RolloutId(rollout_id), key)
