"""What every store promises, whatever it is made of: rollouts, reservations, records, documents."""

import asyncio
from dataclasses import replace

import pytest

from proxy.errors import BadAsk, Conflict, LimitReached, NotFound, RolloutClosed, SeedCollision
from proxy.model import (
    Claimed,
    DeliveryOutcome,
    JsonObject,
    Outcome,
    Parent,
    Pause,
    Plan,
    Prefix,
    Profile,
    Rollout,
    RolloutId,
    VolatileLine,
    Weights,
)
from proxy.record.store import PrefixCounts, RolloutCounts, RolloutFilter, Store, StoredProfile
from tests import make

pytestmark = pytest.mark.anyio

LATER = make.STARTED_AT + 1000
CLOSED_AT = make.STARTED_AT + 60


async def reserve(store: Store, *messages: dict[str, str], of: Rollout, **changes: object) -> Plan:
    """A plan whose reservation the store has granted."""
    planned = make.plan(make.ask(*messages, of=of), **changes)
    return make.reserved(planned, await store.reserve(make.reservation(planned)))


class TestRollouts:
    async def test_a_rollout_comes_back_as_it_was_given(self, store: Store) -> None:
        """Every field survives the way through the store."""
        given = make.rollout(
            "r9",
            run="run",
            group="g",
            sample=3,
            attempt=1,
            sampling={"temperature": 0.5},
            expires_at=LATER,
            token_budget=1000,
            metadata={"task": ["ä", None]},
        )
        await store.create_rollouts([given])

        assert await store.rollout(given.rollout_id) == given

    async def test_an_unknown_rollout_is_none(self, store: Store) -> None:
        """An id that was never used is told apart from a closed one."""
        assert await store.rollout(RolloutId("never")) is None

    async def test_an_id_is_taken_for_ever(self, store: Store, rollout: Rollout) -> None:
        """Deleting a rollout does not free its id."""
        await store.close_rollout(rollout.rollout_id, "deleted", CLOSED_AT)

        with pytest.raises(Conflict, match="rollout_id"):
            await store.create_rollouts([make.rollout(group="other")])

    async def test_a_place_in_a_group_is_taken_for_ever(self, store: Store, rollout: Rollout) -> None:
        """Deleting a rollout does not free its sample and attempt."""
        await store.close_rollout(rollout.rollout_id, "deleted", CLOSED_AT)

        with pytest.raises(Conflict, match="sample 0, attempt 0"):
            await store.create_rollouts([make.rollout("r2", group=rollout.group)])

    async def test_a_group_is_made_whole_or_not_at_all(self, store: Store, rollout: Rollout) -> None:
        """A conflict in the middle leaves nothing of what came before it."""
        with pytest.raises(Conflict):
            await store.create_rollouts([make.rollout("r2"), make.rollout(rollout.rollout_id, sample=1)])

        assert await store.rollout(RolloutId("r2")) is None

    async def test_the_same_key_and_body_answer_the_same(self, store: Store) -> None:
        """A retried creation is told what the first one made, not what the retry would have."""
        first = await store.create_rollouts([make.rollout("r1")], idempotency_key="k", asked="body")
        again = await store.create_rollouts([make.rollout("r2")], idempotency_key="k", asked="body")

        assert again == first

    async def test_the_same_key_with_another_body_conflicts(self, store: Store) -> None:
        """A key names one request."""
        await store.create_rollouts([make.rollout("r1")], idempotency_key="k", asked="body")

        with pytest.raises(Conflict, match="Idempotency-Key"):
            await store.create_rollouts([make.rollout("r2")], idempotency_key="k", asked="other")

    async def test_a_list_pages_in_order_of_creation(self, store: Store) -> None:
        """Pages neither repeat nor lose a rollout."""
        await store.create_rollouts([make.rollout(f"r{n}") for n in range(5)])

        first = await store.rollouts(RolloutFilter(), None, 3)
        second = await store.rollouts(RolloutFilter(), first.cursor, 3)
        assert [found.rollout_id for found in first.items + second.items] == ["r0", "r1", "r2", "r3", "r4"]
        assert second.cursor is None

    async def test_a_list_shows_what_its_filter_names(self, store: Store) -> None:
        """Run, group and state narrow together."""
        await store.create_rollouts(
            [
                make.rollout("a", run="x", group="g"),
                make.rollout("b", run="x", group="h"),
                make.rollout("c", run="y", group="g"),
            ]
        )
        await store.close_rollout(RolloutId("b"), "finished", CLOSED_AT)

        async def names(**narrow: str) -> list[str]:
            page = await store.rollouts(RolloutFilter(**narrow), None, 10)  # type: ignore[arg-type]
            return [found.rollout_id for found in page.items]

        assert await names(run="x") == ["a", "b"]
        assert await names(group="g") == ["a", "c"]
        assert await names(run="x", group="g", state="open") == ["a"]
        assert await names(state="finished") == ["b"]

    async def test_deleted_rollouts_are_listed_only_when_asked_for(self, store: Store, rollout: Rollout) -> None:
        """A list without a state shows what still holds something."""
        await store.close_rollout(rollout.rollout_id, "deleted", CLOSED_AT)

        assert (await store.rollouts(RolloutFilter(), None, 10)).items == ()
        assert len((await store.rollouts(RolloutFilter(state="deleted"), None, 10)).items) == 1

    async def test_a_made_up_cursor_is_refused(self, store: Store) -> None:
        """A cursor is ours or it is a mistake of the caller's."""
        with pytest.raises(BadAsk):
            await store.rollouts(RolloutFilter(), "x' or 1", 10)

    async def test_closing_twice_changes_nothing(self, store: Store, rollout: Rollout) -> None:
        """The first end stands, with its time."""
        await store.close_rollout(rollout.rollout_id, "finished", CLOSED_AT)
        again = await store.close_rollout(rollout.rollout_id, "expired", LATER)

        assert again is not None
        assert (again.state, again.finished_at) == ("finished", CLOSED_AT)

    async def test_a_deleted_rollout_stays_deleted(self, store: Store, rollout: Rollout) -> None:
        """Nothing leads back from deletion."""
        await store.close_rollout(rollout.rollout_id, "deleted", CLOSED_AT)
        again = await store.close_rollout(rollout.rollout_id, "finished", LATER)

        assert again is not None
        assert again.state == "deleted"

    async def test_closing_an_unknown_rollout_is_none(self, store: Store) -> None:
        """There is nothing to close."""
        assert await store.close_rollout(RolloutId("never"), "finished", CLOSED_AT) is None

    async def test_deleting_drops_the_calls(self, store: Store, rollout: Rollout) -> None:
        """Documents, deliveries and numbers are gone."""
        planned = await reserve(store, of=rollout)
        await store.record([make.call(planned)])
        await store.close_rollout(rollout.rollout_id, "deleted", CLOSED_AT)

        assert await store.call(planned.call_id) is None
        assert (await store.calls(rollout.rollout_id, None, 10)).items == ()
        assert await store.counts(rollout.rollout_id) == RolloutCounts()

    async def test_rollouts_expire_when_their_time_is_over(self, store: Store) -> None:
        """Open rollouts whose time has come are closed, others are left alone."""
        await store.create_rollouts(
            [make.rollout("a", expires_at=CLOSED_AT), make.rollout("b", expires_at=LATER), make.rollout("c")]
        )

        assert await store.expire_rollouts(CLOSED_AT) == 1
        assert await store.expire_rollouts(CLOSED_AT) == 0
        expired = await store.rollout(RolloutId("a"))
        assert expired is not None
        assert (expired.state, expired.finished_at) == ("expired", CLOSED_AT)

    async def test_an_outcome_raises_the_revision(self, store: Store, rollout: Rollout) -> None:
        """Also after finish: whoever read before can see that something changed."""
        await store.close_rollout(rollout.rollout_id, "finished", CLOSED_AT)
        changed = await store.set_outcome(rollout.rollout_id, {"reward": 1.0})

        assert changed is not None
        assert (changed.outcome, changed.revision) == ({"reward": 1.0}, 1)
        assert await store.rollout(rollout.rollout_id) == changed

    async def test_an_outcome_of_an_unknown_rollout_is_none(self, store: Store) -> None:
        """There is nothing to reward."""
        assert await store.set_outcome(RolloutId("never"), {}) is None


class TestReserving:
    async def test_a_reservation_gets_the_seed_of_its_occurrence(self, store: Store, rollout: Rollout) -> None:
        """Repeats of one conversation are numbered from 0, each with its own seed."""
        first = await reserve(store, of=rollout)
        second = await reserve(store, of=rollout)

        assert [first.seed.occurrence, second.seed.occurrence] == [0, 1]
        assert [first.seed.value, second.seed.value] == [1000, 1001]

    async def test_other_conversations_are_numbered_on_their_own(self, store: Store, rollout: Rollout) -> None:
        """An occurrence counts within one context."""
        await reserve(store, make.user("a"), of=rollout)

        assert (await reserve(store, make.user("b"), of=rollout)).seed.occurrence == 0

    async def test_choices_are_numbered_on_their_own(self, store: Store, rollout: Rollout) -> None:
        """The n choices of one request are one occurrence of n choices, and no later request's."""
        plans = make.plans(3, make.ask(of=rollout))
        given = await store.reserve(make.reservation(*plans))

        assert (given.occurrence, given.seeds) == (0, tuple(make.seed_of(0, choice) for choice in range(3)))
        assert (await reserve(store, of=rollout)).seed.occurrence == 1

    async def test_an_occurrence_is_free_for_all_choices_or_for_none(self, store: Store, rollout: Rollout) -> None:
        """A request for more choices does not slip in beside one for fewer."""
        await reserve(store, of=rollout)

        assert (await store.reserve(make.reservation(*make.plans(2, make.ask(of=rollout))))).occurrence == 1

    async def test_a_reservation_says_whose_it_is(self, store: Store, rollout: Rollout) -> None:
        """Choices of one request share its id, and come in their order."""
        plans = make.plans(3, make.ask(of=rollout))
        await store.reserve(make.reservation(*plans))

        found = (await store.calls(rollout.rollout_id, None, 10)).items
        assert [(one["request_id"], one["seed"]["choice"]) for one in found] == [
            (plans[0].request_id, choice) for choice in range(3)
        ]

    async def test_a_rollout_has_no_more_calls_than_it_may(self, store: Store, rollout: Rollout) -> None:
        """Choices count one by one, and nothing of a request that is one too many is written."""
        await reserve(store, of=rollout)

        with pytest.raises(LimitReached):
            await store.reserve(make.reservation(*make.plans(2, make.ask(of=rollout)), most_calls=2))
        assert (await store.counts(rollout.rollout_id)).calls == 1
        await store.reserve(make.reservation(make.plan(make.ask(of=rollout)), most_calls=2))

    async def test_500_callers_at_once_get_500_occurrences(self, store: Store, rollout: Rollout) -> None:
        """No two calls ever hold the same draw."""
        plans = await asyncio.gather(*(reserve(store, of=rollout) for _ in range(500)))

        assert sorted(plan.seed.occurrence for plan in plans) == list(range(500))

    async def test_the_same_reservation_is_granted_once(self, store: Store, rollout: Rollout) -> None:
        """A reservation whose acknowledgement was lost can be asked for again."""
        asked = make.reservation(make.plan(make.ask(of=rollout)))

        assert await store.reserve(asked) == await store.reserve(asked)
        assert (await store.counts(rollout.rollout_id)).calls == 1

    async def test_an_unknown_rollout_reserves_nothing(self, store: Store) -> None:
        """A call belongs to a rollout."""
        with pytest.raises(NotFound):
            await reserve(store, of=make.rollout("never"))

    @pytest.mark.parametrize("state", ["finished", "expired", "deleted"])
    async def test_a_closed_rollout_reserves_nothing(self, store: Store, rollout: Rollout, state: str) -> None:
        """Whatever closed it."""
        await store.close_rollout(rollout.rollout_id, state, CLOSED_AT)  # type: ignore[arg-type]

        with pytest.raises(RolloutClosed):
            await reserve(store, of=rollout)

    async def test_a_rollout_past_its_time_reserves_nothing(self, store: Store) -> None:
        """Also before the sweep has closed it."""
        stale = make.rollout("stale", expires_at=make.STARTED_AT)
        await store.create_rollouts([stale])

        with pytest.raises(RolloutClosed, match="expired"):
            await reserve(store, of=stale)

    async def test_a_client_seed_that_another_sample_drew_with_is_refused(self, store: Store) -> None:
        """One client seed for all samples would collapse the group."""
        one, other = make.rollout("a", group="g"), make.rollout("b", group="g", sample=1)
        await store.create_rollouts([one, other])
        await reserve(store, of=one)

        with pytest.raises(SeedCollision):
            await store.reserve(make.reservation(make.plan(make.ask(of=other)), exclusive_seed=True))
        assert (await store.counts(other.rollout_id)).calls == 0

    async def test_a_client_seed_may_serve_another_attempt_or_group(self, store: Store) -> None:
        """Only samples that are compared with each other must differ."""
        await store.create_rollouts(
            [
                first := make.rollout("a", group="g"),
                attempt := make.rollout("b", group="g", attempt=1),
                elsewhere := make.rollout("c", group="h", sample=1),
            ]
        )
        await reserve(store, of=first)

        for other in (attempt, elsewhere):
            await store.reserve(make.reservation(make.plan(make.ask(of=other)), exclusive_seed=True))


class TestRecording:
    async def test_tokens_come_back_as_they_were_recorded(self, store: Store, rollout: Rollout) -> None:
        """Ids and logprobs survive to the last bit."""
        planned = await reserve(store, of=rollout)
        reply = make.completion(prompt=(1, 2**31 - 1, 0), answer=(7, 8))
        logprobs = (-0.1, -1e-300)
        await store.record([make.call(planned, replace(reply, tokens=replace(reply.tokens, logprobs=logprobs)))])

        document = await store.call(planned.call_id)
        assert document is not None
        assert document["prompt_token_ids"] == [1, 2**31 - 1, 0]
        assert document["completion_token_ids"] == [7, 8]
        assert document["logprobs"] == list(logprobs)

    async def test_recording_twice_changes_nothing(self, store: Store, rollout: Rollout) -> None:
        """A commit whose acknowledgement was lost can be repeated."""
        call = make.call(await reserve(store, of=rollout))
        await store.record([call])
        before = await store.call(call.plan.call_id)
        await store.record([replace(call, outcome=make.failure())])

        assert await store.call(call.plan.call_id) == before

    async def test_a_failure_keeps_what_had_arrived(self, store: Store, rollout: Rollout) -> None:
        """The partial stands in the same fields, under state failed."""
        planned = await reserve(store, of=rollout)
        await store.record([make.call(planned, make.failure(partial=make.completion(finish_reason=None)))])

        document = await store.call(planned.call_id)
        assert document is not None
        assert document["state"] == "failed"
        assert document["failure"]["kind"] == "engine_cut"
        assert document["completion_token_ids"] == [*make.ANSWER, make.END]
        assert document["capture"] == {"complete": True, "gaps": []}

    async def test_a_failure_without_a_reply_has_no_tokens(self, store: Store, rollout: Rollout) -> None:
        """Null says that nothing came, an empty list would say that nothing was said."""
        planned = await reserve(store, of=rollout)
        await store.record([make.call(planned, make.failure("engine_unreachable"))])

        document = await store.call(planned.call_id)
        assert document is not None
        nothing = ("prompt_token_ids", "completion_token_ids", "logprobs", "message", "capture", "usage")
        assert [document[name] for name in nothing] == [None] * len(nothing)

    async def test_an_empty_reply_has_empty_tokens(self, store: Store, rollout: Rollout) -> None:
        """A reply of no tokens is told apart from one whose tokens are missing."""
        planned = await reserve(store, of=rollout)
        await store.record([make.call(planned, make.completion(answer=()))])

        document = await store.call(planned.call_id)
        assert document is not None
        assert (document["completion_token_ids"], document["logprobs"]) == ([], [])

    @pytest.mark.parametrize("bad", [-1, 2**31])
    async def test_ids_that_do_not_fit_are_an_error(self, store: Store, rollout: Rollout, bad: int) -> None:
        """They never wrap, and the call can still be recorded without them."""
        planned = await reserve(store, of=rollout)

        with pytest.raises(ValueError, match="token id"):
            await store.record([make.call(planned, make.completion(prompt=(bad,)))])
        await store.record([make.call(planned)])

    async def test_a_call_that_was_never_reserved_is_not_recorded(self, store: Store, rollout: Rollout) -> None:
        """Without a reservation there is no draw that it could be."""
        with pytest.raises(NotFound):
            await store.record([make.call(make.plan(make.ask(of=rollout)))])

    async def test_a_late_result_is_counted_and_not_added(self, store: Store, rollout: Rollout) -> None:
        """The rollout that was read stays as it was, but says that something came after."""
        planned = await reserve(store, of=rollout)
        await store.close_rollout(rollout.rollout_id, "finished", CLOSED_AT)

        for _ in range(2):
            with pytest.raises(RolloutClosed):
                await store.record([make.call(planned)])
        document, after = await store.call(planned.call_id), await store.rollout(rollout.rollout_id)
        assert document is not None
        assert (document["state"], document["failure"]["kind"]) == ("late", "late")
        assert document["completion_token_ids"] is None
        assert (await store.counts(rollout.rollout_id)).late == 1
        assert after == replace(rollout, state="finished", finished_at=CLOSED_AT, revision=1)

    async def test_a_result_for_a_deleted_rollout_is_counted_once(self, store: Store, rollout: Rollout) -> None:
        """Even with its row gone."""
        planned = await reserve(store, of=rollout)
        await store.close_rollout(rollout.rollout_id, "deleted", CLOSED_AT)

        for _ in range(2):
            with pytest.raises(RolloutClosed):
                await store.record([make.call(planned)])
        assert await store.counts(rollout.rollout_id) == RolloutCounts(late=1)

    async def test_a_result_recorded_before_the_end_stays_recorded(self, store: Store, rollout: Rollout) -> None:
        """A repeat of an acknowledged commit is not late."""
        call = make.call(await reserve(store, of=rollout))
        await store.record([call])
        await store.close_rollout(rollout.rollout_id, "finished", CLOSED_AT)
        await store.record([call])

        assert (await store.counts(rollout.rollout_id)).late == 0

    async def test_counts_tell_how_a_rollout_stands(self, store: Store, rollout: Rollout) -> None:
        """States, failure kinds by frequency, gaps, and tokens."""
        outcomes: list[Outcome] = [
            make.completion(),
            make.completion(capture_gaps=("missing_ids",)),
            make.failure("client_gone", partial=make.completion(answer=(9,))),
            make.failure("engine_cut"),
            make.failure("engine_cut"),
        ]
        for outcome in outcomes:
            await store.record([make.call(await reserve(store, of=rollout), outcome)])
        await reserve(store, of=rollout)

        assert await store.counts(rollout.rollout_id) == RolloutCounts(
            calls=6,
            completed=2,
            failed=3,
            reserved=1,
            uncaptured=1,
            prompt_tokens=9,
            completion_tokens=7,
            failures=(("engine_cut", 2), ("client_gone", 1)),
        )

    async def test_prefixes_are_counted_over_completed_calls(self, store: Store, rollout: Rollout) -> None:
        """Eligible, supplied, and the others by reason."""
        prefixes = [
            Prefix(eligible=False, requested=False, supplied=False, length=0, reason="first_turn"),
            Prefix(eligible=True, requested=True, supplied=True, length=3, reason="exact"),
            *[Prefix(eligible=True, requested=False, supplied=False, length=0, reason="media")] * 2,
            Prefix(eligible=True, requested=True, supplied=False, length=3, reason="other_ids_came_back"),
        ]
        assert await store.prefix_counts(rollout.rollout_id) == PrefixCounts()
        for prefix in prefixes:
            planned = await reserve(store, of=rollout)
            await store.record([make.call(replace(planned, prefix=prefix))])
        await store.record([make.call(await reserve(store, of=rollout), make.failure())])

        assert await store.prefix_counts(rollout.rollout_id) == PrefixCounts(
            total=5, eligible=4, supplied=1, unsupplied=(("media", 2), ("other_ids_came_back", 1))
        )
        assert [prefix.outcome for prefix in prefixes] == ["none", "supplied", "refused", "refused", "unproven"]

    async def test_a_reply_without_ids_counts_by_its_usage(self, store: Store, rollout: Rollout) -> None:
        """Budgets hold for engines that give no ids too."""
        reply = make.completion((), (), usage={"prompt_tokens": 5, "completion_tokens": 6})
        await store.record([make.call(await reserve(store, of=rollout), reply)])

        counts = await store.counts(rollout.rollout_id)
        assert (counts.prompt_tokens, counts.completion_tokens) == (5, 6)


class TestLeases:
    async def test_a_lapsed_lease_is_recorded_as_proxy_died(self, store: Store, rollout: Rollout) -> None:
        """A reservation never stays open for ever."""
        planned = await reserve(store, of=rollout)

        assert await store.sweep(LATER) == 1
        assert await store.sweep(LATER) == 0
        document = await store.call(planned.call_id)
        assert document is not None
        assert (document["state"], document["failure"]["kind"]) == ("failed", "proxy_died")

    async def test_a_renewed_lease_is_left_alone(self, store: Store, rollout: Rollout) -> None:
        """Long calls live as long as their proxy says so."""
        planned = await reserve(store, of=rollout)
        await store.renew(make.OWNER, [planned.call_id], LATER + 1)

        assert await store.sweep(LATER) == 0

    async def test_a_lease_is_not_renewed_by_whom_the_draw_was_taken_from(self, store: Store, rollout: Rollout) -> None:
        """A process that was only taken for dead must not keep the next owner's try alive when that dies."""
        planned = make.plan(make.ask(of=rollout))
        await store.reserve(make.reservation(planned, repeat=make.repeat("same")))
        await store.sweep(LATER)
        retry = make.plan(make.ask(of=rollout))
        taken = make.reservation(retry, repeat=make.repeat("same"), owner="px_next", lease_until=LATER + 1)
        assert isinstance(await store.reserve(taken), Claimed)
        await store.renew(make.OWNER, [planned.call_id], LATER + 9)

        assert await store.sweep(LATER + 2) == 1

    async def test_a_real_outcome_replaces_proxy_died(self, store: Store, rollout: Rollout) -> None:
        """A proxy that was only slow knows better than its lapsed lease."""
        planned = await reserve(store, of=rollout)
        await store.sweep(LATER)
        await store.record([make.call(planned)])

        document = await store.call(planned.call_id)
        assert document is not None
        assert (document["state"], document["failure"]) == ("done", None)

    async def test_a_sweep_after_the_end_raises_the_revision(self, store: Store, rollout: Rollout) -> None:
        """A trajectory that was read already has changed."""
        await reserve(store, of=rollout)
        await store.close_rollout(rollout.rollout_id, "finished", CLOSED_AT)
        await store.sweep(LATER)

        after = await store.rollout(rollout.rollout_id)
        assert after is not None
        assert after.revision == 1

    async def test_a_reading_noted_after_the_end_raises_the_revision(self, store: Store, rollout: Rollout) -> None:
        """Which call was delivered last decides the main path, so what was assembled before may stand otherwise."""
        planned = make.plan(make.ask(of=rollout))
        asked = make.reservation(planned)
        await store.reserve(asked)
        await store.record([make.call(planned)])
        await store.close_rollout(rollout.rollout_id, "finished", CLOSED_AT)
        told: tuple[DeliveryOutcome, ...] = ("lost", "delivered", "delivered")
        revisions = list[int]()
        for outcome in told:
            await store.deliver(make.delivery(asked.delivery_id, outcome))
            after = await store.rollout(rollout.rollout_id)
            assert after is not None
            revisions.append(after.revision)

        assert revisions == [1, 2, 2]

    async def test_a_reading_noted_before_the_end_changes_no_revision(self, store: Store, rollout: Rollout) -> None:
        """Of an open rollout nothing has been told for good."""
        planned = make.plan(make.ask(of=rollout))
        asked = make.reservation(planned)
        await store.reserve(asked)
        await store.record([make.call(planned)])
        await store.deliver(make.delivery(asked.delivery_id))

        after = await store.rollout(rollout.rollout_id)
        assert after is not None
        assert after.revision == 0


class TestDocuments:
    async def test_a_reserved_call_is_shown_with_what_is_known(self, store: Store, rollout: Rollout) -> None:
        """Who, which draw and since when; the rest is null."""
        planned = await reserve(store, of=rollout)

        document = await store.call(planned.call_id)
        assert document is not None
        assert (document["state"], document["api"], document["stream"]) == ("reserved", "chat", False)
        assert document["seed"]["value"] == planned.seed.value
        assert document["timing"] == {
            "asked_at": "2023-11-14T22:13:20.000Z",
            "first_event_s": None,
            "ended_s": None,
        }
        assert (document["parent"], document["messages"], document["failure"]) == (None, None, None)
        assert [one["outcome"] for one in document["deliveries"]] == [None]

    async def test_an_unknown_call_is_none(self, store: Store) -> None:
        """No document is made up."""
        assert await store.call(make.plan().call_id) is None

    async def test_the_calls_of_a_request_are_found_within_its_rollout(self, store: Store, rollout: Rollout) -> None:
        """One for each choice, and none for anybody else."""
        plans = make.plans(2, make.ask(of=rollout))
        await store.reserve(make.reservation(*plans))
        found = await store.request_calls(rollout.rollout_id, plans[0].request_id)

        assert [call["call_id"] for call in found] == [plan.call_id for plan in plans]
        assert await store.request_calls(RolloutId("another"), plans[0].request_id) == ()
        assert await store.request_calls(rollout.rollout_id, "rq_never") == ()

    async def test_a_request_comes_back_whole(self, store: Store, rollout: Rollout) -> None:
        """The client's body as it was, the messages as the engine saw them."""
        sent = [{"role": "system", "content": "at 12:00"}, make.user("\ud800")]
        settled = ({"role": "system", "content": "at X"}, sent[1])
        body = {"messages": sent, "tools": [{"type": "function"}], "top_p": None}
        asked = make.ask(
            *settled, of=rollout, body=body, volatile=(VolatileLine(0, "clock", "at 12:00"),), has_tools=True
        )
        planned = make.plan(asked)
        await store.reserve(make.reservation(planned))
        await store.record([make.call(planned)])

        document = await store.call(planned.call_id)
        assert document is not None
        assert document["request"] == asked.body
        assert list(document["request"]) == list(asked.body)
        assert document["messages"] == list(settled)
        assert document["volatile"] == [{"message": 0, "rule": "clock", "original": "at 12:00"}]

    async def test_a_request_whose_messages_are_of_another_form_comes_back(
        self, store: Store, rollout: Rollout
    ) -> None:
        """Other APIs put more or fewer messages into a body than the engine sees."""
        planned = make.plan(make.ask(make.user(), of=rollout, body={"messages": "none of a list"}))
        await store.reserve(make.reservation(planned))
        await store.record([make.call(planned)])

        document = await store.call(planned.call_id)
        assert document is not None
        assert document["request"]["messages"] == "none of a list"

    async def test_a_request_of_another_api_comes_back_whole(self, store: Store, rollout: Rollout) -> None:
        """Its own list beside the messages that the engine saw, its big and small parts, in their order."""
        blocks = [{"type": "text", "text": word * 200} for word in ("billing", "prompt")]
        body = {
            "metadata": {"user_id": "u" * 400},
            "system": blocks,
            "input": ["one", {"role": "user", "content": "two"}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "instructions": "be brief " * 100,
            "tools": None,
            "stop_sequences": [],
        }
        planned = make.plan(make.ask(make.user("hi"), of=rollout, body=body, api="messages"))
        await store.reserve(make.reservation(planned))
        await store.record([make.call(planned)])

        document = await store.call(planned.call_id)
        assert document is not None
        assert document["request"] == planned.ask.body
        assert list(document["request"]) == list(planned.ask.body)
        assert document["messages"] == [make.user("hi")]

    async def test_calls_page_in_order_of_reservation(self, store: Store, rollout: Rollout) -> None:
        """Not in order of their ends."""
        plans = [await reserve(store, make.user(str(n)), of=rollout) for n in range(5)]
        for planned in reversed(plans):
            await store.record([make.call(planned)])

        first = await store.calls(rollout.rollout_id, None, 2)
        rest = await store.calls(rollout.rollout_id, first.cursor, 10)
        found = [document["call_id"] for document in first.items + rest.items]
        assert found == [planned.call_id for planned in plans]
        assert rest.cursor is None

    async def test_a_call_outcome_raises_the_revision(self, store: Store, rollout: Rollout) -> None:
        """A reward for one call is a change of its rollout."""
        planned = await reserve(store, of=rollout)

        assert await store.set_call_outcome(planned.call_id, {"reward": 0})
        document, after = await store.call(planned.call_id), await store.rollout(rollout.rollout_id)
        assert document is not None
        assert document["outcome"] == {"reward": 0}
        assert after is not None
        assert after.revision == 1

    async def test_an_outcome_of_an_unknown_call_is_refused(self, store: Store) -> None:
        """There is nothing to reward."""
        assert not await store.set_call_outcome(make.plan().call_id, {})


class TestSharedPrompts:
    async def test_300_turns_come_back_whole(self, store: Store, rollout: Rollout) -> None:
        """A chain of hundreds of calls is read back id by id and message by message."""
        talk, prompt, parent = [make.user()], list(make.PROMPT), Parent("root", "first_call")
        prompts, talks = [], []
        for turn in range(300):
            planned = await reserve(store, *talk, of=rollout, parent=parent)
            await store.record([make.call(planned, make.completion(prompt, (turn, make.END)))])
            prompts.append(list(prompt))
            talks.append(list(talk))
            prompt += [turn, make.END, 500, 501]
            talk += [make.assistant(str(turn)), make.user(f"and {turn}?")]
            parent = Parent("resolved", "exact", planned.call_id)

        found, cursor = list[JsonObject](), None
        while not found or cursor:
            page = await store.calls(rollout.rollout_id, cursor, 70)
            found, cursor = [*found, *page.items], page.cursor
        assert [document["prompt_token_ids"] for document in found] == prompts
        assert [document["messages"] for document in found] == talks

    async def test_a_prompt_that_departs_from_its_base_comes_back(self, store: Store, rollout: Rollout) -> None:
        """A template that rewrites history costs room, not truth."""
        first = await reserve(store, make.user("a"), of=rollout)
        await store.record([make.call(first, make.completion((1, 2, 3), (4, 5)))])
        talk = (make.user("a"), make.assistant(), make.user("b"))
        second = await reserve(store, *talk, of=rollout, parent=Parent("resolved", "exact", first.call_id))
        await store.record([make.call(second, make.completion((1, 2, 9), (4,)))])

        document = await store.call(second.call_id)
        assert document is not None
        assert document["prompt_token_ids"] == [1, 2, 9]

    async def test_many_draws_on_one_conversation_come_back(self, store: Store, rollout: Rollout) -> None:
        """Equal prompts are shared, their answers are not."""
        plans = [await reserve(store, of=rollout) for _ in range(5)]
        for number, planned in enumerate(plans):
            await store.record([make.call(planned, make.completion(answer=(number,)))])

        page = await store.calls(rollout.rollout_id, None, 10)
        assert [document["completion_token_ids"] for document in page.items] == [[n] for n in range(5)]
        assert {tuple(document["prompt_token_ids"]) for document in page.items} == {make.PROMPT}


class TestKeeping:
    async def test_the_first_value_is_kept(self, store: Store) -> None:
        """A run seed is drawn once, whoever starts first."""
        assert await store.keep("run_seed", "1") == "1"
        assert await store.keep("run_seed", "2") == "1"

    async def test_a_changed_profile_comes_back(self, store: Store) -> None:
        """The last change stands."""
        first = StoredProfile(Profile("train", temperature=0.7), "digest", make.STARTED_AT)
        last = StoredProfile(Profile("train", max_tokens_cap=10, model="m"), "digest", LATER)
        await store.put_profile(first)
        await store.put_profile(last)

        assert await store.stored_profiles() == (last,)

    async def test_a_healthy_store_answers_a_ping(self, store: Store) -> None:
        """Twice, since the first one creates what the second one changes."""
        await store.ping()
        await store.ping()


class TestPauses:
    PAUSE = Pause("pa_1", "retract", make.STARTED_AT, LATER)

    async def test_a_pause_is_in_force_until_it_is_ended(self, store: Store) -> None:
        """Whatever its lease says."""
        assert await store.pause() is None
        assert await store.begin_pause(self.PAUSE) == self.PAUSE
        assert await store.pause() == self.PAUSE
        assert await store.end_pause(self.PAUSE, LATER)
        assert await store.end_pause(self.PAUSE, LATER)

        assert await store.pause() is None

    async def test_a_pause_that_was_asked_for_again_is_not_ended_by_who_has_not_seen_it(self, store: Store) -> None:
        """Two trainers: what one of them resumes is not what the other has paused since."""
        await store.begin_pause(self.PAUSE)
        renewed = await store.begin_pause(replace(self.PAUSE, pause_id="pa_2", lease_until=LATER + 1))

        assert not await store.end_pause(self.PAUSE, LATER)
        assert not await store.end_pause(None, LATER)
        assert await store.pause() == renewed
        assert await store.end_pause(renewed, LATER)

    async def test_a_second_pause_renews_the_lease_of_the_first(self, store: Store) -> None:
        """One of another mode is refused, and changes nothing."""
        await store.begin_pause(self.PAUSE)
        renewed = await store.begin_pause(replace(self.PAUSE, pause_id="pa_2", asked_at=LATER, lease_until=LATER + 9))
        with pytest.raises(Conflict, match="retract"):
            await store.begin_pause(replace(self.PAUSE, mode="abort"))

        assert renewed == await store.pause() == replace(self.PAUSE, lease_until=LATER + 9)

    async def test_live_replicas_are_silent_until_they_acknowledge(self, store: Store) -> None:
        """One whose sign of life has run out is not waited for, and neither is one that left."""
        now = make.STARTED_AT
        for owner, until in (("px_1", LATER), ("px_2", LATER), ("px_3", now + 1), ("px_4", LATER)):
            await store.stay_alive(owner, until, now)
        await store.begin_pause(self.PAUSE)
        await store.acknowledge("px_1", "pa_1")
        await store.leave("px_4")

        assert await store.silent("pa_1", now) == ("px_2", "px_3")
        assert await store.silent("pa_1", now + 2) == ("px_2",)
        assert await store.silent("pa_2", now + 2) == ("px_1", "px_2")


class TestWeights:
    SEEN = Weights("http://engine", "w1", told_by="engine", is_flushed=False, kv="kept")

    async def test_each_change_begins_an_epoch(self, store: Store) -> None:
        """Also back to a name that there was."""
        told = [
            await store.change_weights(replace(self.SEEN, version=version), LATER) for version in ("w1", "w2", "w1")
        ]

        assert [weights.epoch for weights in told] == [1, 2, 3]
        assert await store.weights() == (replace(self.SEEN, epoch=3),)

    async def test_what_is_not_new_changes_nothing(self, store: Store) -> None:
        """Replicas that notice the same change begin one epoch."""
        first = await store.change_weights(self.SEEN, LATER, only_if_new=True)
        again = await store.change_weights(replace(self.SEEN, kv="unknown"), LATER, only_if_new=True)

        assert first == again == replace(self.SEEN, epoch=1)
