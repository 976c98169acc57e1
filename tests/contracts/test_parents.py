"""What every store promises about the calls that a request could go on from, and about their tokens."""

from collections.abc import Sequence

import pytest

from proxy.model import Completion, JsonObject, ParentSearch, Plan
from proxy.record.store import Store
from tests import make
from tests.contracts.harness import BROKEN, Harness

pytestmark = pytest.mark.anyio

TALK = (make.user(), make.assistant(), make.user("and 3+3?"))
UNCAPTURED = make.completion(capture_gaps=("no logprobs",))


async def answered(harness: Harness, reply: Completion | None = None, *talk: JsonObject, **changes: object) -> Plan:
    """A call on record; by default to the first question."""
    asked = await harness.ask(*(talk or TALK[:1]), **changes)
    await harness.reply(asked, reply)
    await harness.end(asked)
    return asked.plans[0]


async def search(harness: Harness, *talk: JsonObject, call_ids: Sequence[str] = ()) -> ParentSearch:
    """What a request of these messages could go on from, where the last but one tells a reply."""
    ask = make.ask(*(talk or TALK), of=harness.rollout)
    chain = ask.conversation.history
    return await harness.store.find_parents(harness.rollout.rollout_id, ask.conversation, [chain[-3]], call_ids)


async def test_a_call_is_found_by_what_it_answered(harness: Harness) -> None:
    """With its reply as the client got it."""
    planned = await answered(harness)
    found = await search(harness)

    assert [(one.call_id, one.message, one.is_delivered) for one in found.candidates] == [
        (planned.call_id, make.assistant(), True)
    ]
    assert found.candidates[0].history == planned.ask.conversation.history[-1]
    assert found.knows_history


async def test_candidates_come_in_the_order_of_their_asking(harness: Harness) -> None:
    """The earliest first, whichever was answered first."""
    plans = [await harness.ask(TALK[0]) for _ in range(3)]
    for asked in reversed(plans):
        await harness.reply(asked)

    assert [one.call_id for one in (await search(harness)).candidates] == [asked.call_ids[0] for asked in plans]
    assert not any(one.is_delivered for one in (await search(harness)).candidates)


async def test_calls_with_the_same_ids_are_told(harness: Harness) -> None:
    """Prompt and reply must agree, each for itself."""
    replies = (((1, 2), (3, 4)), ((1, 2), (3, 4)), ((1,), (2, 3, 4)), ((1, 2), (3, 5)))
    for prompt, said in replies:
        await answered(harness, make.completion(prompt, said))
    hashes = [one.ids_hash for one in (await search(harness)).candidates]

    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


@pytest.mark.parametrize("reply", [UNCAPTURED, make.completion((), ())])
async def test_a_call_without_whole_ids_is_like_no_other(harness: Harness, reply: Completion) -> None:
    """What is missing cannot be equal."""
    for _ in range(2):
        await answered(harness, reply)
    first, second = (await search(harness)).candidates

    assert first.ids_hash != second.ids_hash


async def test_what_did_not_come_to_its_end_is_no_candidate(harness: Harness) -> None:
    """A call that runs, and one that failed; both are known to have been asked."""
    await harness.ask(TALK[0])
    failed = await harness.ask(TALK[0])
    await harness.fail(failed, BROKEN)
    found = await search(harness)

    assert found.candidates == ()
    assert found.knows_history


@pytest.mark.parametrize("body", [{"tools": [{"type": "function"}]}, {"reasoning_effort": "low"}])
async def test_other_tools_or_template_arguments_are_another_conversation(harness: Harness, body: JsonObject) -> None:
    """Their prompt differs from its start."""
    asked = make.plan(make.ask(TALK[0], of=harness.rollout, body=body))
    await harness.store.reserve(make.reservation(asked))
    await harness.store.record([make.call(asked)])
    found = await search(harness)

    assert found.candidates == ()
    assert found.knows_history


async def test_a_conversation_that_was_never_asked_is_foreign(harness: Harness) -> None:
    """No beginning of it is known; the whole of it does not count, since that is the request itself."""
    await answered(harness, None, make.user("something else"))
    await answered(harness, None, *TALK)

    assert await search(harness) == ParentSearch()


async def test_any_known_beginning_is_known(harness: Harness) -> None:
    """Also where nothing answered what stands before the last reply."""
    await answered(harness)
    found = await search(harness, *TALK, make.assistant("6"), make.user("and 4+4?"))

    assert found == ParentSearch(knows_history=True)


async def test_another_rollouts_calls_are_never_found(harness: Harness, store: Store) -> None:
    """Nor its tool calls."""
    (other,) = await store.create_rollouts([make.rollout("r2")])
    await answered(Harness(store, other), told("call-1", "engine-1"))

    assert await search(harness, call_ids=["call-1"]) == ParentSearch()


async def test_echoed_tool_calls_are_told_in_the_engines_words(harness: Harness) -> None:
    """Those of any call of the rollout; what nobody said has none."""
    await answered(harness, told("call-1", "engine-1"))
    await answered(harness, told("call-2", "engine-2"), make.user("elsewhere"))
    found = await search(harness, call_ids=["call-2", "made-up", "call-1"])

    assert found.engine_call_ids == {"call-1": "engine-1", "call-2": "engine-2"}


async def test_without_an_earlier_reply_nothing_is_looked_for(harness: Harness) -> None:
    """A first turn goes on from nothing."""
    await answered(harness)
    ask = make.ask(TALK[0], of=harness.rollout)

    assert await harness.store.find_parents(harness.rollout.rollout_id, ask.conversation, ()) == ParentSearch()


def told(client_id: str, engine_id: str) -> Completion:
    """A reply that calls a tool."""
    call: JsonObject = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    return make.completion(
        message=make.assistant() | {"tool_calls": [call | {"id": client_id}]},
        engine_message=make.assistant() | {"tool_calls": [call | {"id": engine_id}]},
    )
