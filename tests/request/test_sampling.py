"""The pin: every value that decides how tokens are drawn is the profile's, and what the client asked is on record."""

from dataclasses import replace
from typing import Any

import pytest

from proxy.engine.dialect import Dialect
from proxy.engine.pool import DIALECTS
from proxy.errors import BadAsk, PinViolated
from proxy.model import PINNED_FIELDS, Profile, Sampling
from proxy.request.sampling import KNOWN_FIELDS, PinRules, Room, asked_max_tokens, forces_tools, pin_sampling
from tests import make
from tests.request.forbidden import FORBIDDEN

Json = dict[str, Any]

EVERY_SHAPE = frozenset().union(*(dialect.shaping for dialect in DIALECTS.values()))
RULES = PinRules(strict=False, constrained="flag", refuse_unknown=False, shaping_understood=EVERY_SHAPE)
TRAIN = Profile("train")
OTHER_VALUES = {
    "temperature": 0.2,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
}
STRICT_TOOL = {"type": "function", "function": {"name": "add", "strict": True}}
PLAIN_TOOL = {"type": "function", "function": {"name": "add"}}
SHAPES: dict[str, Json] = {
    "response_format": {"response_format": {"type": "json_object"}},
    "structured_outputs": {"structured_outputs": {"regex": "a+"}},
    "regex": {"regex": "a+"},
    "ebnf": {"ebnf": "root ::= x"},
    "logit_bias": {"logit_bias": {"5": 1}},
    "bad_words": {"bad_words": ["x"]},
    "allowed_token_ids": {"allowed_token_ids": [1, 2]},
    "min_tokens": {"min_tokens": 3},
    "tool_choice": {"tool_choice": "required", "tools": [PLAIN_TOOL]},
    "tools.strict": {"tools": [PLAIN_TOOL, STRICT_TOOL]},
}
NAMED_CHOICE = {"type": "function", "function": {"name": "add"}}
NEUTRAL_SHAPES: list[Json] = [
    {"response_format": None},
    {"response_format": {"type": "text"}},
    {"structured_outputs": {}},
    {"regex": ""},
    {"logit_bias": {}},
    {"logit_bias": None},
    {"bad_words": []},
    {"allowed_token_ids": []},
    {"min_tokens": 0},
    {"tool_choice": "auto"},
    {"tool_choice": "none"},
    {"tool_choice": None},
    {"tools": [PLAIN_TOOL]},
    {"tools": [{"type": "function", "function": {"name": "add", "strict": False}}]},
]


def pin(room: Room = Room(), profile: Profile = TRAIN, rules: PinRules = RULES, **body: Any) -> Sampling:  # noqa: B008
    return pin_sampling({"messages": [make.user()], **body}, profile, rules, room)


def sent(kind: str, sampling: Sampling, body: Json) -> Json:
    """What the dialect would send to an engine."""
    dialect: Dialect = DIALECTS[kind]  # type: ignore[index]
    return dialect.encode(make.plan(make.ask(body=body), sampling=sampling)).body


@pytest.mark.parametrize("field", PINNED_FIELDS)
def test_override_replaces_and_records(field: str) -> None:
    """The harness asks, the profile decides, both are on record."""
    pinned = pin(**{field: OTHER_VALUES[field]})

    assert pinned.effective == TRAIN.pinned()
    assert (pinned.overridden, pinned.asked) == ((field,), {field: OTHER_VALUES[field]})


@pytest.mark.parametrize("field", PINNED_FIELDS)
def test_strict_refuses_naming_field_asked_and_allowed(field: str) -> None:
    """The client learns what it may send."""
    with pytest.raises(PinViolated) as refused:
        pin(rules=replace(RULES, strict=True), **{field: OTHER_VALUES[field]})

    assert refused.value.param == field
    assert repr(OTHER_VALUES[field]) in refused.value.message
    assert repr(TRAIN.pinned()[field]) in refused.value.message


@pytest.mark.parametrize("field", PINNED_FIELDS)
def test_strict_accepts_the_allowed_value_in_either_number_form(field: str) -> None:
    """1 and 1.0 are one value; null says nothing."""
    allowed = TRAIN.pinned()[field]

    assert pin(rules=replace(RULES, strict=True), **{field: int(allowed)}).overridden == ()
    assert pin(rules=replace(RULES, strict=True), **{field: None}).asked == {}


@pytest.mark.parametrize("field", PINNED_FIELDS)
@pytest.mark.parametrize("value", [True, "1", [1], {}])
def test_a_pinned_field_must_be_a_number(field: str, value: object) -> None:
    """A wrong type is refused by name, though the value would be replaced."""
    with pytest.raises(BadAsk) as refused:
        pin(**{field: value})

    assert refused.value.param == field


def test_fields_the_client_leaves_out_are_sent_all_the_same() -> None:
    """What is left out comes from the model's generation_config."""
    assert set(pin().effective) == set(PINNED_FIELDS)


def test_the_profiles_own_values_are_sent() -> None:
    """The pin is the profile, not the neutral set."""
    cooler = replace(TRAIN, temperature=0.6, top_k=40)

    assert pin(profile=cooler, temperature=0.6).effective == cooler.pinned()


@pytest.mark.parametrize(
    ("asked", "cap", "room", "limit"),
    [
        ({}, None, None, None),
        ({}, None, 50, None),
        ({}, 40, None, 40),
        ({}, 40, 30, 30),
        ({"max_tokens": 10}, None, None, 10),
        ({"max_tokens": 10}, 40, 30, 10),
        ({"max_tokens": 100}, 40, None, 40),
        ({"max_tokens": 100}, None, 30, 30),
        ({"max_completion_tokens": 20, "max_tokens": 10}, None, None, 20),
        ({"max_completion_tokens": None, "max_tokens": 10}, None, None, 10),
        ({"max_tokens": None}, None, None, None),
    ],
)
def test_length_is_the_least_of_asked_cap_and_room(
    asked: Json, cap: int | None, room: int | None, limit: int | None
) -> None:
    """Caps and clamps; without any limit the engine uses the rest of the context."""
    pinned = pin(Room(context=room), replace(TRAIN, max_tokens_cap=cap), **asked)

    assert pinned.max_tokens == limit
    assert pinned.asked == {name: value for name, value in asked.items() if value is not None}


@pytest.mark.parametrize(
    ("asked", "budget", "limit"),
    [({}, 7, 7), ({"max_tokens": 5}, 7, 5), ({"max_tokens": 9}, 7, 7), ({"max_tokens": 9}, 0, 0)],
)
def test_a_rollouts_budget_bounds_a_reply(asked: Json, budget: int, limit: int) -> None:
    """Nothing is left at 0: the reply ends before its first token."""
    assert pin(Room(budget=budget), **asked).max_tokens == limit


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, "many", 1.5, True, [1]])
def test_a_length_must_be_a_whole_number_above_zero(field: str, value: object) -> None:
    """The caller's mistake is told as the caller's."""
    with pytest.raises(BadAsk) as refused:
        asked_max_tokens({field: value})

    assert refused.value.param == field


@pytest.mark.parametrize(
    ("stop", "sent_as"), [("x", ["x"]), (["x", "y"], ["x", "y"]), ([], None), ("", None), (None, None)]
)
def test_stops_are_passed(stop: object, sent_as: object) -> None:
    """Stop strings end a reply; they do not bend the distribution."""
    pinned = pin(stop=stop, stop_token_ids=[7])

    assert pinned.length == {"stop_token_ids": [7]} | ({"stop": sent_as} if sent_as else {})
    assert pinned.constrained == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [("stop", 5), ("stop", [""]), ("stop", [1]), ("stop_token_ids", "x"), ("stop_token_ids", [-1]),
     ("stop_token_ids", [True]), ("stop_token_ids", [1.5]), ("stop_token_ids", 5)],
)  # fmt: skip
def test_stops_of_another_type_are_refused(field: str, value: object) -> None:
    """Before an engine is asked."""
    with pytest.raises(BadAsk) as refused:
        pin(**{field: value})

    assert refused.value.param == field


@pytest.mark.parametrize("name", SHAPES)
def test_flag_passes_a_shaping_field_and_marks_the_call(name: str) -> None:
    """Such tokens are no plain samples of the policy."""
    pinned = pin(**SHAPES[name])

    assert pinned.constrained == (name,)
    assert pinned.shaping == ({} if name == "tools.strict" else {name: SHAPES[name][name]})
    assert pinned.ignored == ()


@pytest.mark.parametrize("name", SHAPES)
def test_drop_keeps_a_shaping_field_from_the_engine(name: str) -> None:
    """Recorded as ignored, and the call stays plain."""
    pinned = pin(rules=replace(RULES, constrained="drop"), **SHAPES[name])

    assert (pinned.constrained, pinned.shaping, pinned.ignored) == ((), {}, (name,))


@pytest.mark.parametrize("name", SHAPES)
def test_refuse_refuses_a_shaping_field_by_name(name: str) -> None:
    """For runs that must not hold a single constrained token."""
    with pytest.raises(BadAsk) as refused:
        pin(rules=replace(RULES, constrained="refuse"), **SHAPES[name])

    assert refused.value.param == name


@pytest.mark.parametrize("body", NEUTRAL_SHAPES, ids=str)
@pytest.mark.parametrize("action", ["flag", "drop", "refuse"])
def test_a_shape_that_changes_nothing_is_no_constraint(body: Json, action: Any) -> None:
    """Clients send defaults; a call is not lost for training over one."""
    pinned = pin(rules=replace(RULES, constrained=action), **body)

    assert (pinned.constrained, pinned.shaping, pinned.ignored) == ((), {}, ())


@pytest.mark.parametrize("kind", DIALECTS)
@pytest.mark.parametrize("name", [name for name in SHAPES if name not in {"tool_choice", "tools.strict"}])
def test_a_shape_that_an_engine_ignores_is_not_called_a_constraint(kind: str, name: str) -> None:
    """What the engine at hand does not act on is recorded as ignored."""
    understood = DIALECTS[kind].shaping  # type: ignore[index]
    pinned = pin(rules=replace(RULES, shaping_understood=understood), **SHAPES[name])

    assert (pinned.constrained, pinned.ignored) == (((name,), ()) if name in understood else ((), (name,)))


@pytest.mark.parametrize(
    ("choice", "forces"), [(None, False), ("auto", False), ("none", False), ("required", True), (NAMED_CHOICE, True)]
)
def test_only_a_forcing_tool_choice_constrains(choice: object, *, forces: bool) -> None:
    """`auto` and `none` leave the distribution alone."""
    assert forces_tools(choice) == forces


@pytest.mark.parametrize("kind", DIALECTS)
def test_no_forbidden_field_is_ever_sent(kind: str) -> None:
    """Contract 5: all of them at once, under the most permissive settings."""
    body = {**FORBIDDEN, "model": "policy:adapter"}
    pinned = pin(**body)
    built = sent(kind, pinned, body)

    own = {"rid"} if kind == "sglang" else set()
    assert set(built) & set(FORBIDDEN) == own
    assert built.get("rid") != "mine"
    assert built["model"] != "policy:adapter"
    assert set(pinned.ignored) == set(FORBIDDEN)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_refuse_names_an_unknown_field(name: str) -> None:
    """`unknown_fields = refuse` tells instead of dropping."""
    with pytest.raises(BadAsk) as refused:
        pin(rules=replace(RULES, refuse_unknown=True), **{name: FORBIDDEN[name]})

    assert (refused.value.code, refused.value.param) == ("unknown_field", name)


def test_a_null_is_no_field() -> None:
    """SDKs send nulls for what was not set."""
    assert pin(rules=replace(RULES, refuse_unknown=True), priority=None).ignored == ()


def test_no_forbidden_field_is_known() -> None:
    """The allow-list and the list of the forbidden do not meet."""
    assert not KNOWN_FIELDS & set(FORBIDDEN)


def test_asked_holds_the_seed_and_the_choice_but_not_the_conversation() -> None:
    """The record tells what the client said of drawing."""
    body = {"seed": 3, "n": 1, "tool_choice": "auto", "stop": "x", "min_tokens": 0, "user": "u"}

    assert pin(**body).asked == {name: value for name, value in body.items() if name != "user"}
