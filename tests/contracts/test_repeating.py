"""Which earlier request an identical one repeats, and what becomes of requests for several choices."""

import asyncio
from dataclasses import replace

import pytest

from proxy.errors import LimitReached, RolloutClosed, TakenOver
from proxy.model import Claimed, DeliveryOutcome, JsonObject, Outcome
from proxy.record.store import Store
from tests import make
from tests.contracts.conftest import Reopen
from tests.contracts.harness import BROKEN, UNHEARD, Harness, calls_of

pytestmark = pytest.mark.anyio

LAPSED = make.STARTED_AT + 1000


class TestLosses:
    """A failure, or a client that left, is made good by the next identical request."""

    @pytest.mark.parametrize("failure", [BROKEN, UNHEARD, make.failure("engine_refused", may_retry=False)])
    async def test_a_failed_draw_is_tried_again(self, harness: Harness, failure: Outcome) -> None:
        """The same call, occurrence and seed; no row more."""
        first = await harness.ask()
        await harness.record(first, failure)
        again = await harness.ask()

        assert (again.claim.standing, again.claim.reason) == ("again", "failed")
        assert again.call_ids == first.call_ids
        assert (again.claim.occurrence, again.claim.seeds) == (0, first.answer.seeds)
        assert len(await harness.documents()) == 1

    async def test_a_draw_that_is_tried_again_is_reserved_as_if_for_the_first_time(self, harness: Harness) -> None:
        """Nothing of the failed try stands where the new one's outcome belongs; what went wrong is kept."""
        await harness.record(await harness.ask(), BROKEN)
        failed = await harness.document()
        await harness.ask()

        again = await harness.document()
        assert again["state"] == "reserved"
        for name in ("failure", "message", "finish_reason", "prompt_token_ids", "completion_token_ids", "logprobs"):
            assert again[name] is None, name
        assert again["earlier_failures"] == [failed["failure"]]
        assert (await harness.store.counts(harness.rollout.rollout_id)).completion_tokens == 0

    async def test_a_reply_at_the_second_try_is_the_calls(self, harness: Harness) -> None:
        """As if nothing had happened, but for the account of it."""
        await harness.fail(await harness.ask())
        again = await harness.ask()
        await harness.reply(again)
        await harness.end(again)

        document = await harness.document()
        assert (document["state"], document["failure"]) == ("done", None)
        assert document["completion_token_ids"] == [*make.ANSWER, make.END]
        assert [failure["kind"] for failure in document["earlier_failures"]] == ["engine_unreachable"]
        assert [one["claim"] for one in document["deliveries"]] == [None, "failed"]

    async def test_a_proxy_that_dies_in_a_second_try_leaves_nothing_of_the_first(
        self, harness: Harness, store: Store
    ) -> None:
        """Tokens of one try never stand beside the failure of another."""
        await harness.record(await harness.ask(), BROKEN)
        await harness.ask()
        await store.sweep(LAPSED)

        document = await harness.document()
        assert (document["failure"]["kind"], document["completion_token_ids"]) == ("proxy_died", None)

    @pytest.mark.parametrize("outcome", ["client_gone", "broken"])
    async def test_a_reply_whose_client_did_not_get_the_end_is_given_to_the_next(
        self, harness: Harness, outcome: DeliveryOutcome
    ) -> None:
        """Out of the record, without another row."""
        first = await harness.ask()
        await harness.reply(first)
        await harness.end(first, outcome)
        next_one = await harness.ask()

        assert (next_one.claim.standing, next_one.claim.reason) == ("recorded", "client_gone")
        assert next_one.call_ids == first.call_ids

    async def test_a_reply_whose_client_left_early_is_joined(self, harness: Harness) -> None:
        """It is still growing."""
        first = await harness.ask()
        await harness.leave(first)
        next_one = await harness.ask()

        assert (next_one.claim.standing, next_one.claim.reason) == ("running", "client_gone")

    async def test_a_client_that_left_before_the_end_is_known_after_it(self, harness: Harness) -> None:
        """The record does not wipe out that nobody got it."""
        first = await harness.ask()
        await harness.leave(first)
        await harness.reply(first)

        assert (await harness.ask()).claim.standing == "recorded"

    async def test_a_call_that_was_cut_because_its_client_left_is_tried_again(self, harness: Harness) -> None:
        """Leaving and its consequence are one loss."""
        first = await harness.ask()
        await harness.leave(first)
        await harness.record(first, make.failure("client_gone"))
        again = await harness.ask()

        assert (again.claim.standing, again.claim.reason) == ("again", "client_gone")
        assert (await harness.ask()).draw.occurrence == 1

    @pytest.mark.parametrize("marked", [False, True])
    async def test_a_loss_is_made_good_once(self, harness: Harness, *, marked: bool) -> None:
        """The one after that is a draw of its own, unless it says that it is a retry."""
        await harness.fail(await harness.ask())
        await harness.ask()
        third = await harness.ask(marked=marked)

        assert isinstance(third.answer, Claimed) == marked
        assert len(await harness.documents()) == (1 if marked else 2)

    async def test_every_new_loss_is_made_good(self, harness: Harness) -> None:
        """A try that fails again before its first token is tried for as long as somebody asks."""
        for _ in range(5):
            await harness.fail(await harness.ask(), UNHEARD)

        document = await harness.document()
        assert len(document["earlier_failures"]) == 4
        assert [one["claim"] for one in document["deliveries"]] == [None, *["failed"] * 4]

    async def test_the_oldest_loss_comes_first(self, harness: Harness) -> None:
        """In order of the draws, whichever was lost first."""
        first, second, third = [await harness.ask() for _ in range(3)]
        await harness.fail(third)
        await harness.reply(first)
        await harness.leave(first)

        assert (await harness.ask()).call_ids == first.call_ids
        assert (await harness.ask()).call_ids == third.call_ids
        assert (await harness.ask()).draw.occurrence == 3
        assert second.draw.occurrence == 1

    async def test_500_repeats_at_once_make_a_loss_good_once(self, harness: Harness) -> None:
        """The decision is one step."""
        await harness.fail(await harness.ask())
        repeats = await asyncio.gather(*(harness.ask() for _ in range(100)))

        assert [isinstance(one.answer, Claimed) for one in repeats].count(True) == 1
        assert sorted(one.answer.occurrence for one in repeats) == list(range(100))

    async def test_a_repeat_that_leaves_too_is_a_loss_again(self, harness: Harness) -> None:
        """Each reading counts."""
        await harness.leave(await harness.ask())
        second = await harness.ask()
        await harness.leave(second)

        assert (await harness.ask()).claim.reason == "client_gone"

    async def test_a_client_that_left_for_another_is_no_loss(self, harness: Harness) -> None:
        """Its successor holds the reply."""
        first = await harness.ask(key="k")
        await harness.ask(key="k")
        await harness.leave(first)

        assert (await harness.ask()).draw.occurrence == 1

    async def test_an_end_is_told_once(self, harness: Harness) -> None:
        """A second report of the same reading changes nothing."""
        first = await harness.ask()
        await harness.reply(first)
        await harness.end(first)
        await harness.leave(first)

        assert (await harness.document())["deliveries"][0]["outcome"] == "delivered"
        assert (await harness.ask()).draw.occurrence == 1


class TestTries:
    """A process that was silent for longer than its lease, and the one that took its draw over meanwhile."""

    @pytest.mark.parametrize("late", [make.completion(answer=(9,)), BROKEN], ids=["answered", "failed"])
    async def test_a_try_that_was_taken_over_says_nothing(self, harness: Harness, late: Outcome) -> None:
        """Neither while the later try runs nor after it: what is on record is what its client is shown."""
        slow = await harness.ask()
        await harness.store.sweep(LAPSED)
        again = await harness.ask()
        with pytest.raises(TakenOver):
            await harness.record(slow, late)
        reserved = await harness.document()
        await harness.reply(again)
        with pytest.raises(TakenOver):
            await harness.record(slow, late)
        done = await harness.document()

        assert (again.claim.standing, again.claim.tries) == ("again", 1)
        assert (reserved["state"], done["state"]) == ("reserved", "done")
        assert done["completion_token_ids"] == [*make.ANSWER, make.END]

    async def test_a_try_that_failed_by_itself_is_over(self, harness: Harness) -> None:
        """Its record comes once; a second one is no word about the next try."""
        first = await harness.ask()
        await harness.fail(first)
        again = await harness.ask()
        with pytest.raises(TakenOver):
            await harness.record(first, UNHEARD)

        assert (await harness.document())["state"] == "reserved"
        await harness.reply(again)
        assert (await harness.document())["state"] == "done"

    async def test_tries_are_counted(self, harness: Harness) -> None:
        """The record of each is taken while it is the latest, also told twice."""
        for tries in range(4):
            asked = await harness.ask()
            assert all(plan.tries == tries for plan in asked.plans)
            await harness.fail(asked)
            await harness.record(asked, UNHEARD)

        assert len((await harness.document())["earlier_failures"]) == 3


class TestDeliberateRepeats:
    """Where nothing was lost, asking again means drawing again."""

    async def test_side_by_side_requests_are_draws_of_their_own(self, harness: Harness) -> None:
        """Best-of-n."""
        draws = [(await harness.ask()).draw for _ in range(4)]

        assert [one.occurrence for one in draws] == [0, 1, 2, 3]
        assert len({one.seeds for one in draws}) == 4

    async def test_a_repeat_after_delivery_is_a_new_draw(self, harness: Harness) -> None:
        """Harnesses repeat themselves on purpose."""
        first = await harness.ask()
        await harness.reply(first)
        await harness.end(first)

        assert ((await harness.ask()).draw.occurrence, (await harness.ask()).draw.reason) == (1, "new")

    @pytest.mark.parametrize(
        "other",
        [{"lane": "sub-agent"}, {"choices": 2}, {"messages": (make.user("else"),)}],
        ids=["lane", "choices", "messages"],
    )
    async def test_what_differs_repeats_nothing(self, harness: Harness, other: JsonObject) -> None:
        """Only identical requests share a reply, whatever they are marked with."""
        await harness.fail(await harness.ask(key="k"))

        fields = dict(other)
        assert (await harness.ask(*fields.pop("messages", ()), key="k", marked=True, **fields)).draw.reason == "new"

    async def test_another_rollout_repeats_nothing(self, harness: Harness, store: Store) -> None:
        """Not even the same key."""
        await harness.fail(await harness.ask(key="k"))
        (other,) = await store.create_rollouts([make.rollout("r2")])

        assert (await Harness(store, other).ask(key="k", marked=True)).draw.occurrence == 0


class TestKeys:
    """The same Idempotency-Key with the same request means the same calls, for ever."""

    async def test_a_key_joins_what_runs(self, harness: Harness) -> None:
        """However many ask."""
        first = await harness.ask(key="k")
        for _ in range(3):
            repeat = (await harness.ask(key="k")).claim
            assert (repeat.standing, repeat.reason) == ("running", "idempotency_key")
            assert repeat.call_ids == first.call_ids

    async def test_a_key_gets_what_is_recorded(self, harness: Harness) -> None:
        """Also after it was delivered, as often as it is asked for."""
        first = await harness.ask(key="k")
        await harness.reply(first)
        await harness.end(first)

        for _ in range(3):
            assert (await harness.ask(key="k")).claim.standing == "recorded"

    async def test_a_key_tries_again_what_failed(self, harness: Harness) -> None:
        """And what is being tried again is joined."""
        await harness.fail(await harness.ask(key="k"))

        assert [(await harness.ask(key="k")).claim.standing for _ in range(2)] == ["again", "running"]

    async def test_a_key_finds_its_own_among_many(self, harness: Harness) -> None:
        """Not the oldest, and not the one that was lost."""
        await harness.fail(await harness.ask())
        with_key = await harness.ask(key="k", lane="x")
        await harness.ask(lane="x")

        assert (await harness.ask(key="k", lane="x")).call_ids == with_key.call_ids

    @pytest.mark.parametrize("marked", [False, True])
    async def test_another_key_is_another_request(self, harness: Harness, *, marked: bool) -> None:
        """Two draws of a best-of-n with a key each never share one, though the first has failed."""
        await harness.fail(await harness.ask(key="a"))

        assert (await harness.ask(key="b", marked=marked)).draw.occurrence == 1
        assert (await harness.ask(key="a")).claim.occurrence == 0

    async def test_a_key_that_claims_a_loss_names_it_from_then_on(self, harness: Harness) -> None:
        """For ever begins with the first request that carried it."""
        lost = await harness.ask()
        await harness.fail(lost)
        taken = await harness.ask(key="k")
        await harness.reply(taken)
        await harness.end(taken)

        assert (taken.claim.reason, (await harness.ask(key="k")).claim.reason) == ("failed", "idempotency_key")
        assert (await harness.ask(key="other")).draw.occurrence == 1


class TestMarks:
    """A client's SDK says that this is not its first try."""

    async def test_a_marked_retry_claims_the_only_one(self, harness: Harness) -> None:
        """Though nothing is known to be lost: the reply may have gone down with the connection."""
        first = await harness.ask()
        await harness.reply(first)
        await harness.end(first)
        retry = await harness.ask(marked=True)

        assert (retry.claim.standing, retry.claim.reason) == ("recorded", "retry_count")

    async def test_a_marked_retry_joins_the_only_one(self, harness: Harness) -> None:
        """Its client may have given up before anybody noticed."""
        await harness.ask()

        assert (await harness.ask(marked=True)).claim.standing == "running"

    async def test_a_marked_retry_among_several_is_a_new_draw(self, harness: Harness) -> None:
        """A guess would give one sample to two."""
        await harness.ask()
        await harness.ask()

        assert (await harness.ask(marked=True)).draw.occurrence == 2

    async def test_a_marked_retry_among_several_claims_the_lost_one(self, harness: Harness) -> None:
        """There is nothing to guess."""
        await harness.ask()
        lost = await harness.ask()
        await harness.fail(lost)

        assert (await harness.ask(marked=True)).call_ids == lost.call_ids

    async def test_a_mark_on_a_first_request_is_a_new_draw(self, harness: Harness) -> None:
        """Its first try never came this far."""
        assert (await harness.ask(marked=True)).draw.occurrence == 0

    async def test_requests_of_other_keys_cannot_be_meant(self, harness: Harness) -> None:
        """What is left is the only one."""
        await harness.ask(key="a")
        own = await harness.ask()
        await harness.ask(key="b")

        assert (await harness.ask(key="c", marked=True)).call_ids == own.call_ids


class TestAbandonedDraws:
    """A draw that broke twice after its first token is given up."""

    async def break_twice(self, harness: Harness, **asking: object) -> tuple[str, ...]:
        for _ in range(2):
            asked = await harness.ask(**asking)  # type: ignore[arg-type]
            await harness.fail(asked, BROKEN)
        return asked.call_ids

    async def test_its_retry_draws_anew(self, harness: Harness) -> None:
        """With the next occurrence, and it says why."""
        await self.break_twice(harness)
        retry = await harness.ask()

        assert (retry.draw.occurrence, retry.draw.reason) == (1, "draw_abandoned")
        assert [one["state"] for one in await harness.documents()] == ["failed", "reserved"]

    async def test_breaking_once_is_not_enough(self, harness: Harness) -> None:
        """Nor are any number of failures before the first token."""
        await harness.fail(await harness.ask(), BROKEN)
        await harness.fail(await harness.ask(), UNHEARD)
        await harness.fail(await harness.ask(), UNHEARD)

        assert (await harness.ask()).claim.standing == "again"

    async def test_text_without_ids_is_a_token_too(self, harness: Harness) -> None:
        """Streams may show words before their ids."""
        spoken = make.failure(partial=make.completion((), (), message=make.assistant("4"), finish_reason=None))
        for _ in range(2):
            await harness.fail(await harness.ask(), spoken)

        assert (await harness.ask()).draw.reason == "draw_abandoned"

    @pytest.mark.parametrize("kind", ["client_gone", "proxy_stopped"])
    async def test_being_cut_is_not_breaking(self, harness: Harness, kind: str) -> None:
        """Neither the draw nor its engine is to blame."""
        for _ in range(3):
            await harness.fail(await harness.ask(), replace(BROKEN, kind=kind))

        assert (await harness.ask()).claim.standing == "again"

    async def test_an_empty_beginning_is_no_token(self, harness: Harness) -> None:
        """The chunk with the role alone breaks nothing."""
        empty = make.failure(partial=make.completion((), (), message=make.assistant(""), finish_reason=None))
        for _ in range(3):
            await harness.fail(await harness.ask(), empty)

        assert (await harness.ask()).claim.standing == "again"

    async def test_it_is_replaced_once(self, harness: Harness) -> None:
        """What comes after is a deliberate repeat."""
        await self.break_twice(harness)

        assert [(await harness.ask()).draw.reason for _ in range(2)] == ["draw_abandoned", "new"]

    async def test_each_is_replaced(self, harness: Harness) -> None:
        """One retry never stands for two."""
        for _ in range(2):
            pair = [await harness.ask() for _ in range(2)]
            for one in pair:
                await harness.record(one, BROKEN)

        first, second, third = [(await harness.ask()).draw for _ in range(3)]
        assert [one.reason for one in (first, second, third)] == ["draw_abandoned", "draw_abandoned", "new"]

    @pytest.mark.parametrize("key", [None, "k"])
    async def test_its_marked_retry_takes_no_other_draw(self, harness: Harness, key: str | None) -> None:
        """A sibling that was delivered is another sample's."""
        delivered = await harness.ask()
        await harness.reply(delivered)
        await harness.end(delivered)
        await self.break_twice(harness, key=key)

        assert (await harness.ask(key=key, marked=True)).draw.reason == "draw_abandoned"

    async def test_its_key_means_the_draw_that_took_its_place(self, harness: Harness) -> None:
        """From then on, for ever."""
        await self.break_twice(harness, key="k")
        anew = await harness.ask(key="k")
        await harness.reply(anew)

        assert anew.draw.reason == "draw_abandoned"
        assert (await harness.ask(key="k")).call_ids == anew.call_ids

    async def test_a_set_is_given_up_as_a_whole(self, harness: Harness) -> None:
        """Whichever of its choices it was each time."""
        sibling = replace(BROKEN, kind="sibling_failed")
        for outcomes in ((BROKEN, sibling), (sibling, BROKEN)):
            await harness.record(await harness.ask(choices=2), *outcomes)

        retry = await harness.ask(choices=2)
        assert (retry.draw.occurrence, retry.draw.reason) == (1, "draw_abandoned")

    async def test_siblings_that_were_cut_did_not_break(self, harness: Harness) -> None:
        """An engine that would not take one choice says nothing about the others."""
        for _ in range(3):
            await harness.record(await harness.ask(choices=2), UNHEARD, replace(BROKEN, kind="sibling_failed"))

        assert (await harness.ask(choices=2)).claim.standing == "again"


class TestSets:
    """The choices of one request stand and fall together."""

    async def test_a_failed_set_is_claimed_whole(self, harness: Harness) -> None:
        """All calls, in order, with their seeds."""
        first = await harness.ask(choices=4)
        await harness.record(first, UNHEARD, *[make.failure("sibling_failed")] * 3)
        again = await harness.ask(choices=4)

        assert again.claim.standing == "again"
        assert (again.call_ids, again.claim.seeds) == (first.call_ids, first.answer.seeds)
        assert len(await harness.documents()) == 4

    async def test_a_lost_set_is_claimed_whole(self, harness: Harness) -> None:
        """One delivery of each."""
        first = await harness.ask(choices=3)
        await harness.reply(first)
        await harness.leave(first)
        again = await harness.ask(choices=3)
        await harness.end(again)

        assert again.claim.standing == "recorded"
        for document in await harness.documents():
            assert [one["outcome"] for one in document["deliveries"]] == ["client_gone", "delivered"]

    async def test_a_set_is_recorded_whole_or_not_at_all(self, harness: Harness, store: Store) -> None:
        """What is wrong with one choice leaves nothing of the others."""
        asked = await harness.ask(choices=3)
        outcomes = [make.completion(), make.completion(), make.completion(prompt=(-1,))]

        with pytest.raises(ValueError, match="token id"):
            await store.record(calls_of(asked.plans, outcomes))
        assert {one["state"] for one in await harness.documents()} == {"reserved"}
        await harness.reply(asked)
        assert [one["completion_token_ids"] for one in await harness.documents()] == [[*make.ANSWER, make.END]] * 3

    async def test_a_repeated_commit_of_a_set_changes_nothing(self, harness: Harness) -> None:
        """Its acknowledgement was lost."""
        asked = await harness.ask(choices=2)
        await harness.reply(asked)
        before = await harness.documents()
        await harness.record(asked, UNHEARD)

        assert await harness.documents() == before

    async def test_a_set_of_a_dead_proxy_is_claimed_whole(self, harness: Harness, store: Store) -> None:
        """All choices are settled at once."""
        first = await harness.ask(choices=3)
        assert await store.sweep(LAPSED) == 3
        again = await harness.ask(choices=3)

        assert (again.claim.standing, again.call_ids) == ("again", first.call_ids)


class TestDeliveries:
    async def test_a_request_begins_with_a_delivery(self, harness: Harness) -> None:
        """Open until its end is told."""
        await harness.ask()

        (delivery,) = (await harness.document())["deliveries"]
        assert delivery == {
            "started_at": "2023-11-14T22:13:20.000Z",
            "ended_at": None,
            "claim": None,
            "outcome": None,
            "events": 0,
        }

    async def test_deliveries_add_up(self, harness: Harness) -> None:
        """A call may be read more than once; the record says by what right."""
        await harness.leave(await harness.ask())
        again = await harness.ask()
        await harness.reply(again)
        await harness.end(again)
        await harness.ask(marked=True)

        found = (await harness.document())["deliveries"]
        assert [(one["claim"], one["outcome"]) for one in found] == [
            (None, "client_gone"),
            ("client_gone", "delivered"),
            ("retry_count", None),
        ]

    @pytest.mark.parametrize("outcome", ["delivered", "client_gone", "broken", "lost"])
    async def test_a_delivery_of_a_deleted_call_is_dropped(self, harness: Harness, outcome: str) -> None:
        """Deletion leaves nothing that could grow back."""
        asked = await harness.ask()
        await harness.store.close_rollout(harness.rollout.rollout_id, "deleted", make.STARTED_AT + 60)
        await harness.end(asked, outcome)  # type: ignore[arg-type]

        assert await harness.documents() == ()

    async def test_an_unknown_delivery_is_nothing(self, store: Store) -> None:
        """Its rollout may have been deleted."""
        await store.deliver(make.delivery("never", "client_gone"))

    async def test_readings_of_a_dead_process_are_lost(self, harness: Harness, reopen: Reopen) -> None:
        """Nobody knows how far they came, so that the next identical request gets the reply."""
        told, untold = await harness.ask(), await harness.ask()
        for asked in (told, untold):
            await harness.reply(asked)
        await harness.end(told)
        harness.store = await reopen()

        found = [one["deliveries"][0]["outcome"] for one in await harness.documents()]
        assert found == ["delivered", "lost"]
        assert (await harness.ask()).call_ids == untold.call_ids
        assert (await harness.ask()).draw.occurrence == 2

    async def test_calls_of_a_dead_process_are_tried_again(self, harness: Harness, reopen: Reopen) -> None:
        """Dead and lost are one loss."""
        first = await harness.ask(choices=2)
        harness.store = await reopen()
        again = await harness.ask(choices=2)

        assert (again.claim.standing, again.claim.reason, again.call_ids) == ("again", "failed", first.call_ids)
        for document in await harness.documents():
            assert [failure["kind"] for failure in document["earlier_failures"]] == ["proxy_died"]
            assert [one["outcome"] for one in document["deliveries"]] == ["lost", None]
        assert (await harness.ask(choices=2)).draw.occurrence == 1

    async def test_a_slow_proxy_that_delivers_after_all_has_lost_nothing(self, harness: Harness, store: Store) -> None:
        """What a lapsed lease had made believe goes with the guess."""
        asked = await harness.ask()
        await store.sweep(LAPSED)
        await harness.reply(asked)
        await harness.end(asked)

        assert (await harness.ask()).draw.occurrence == 1

    async def test_a_slow_proxys_client_that_left_is_still_gone(self, harness: Harness, store: Store) -> None:
        """The guess does not hide what is known."""
        asked = await harness.ask()
        await harness.leave(asked)
        await store.sweep(LAPSED)
        await harness.reply(asked)

        assert (await harness.ask()).claim.standing == "recorded"


class TestClosedRollouts:
    async def test_a_closed_rollout_repeats_nothing(self, harness: Harness, store: Store) -> None:
        """Finished is finished, also for retries."""
        await harness.fail(await harness.ask(key="k"))
        await store.close_rollout(harness.rollout.rollout_id, "finished", make.STARTED_AT + 60)

        with pytest.raises(RolloutClosed):
            await harness.ask(key="k", marked=True)

    async def test_a_claim_costs_nothing_of_a_rollouts_limit(self, harness: Harness, store: Store) -> None:
        """A retry is no call of its own."""
        first = await harness.ask()
        await harness.fail(first)
        asking = make.reservation(*first.plans, request_id="again", most_calls=1, repeat=make.repeat("same"))
        with pytest.raises(LimitReached):
            await store.reserve(asking)

        ask_hash = f" 1 {first.plans[0].ask.conversation.context}"
        given = await store.reserve(replace(asking, repeat=make.repeat(ask_hash)))
        assert isinstance(given, Claimed)
