"""What the PostgreSQL store promises beyond the contract of every store: many processes, lost sessions, secrets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import psycopg
import pytest

from proxy.cassette.tape import open_tape
from proxy.errors import BadAsk, StoreDown
from proxy.model import CallId, Claimed, RolloutId
from proxy.record import postgres as postgres_store
from proxy.record.faults import StoreUnreadable
from proxy.record.opening import open_reading
from proxy.record.postgres import PostgresDatabase, PostgresStore
from proxy.record.store import RolloutFilter, Store
from proxy.record.writer import Durability, Writer
from proxy.verify.story import Looking, verify_store
from tests import make
from tests.patience import until
from tests.postgres import PostgresServer, running_server
from tests.record.killing import assert_kept, kill_amid_recording
from tests.record.recorder import CALLERS

pytestmark = pytest.mark.anyio

AT_ONCE = 200
# Sessions that work, and those that do nothing but show that a process lives.
WORKS, SHOWS = "application_name = 'rollpin'", "application_name = 'rollpin-presence'"
# Locks that say so of a process, and the one of whoever writes.
LIVES, WRITES = (f"locktype = 'advisory' and mode = '{mode}'" for mode in ("ShareLock", "ExclusiveLock"))
STRANGE = "a\x00b \ud83d half of a pair, \\u0000 and %s"


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """An empty schema."""
    return postgres.new_schema()


@pytest.fixture
async def stores(url: str) -> AsyncIterator[Callable[[int], object]]:
    """Opens that many stores on one schema, as that many processes would."""
    async with AsyncExitStack() as stack:

        async def open_stores(number: int) -> list[PostgresStore]:
            opened = [PostgresStore(url) for _ in range(number)]
            await asyncio.gather(*(store.open() for store in opened))
            for store in opened:
                stack.push_async_callback(store.close)
            return opened

        yield open_stores


async def test_it_is_a_store(url: str) -> None:
    """The type checker agrees that the Protocol is met."""
    store: Store = PostgresStore(url)
    await store.open()
    await store.close()


# --- many processes ---------------------------------------------------------------------------------------------


async def test_processes_that_start_at_once_make_one_schema(stores, url: str) -> None:  # type: ignore[no-untyped-def]
    """Each step is taken by one of them, and the others wait for it."""
    one, *others = await stores(8)
    await one.create_rollouts([make.rollout()])

    assert [await other.rollout(RolloutId("r1")) for other in others] == [make.rollout()] * 7


async def test_no_number_is_given_twice(stores) -> None:  # type: ignore[no-untyped-def]
    """Reservations that two processes make at once are counted as those of one."""
    both = await stores(2)
    await both[0].create_rollouts([make.rollout()])
    planned = [make.plan() for _ in range(AT_ONCE)]
    given = await asyncio.gather(
        *(both[place % 2].reserve(make.reservation(plan)) for place, plan in enumerate(planned))
    )

    assert sorted(reserved.occurrence for reserved in given) == list(range(AT_ONCE))
    page = await both[1].calls(RolloutId("r1"), None, 2 * AT_ONCE)
    assert len({call["seed"]["value"] for call in page.items}) == AT_ONCE
    assert verify_numbers(await asyncio.to_thread(verify_store, both[0]._postgres._url, Looking())) == []


def verify_numbers(report) -> list[object]:  # type: ignore[no-untyped-def]
    return [fault for fault in report.faults if fault.check == "numbers"]


async def test_a_loss_is_made_good_once_whoever_is_asked(stores) -> None:  # type: ignore[no-untyped-def]
    """Of identical requests that come to several processes at once, one claims the failed draw."""
    several = await stores(4)
    await several[0].create_rollouts([make.rollout()])
    first = make.plan()
    asking = make.reservation(first, repeat=make.repeat("same"))
    await several[0].reserve(asking)
    await several[0].record([make.call(first, make.failure())])
    answers = await asyncio.gather(
        *(store.reserve(make.reservation(make.plan(), repeat=make.repeat("same"))) for store in several)
    )

    assert [type(answer) for answer in answers].count(Claimed) == 1


async def test_what_one_process_records_another_goes_on_from(stores) -> None:  # type: ignore[no-untyped-def]
    """Shared prompts are put together from what others wrote, and a retried call has the tokens of its last try."""
    one, other = await stores(2)
    await one.create_rollouts([make.rollout()])
    planned = make.plan(call_id=CallId("call_a"))
    asking = make.reservation(planned, repeat=make.repeat("same"))
    await one.reserve(asking)
    await one.record([make.call(planned, make.failure(partial=make.completion(answer=(7, 8))))])
    again = await other.reserve(make.reservation(make.plan(), repeat=make.repeat("same")))
    assert isinstance(again, Claimed)
    await other.record([make.call(replace(planned, tries=again.tries), make.completion(answer=(9,)))])

    for store in (one, other):
        turn = await store.sampled_turn(RolloutId("r1"), planned.call_id)
        assert turn is not None
        assert turn.completion_ids == (9,)


async def test_readings_of_a_process_that_fell_silent_are_lost(stores) -> None:  # type: ignore[no-untyped-def]
    """The next identical request is then a retry, and one that comes before is not."""
    one, other = await stores(2)
    await one.create_rollouts([make.rollout()])
    await one.stay_alive(make.OWNER, make.STARTED_AT + 10, make.STARTED_AT)
    planned = make.plan()
    await one.reserve(make.reservation(planned, repeat=make.repeat("same")))
    await one.record([make.call(planned)])
    await other.stay_alive("px_other", make.STARTED_AT + 15, make.STARTED_AT + 5)
    early = await other.reserve(make.reservation(make.plan(), repeat=make.repeat("same"), owner="px_other"))
    await other.stay_alive("px_other", make.STARTED_AT + 25, make.STARTED_AT + 11)
    late = await other.reserve(make.reservation(make.plan(), repeat=make.repeat("same"), owner="px_other"))

    assert not isinstance(early, Claimed)
    assert isinstance(late, Claimed)
    assert (late.reason, late.call_ids) == ("client_gone", (planned.call_id,))


async def test_a_reading_that_was_only_taken_for_lost_is_none(stores) -> None:  # type: ignore[no-untyped-def]
    """Its process was silent, and then delivered the reply: the next identical request is a draw of its own."""
    one, other = await stores(2)
    await one.create_rollouts([make.rollout()])
    await one.stay_alive(make.OWNER, make.STARTED_AT + 10, make.STARTED_AT)
    planned = make.plan()
    asking = make.reservation(planned, repeat=make.repeat("same"))
    await one.reserve(asking)
    await other.stay_alive("px_other", make.STARTED_AT + 25, make.STARTED_AT + 11)
    (taken,) = (await one.call(planned.call_id))["deliveries"]
    await one.record([make.call(planned)])
    await one.deliver(make.delivery(asking.delivery_id))
    (told,) = (await other.call(planned.call_id))["deliveries"]
    repeated = await other.reserve(make.reservation(make.plan(), repeat=make.repeat("same"), owner="px_other"))

    assert (taken["outcome"], told["outcome"]) == ("lost", "delivered")
    assert not isinstance(repeated, Claimed)


async def test_a_lost_reading_that_was_made_good_stays_so(stores) -> None:  # type: ignore[no-untyped-def]
    """Who claimed the reply meanwhile has it: it is not claimed once more because the first reader had it as well."""
    one, other = await stores(2)
    await one.create_rollouts([make.rollout()])
    await one.stay_alive(make.OWNER, make.STARTED_AT + 10, make.STARTED_AT)
    asking = make.reservation(make.plan(), repeat=make.repeat("same"))
    await one.reserve(asking)
    await one.record([make.call(replace(make.plan(), call_id=asking.draws[0].call_id))])
    await other.stay_alive("px_other", make.STARTED_AT + 25, make.STARTED_AT + 11)
    claims = make.reservation(make.plan(), repeat=make.repeat("same"), owner="px_other")
    claimed = await other.reserve(claims)
    await other.deliver(make.delivery(claims.delivery_id, "client_gone"))
    await one.deliver(make.delivery(asking.delivery_id))
    again = await other.reserve(make.reservation(make.plan(), repeat=make.repeat("same"), owner="px_other"))

    assert isinstance(claimed, Claimed)
    assert isinstance(again, Claimed)


# --- crashes and lost sessions ----------------------------------------------------------------------------------


async def test_every_acknowledged_record_survives_a_kill(url: str) -> None:
    """A proxy that is killed amid its work has lost nothing that it had promised, and left nothing half done."""
    told = kill_amid_recording(url)
    store = PostgresStore(url)
    await store.open()

    await assert_kept(store, told)
    await store.close()
    report = await asyncio.to_thread(verify_store, url, Looking())
    assert (report.faults, report.rollouts) == ([], CALLERS)


async def test_sessions_that_were_cut_off_are_opened_anew(stores, postgres: PostgresServer) -> None:  # type: ignore[no-untyped-def]
    """Between transactions nothing is lost by it, so nobody is told."""
    (store,) = await stores(1)
    await store.create_rollouts([make.rollout()])
    await store.rollout(RolloutId("r1"))
    await asyncio.to_thread(postgres.cut_off)

    assert await store.rollout(RolloutId("r1")) == make.rollout()
    await store.ping()


@pytest.mark.parametrize("which", [WORKS, SHOWS])
async def test_a_process_that_lost_a_session_is_not_taken_for_dead(  # type: ignore[no-untyped-def]
    stores, postgres: PostgresServer, which: str
) -> None:
    """It need not write for that: others leave its running calls alone."""
    _one, other, call_id = await running_call(stores)
    await asyncio.to_thread(postgres.cut_off, which)

    assert await other.sweep(make.STARTED_AT) == 0
    assert (await other.call(call_id))["state"] == "reserved"


async def test_presence_is_regained_without_a_write(stores, postgres: PostgresServer) -> None:  # type: ignore[no-untyped-def]
    """Where all sessions were cut off at once, as by a restart of the server, the first to come back shows it."""
    _one, other, call_id = await running_call(stores)
    for _ in range(3):
        await asyncio.to_thread(postgres.cut_off)
        await asyncio.to_thread(until, lambda: is_held(postgres))

        assert await other.sweep(make.STARTED_AT) == 0
    assert (await other.call(call_id))["state"] == "reserved"


async def test_presence_outlasts_a_server_that_is_away() -> None:
    """It is back when the server is, however long that takes; and gone with its store."""
    with running_server() as server:
        store = PostgresStore(server.url())
        await store.open()
        await store.stay_alive(make.OWNER, 2e9, make.STARTED_AT)
        await asyncio.to_thread(server.stop)
        with pytest.raises(StoreDown):
            await store.ping()
        await asyncio.to_thread(server.start)
        await asyncio.to_thread(until, lambda: is_held(server))
        await store.close()

        await asyncio.to_thread(until, lambda: not is_held(server))


async def running_call(stores) -> tuple[PostgresStore, PostgresStore, CallId]:  # type: ignore[no-untyped-def]
    """Two stores, and a call that the first one's process draws."""
    one, other = await stores(2)
    await one.create_rollouts([make.rollout()])
    await one.stay_alive(make.OWNER, 2e9, make.STARTED_AT)
    planned = make.plan()
    await one.reserve(make.reservation(planned))
    return one, other, planned.call_id


def is_held(server: PostgresServer) -> bool:
    """Whether a session shows that a process lives."""
    return locks(server, LIVES) > 0


def locks(server: PostgresServer, which: str) -> int:
    """How many such locks are held or waited for."""
    ((number,),) = server.run(f"select count(*) from pg_locks where {which}")
    assert isinstance(number, int)
    return number


async def test_a_session_that_is_lost_in_a_transaction_fails_its_group_alone(
    url: str, postgres: PostgresServer
) -> None:
    """Nothing of the group is acknowledged or kept, and the next job runs on a fresh session."""
    writer = await started(url, "create table notes (note text unique)")

    def breaks(db: object) -> None:
        note(db, "undone")
        postgres.cut_off()
        note(db, "never")

    with pytest.raises(StoreDown, match="store postgresql://rollpin@/postgres"):
        await writer.write(breaks, durable=True)
    await writer.write(lambda db: note(db, "kept"), durable=True)

    rows = await writer.write(lambda db: db.execute("select note from notes").fetchall(), durable=False)
    assert [row["note"] for row in rows] == ["kept"]
    await writer.stop()


async def test_a_server_that_is_away_is_told_of_and_waited_for() -> None:
    """Without a restart of the proxy."""
    with running_server() as server:
        store = PostgresStore(server.url())
        await store.open()
        await asyncio.to_thread(server.stop)
        with pytest.raises(StoreDown):
            await store.create_rollouts([make.rollout()])
        with pytest.raises(StoreDown):
            await store.rollout(RolloutId("r1"))
        await asyncio.to_thread(server.start)
        await store.create_rollouts([make.rollout()])

        assert await store.rollout(RolloutId("r1")) == make.rollout()
        await store.close()


async def test_a_process_that_stands_still_with_the_lock_is_told_of(
    url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for a while and then say why, and go on once the server has noticed that it is gone."""
    monkeypatch.setattr(postgres_store, "_WRITING", ("set lock_timeout = '50ms'",))
    store = PostgresStore(url)
    await store.open()
    database = PostgresDatabase(url)
    other = await asyncio.to_thread(database.connect_writing)
    database.begin_writing(other, synced=False)
    with pytest.raises(StoreDown, match="lock timeout"):
        await store.ping()
    other.close()
    await asyncio.to_thread(until, lambda: not locks(postgres, WRITES))

    await store.ping()
    await store.close()


async def test_a_start_waits_for_whoever_brings_the_schema_up_to_date(
    url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may take longer than any write."""
    monkeypatch.setattr(postgres_store, "_WRITING", ("set lock_timeout = '1ms'",))
    database, store = PostgresDatabase(url), PostgresStore(url)
    other = await asyncio.to_thread(database.connect_writing)
    database.begin_writing(other, synced=False)
    starting = asyncio.create_task(store.open())
    await asyncio.to_thread(until, lambda: locks(postgres, f"{WRITES} and not granted"))
    other.execute("commit")

    await starting
    await store.close()
    other.close()


# --- what a group of writes is ----------------------------------------------------------------------------------


def note(db, text: str) -> None:  # type: ignore[no-untyped-def]
    db.execute("insert into notes values (?)", (text,))


async def started(url: str, first: str = "", durability: Durability = "fsync") -> Writer:
    writer = Writer(PostgresDatabase(url), durability)
    writer.start()
    if first:
        await writer.write(lambda db: db.execute(first), durable=True)
    return writer


async def test_a_failing_job_leaves_its_neighbours_alone(url: str) -> None:
    """A broken constraint, a text that cannot be kept: their own work is undone, that of others is kept."""
    writer = await started(url, "create table notes (note text unique)")
    works = ["a", "a", "b\x00", "c" * 100_000 + "".join(map(chr, range(33, 50_000))), "d"]
    results = await asyncio.gather(
        *(writer.write(lambda db, text=text: note(db, text), durable=True) for text in works), return_exceptions=True
    )

    kinds = [type(result) for result in results]
    assert kinds == [
        type(None),
        psycopg.errors.UniqueViolation,
        BadAsk,
        psycopg.errors.ProgramLimitExceeded,
        type(None),
    ]
    rows = await writer.write(lambda db: db.execute("select note from notes order by note").fetchall(), durable=False)
    assert [row["note"] for row in rows] == ["a", "d"]
    await writer.stop()


@pytest.mark.parametrize(
    ("durability", "job", "setting"),
    [("fsync", "record", "on"), ("fsync", "reservation", "off"), ("wal", "record", "off")],
)
async def test_only_what_must_survive_a_crash_waits_for_the_disk(
    url: str, durability: Durability, job: str, setting: str
) -> None:
    """As with a file."""
    writer = await started(url, durability=durability)
    told = await writer.write(lambda db: db.execute("show synchronous_commit").fetchone()[0], durable=job == "record")

    assert told == setting
    await writer.stop()


async def test_texts_come_back_as_they_were(stores) -> None:  # type: ignore[no-untyped-def]
    """Also those that PostgreSQL's own JSON refuses; and the call is found by them."""
    (store,) = await stores(1)
    await store.create_rollouts([make.rollout(metadata={"strange": STRANGE})])
    planned = make.plan(make.ask(make.user(STRANGE)))
    await store.reserve(make.reservation(planned))
    await store.record(
        [make.call(planned, make.completion(message=make.assistant(STRANGE), engine_message=make.assistant(STRANGE)))]
    )
    following = make.ask(make.user(STRANGE), make.assistant(STRANGE), make.user("and then?"))
    history = planned.ask.conversation.history[-1]
    search = await store.find_parents(RolloutId("r1"), following.conversation, [history])

    rollout, document = await store.rollout(RolloutId("r1")), await store.call(planned.call_id)
    assert rollout is not None
    assert document is not None
    assert rollout.metadata == {"strange": STRANGE}
    assert document["messages"] == [make.user(STRANGE)]
    assert [candidate.message["content"] for candidate in search.candidates] == [STRANGE]


async def test_a_name_that_cannot_be_kept_is_refused_and_none_is_found_by_it(stores) -> None:  # type: ignore[no-untyped-def]
    """With words for the caller."""
    (store,) = await stores(1)

    with pytest.raises(BadAsk, match="cannot keep"):
        await store.rollouts(RolloutFilter(run="a\x00b"), None, 10)


async def test_a_recorded_run_is_played_from_it(stores, url: str) -> None:  # type: ignore[no-untyped-def]
    """While a proxy serves from it, as from a file."""
    (store,) = await stores(1)
    await store.create_rollouts([make.rollout(run="first")])
    planned = make.plan()
    await store.reserve(make.reservation(planned))
    await store.record([make.call(planned)])
    tape = await open_tape("first", url)

    assert tape.recorded(RolloutId("r1")) == make.rollout(run="first")
    assert tape.engine["name"] == planned.engine.name
    await tape.close()


# --- opening ----------------------------------------------------------------------------------------------------


async def test_a_newer_schema_is_refused(url: str) -> None:
    """Writing to it could break what the newer version relies on."""
    store = PostgresStore(url)
    await store.open()
    await store._writer.write(
        lambda db: db.execute("insert into schema_migrations values ('9999_newer', '')"), durable=True
    )
    await store.close()

    for open_it in (PostgresStore(url).open, lambda: open_reading(url)):
        with pytest.raises(StoreUnreadable, match="9999_newer"):
            await open_it()


async def test_a_reader_makes_no_schema(url: str, postgres: PostgresServer) -> None:
    """It says what has to be done instead."""
    for _ in range(2):
        with pytest.raises(StoreUnreadable, match="older version, or none"):
            await open_reading(url)


async def test_a_reader_sees_what_running_proxies_write_and_writes_nothing(stores, url: str) -> None:  # type: ignore[no-untyped-def]
    """Looking needs no lock, and the server holds it to looking."""
    (store,) = await stores(1)
    reading = await open_reading(url)
    await store.create_rollouts([make.rollout()])

    assert await reading.rollout(RolloutId("r1")) == make.rollout()
    with pytest.raises(StoreDown, match="read-only"):
        await reading._reader.read(lambda db: db.execute("delete from rollouts"))
    await reading.close()


async def test_a_database_of_another_encoding_is_refused(postgres: PostgresServer) -> None:
    """It could not keep every text."""
    postgres.run("create database latin encoding 'LATIN1' template template0")

    with pytest.raises(StoreUnreadable, match="LATIN1"):
        await PostgresStore(postgres.url().replace("/postgres?", "/latin?")).open()


@pytest.mark.parametrize("place", ["nobody.invalid/db", "h/db?port=x", "[::1]:1/db", "/db?host=/nowhere"])
async def test_no_error_tells_the_password(place: str) -> None:
    """Wherever the server is looked for in vain."""
    with pytest.raises(StoreDown) as caught:
        await PostgresStore(f"postgresql://rollpin:s%40cret-word@{place}").open()

    assert "cret-word" not in str(caught.value)
    assert "store postgresql://rollpin@" in str(caught.value)
