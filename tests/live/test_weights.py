"""New weights under a real engine, in the middle of replies: every token is labelled with the weights that drew it.

The engines are unchanged servers; the trainer here does what trainers do, through their own endpoints. What the labels
say is held against transformers: a segment's logprobs must be those of its own weights, and of no others.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.live.engines.start import running
from tests.live.harness import AS_STREAM, LOGPROB_TOLERANCE, PATIENCE_S, Site, Tell, site_before, until
from tests.live.labels import (
    FAR,
    asked_on,
    check_segments,
    furthest,
    interrupted,
    is_doubtful,
    is_interrupted,
    segments_of,
)
from tests.live.speaking import HALVES, NO_END, NO_THINKING, ONLY_HALVES, Json
from tests.live.trainer import CALLS, LONG, MOST_UPDATES, TEXTS, TOKENS, Call, Trainer, long_calls, update_under_calls

ON_SGLANG = pytest.mark.parametrize("trainer", ["sglang"], indirect=True)
# One call in four is cut in the middle of a character.
MOST_PAUSES = 12
ON_VLLM = pytest.mark.parametrize("trainer", ["vllm"], indirect=True)


@pytest.fixture(scope="module")
def trainer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    """An engine of this module's own: nobody else would like what becomes of it."""
    with running(request.param) as engine, site_before(engine, tmp_path_factory.mktemp(engine.kind)) as site:
        yield Trainer(site, engine.model_dir)


@ON_SGLANG
@AS_STREAM
def test_an_interrupted_reply_is_the_uninterrupted_one_on_sglang(trainer: Trainer, *, stream: bool) -> None:
    """Aborted by the engine's own endpoint in the middle, twice: the same ids, the same logprobs, the same message."""
    group = trainer.group()
    plain = Call(trainer.site, group=group, stream=stream).record()
    record = drawn_again_with_aborts(trainer.site, group, stream=stream)

    assert record["completion_token_ids"] == plain["completion_token_ids"]
    assert record["logprobs"] == pytest.approx(plain["logprobs"], abs=LOGPROB_TOLERANCE)
    assert {segment["seed"] for segment in record["segments"]} == {plain["seed"]["value"]}
    assert record["message"] == plain["message"]


def drawn_again_with_aborts(site: Site, group: str, *, stream: bool) -> Json:
    """The first of a few records that an abort met in mid-reply: one that is told late finds the engine done."""
    for again in range(MOST_UPDATES):
        cut = Call(site, group=group, run=f"again-{again}", stream=stream)
        for _ in range(2):
            until(lambda cut=cut: site.running_requests() == 1 or not cut.is_alive())
            site.works_on()
            httpx.post(f"{site.engine.url}/abort_request", json={"abort_all": True}, timeout=PATIENCE_S)
        if not cut.is_refused() and is_interrupted(record := cut.record()):
            return record
    raise AssertionError(f"aborts met none of {MOST_UPDATES} replies")


@ON_SGLANG
@AS_STREAM
def test_an_update_in_mid_flight_mislabels_no_token_on_sglang(trainer: Trainer, tell: Tell, *, stream: bool) -> None:
    """Pause with abort, update, tell, resume."""
    update_and_check(trainer, "abort", tell, stream=stream)


@ON_SGLANG
def test_retracted_calls_change_their_weights_where_the_engine_says_on_sglang(trainer: Trainer, tell: Tell) -> None:
    """Whole replies tell the spans; the cache was computed anew."""
    update_and_check(trainer, "retract", tell, stream=False)


def update_and_check(trainer: Trainer, mode: str, tell: Tell, *, stream: bool) -> None:
    met = update_under_calls(trainer, mode, is_interrupted, stream=stream)
    (old_version, _), (version, _) = met.old, met.new
    engine, records, later = trainer.site.engine, met.records, trainer.call().record()
    worst = check_segments(engine, [*records, later], dict((met.old, met.new)))
    how = "streamed" if stream else "whole"
    tell(f"{engine.kind}: {mode}: {len(records)} {how} replies across an update within {worst:.1e} of transformers")

    assert {
        (part["weight_version"], part["kv_version"], *part["notes"])
        for record in records
        for part in record["segments"]
    } == {(old_version, None), (version, None)}
    assert [part["weight_version"] for part in later["segments"]] == [version]
    assert worst < LOGPROB_TOLERANCE


@ON_SGLANG
def test_streams_of_retracted_calls_are_not_guessed_on_sglang(trainer: Trainer) -> None:
    """They do not tell where the weights changed."""
    met = update_under_calls(trainer, "retract", is_doubtful, stream=True)

    assert {tuple(record["segments"][0]["notes"]) for record in met.records} == {("weights_changed_in_mid_reply",)}


@ON_SGLANG
def test_a_kept_cache_is_named_and_later_calls_do_not_meet_it_on_sglang(trainer: Trainer, tell: Tell) -> None:
    """Tokens behind the update are those of no weights alone. What it left in the cache only the salt hides."""
    old_version = version_now(trainer)
    engine, old, old_salt = trainer.site.engine, trainer.now, salt_now(trainer.site)
    calls = long_calls(trainer, stream=False)
    version = trainer.update("in_place", flush_cache=False)
    records = interrupted([call.record() for call in calls])
    first, second = records[0]["segments"][:2]
    behind = [run for run in segments_of(records) if run.version == version]
    mixed = min(difference for model in (old, trainer.now) for difference in furthest(engine, behind, model))
    salts = salt_now(trainer.site), old_salt
    salted, unsalted = (asked_on(engine, records[0], salt, trainer.now) for salt in salts)
    tell(f"sglang: in_place: mixed {mixed:.1e}, later {salted:.1e} with the salt, {unsalted:.1e} without it")

    assert [part["weight_version"] for part in (first, second)] == [old_version, version]
    assert [part["kv_version"] for part in (first, second)] == [None, old_version]
    assert mixed > FAR
    assert salted < LOGPROB_TOLERANCE
    assert unsalted > FAR


@pytest.mark.parametrize("trainer", ["sglang", "vllm"], indirect=True)
@AS_STREAM
def test_an_abort_in_mid_character_leaves_no_replacement(trainer: Trainer, tell: Tell, *, stream: bool) -> None:
    """Every token is half a character. Whatever the cut fell into, a client reads what the engine makes of all ids."""
    found = 0
    for _ in range(MOST_PAUSES):
        calls = half_characters(trainer, stream=stream)
        trainer.site.order("/pause", {"mode": "abort", "lease_s": PATIENCE_S})
        trainer.site.order("/resume")
        records = [call.record() for call in calls]

        assert [call.said() for call in calls] == [whole_text(trainer.site.kind, record) for record in records]
        assert [text_of(record) for record in records] == [call.said() for call in calls]
        found += sum(is_cut_in_two(record) for record in records)
        if found:
            break
    tell(
        f"{trainer.site.kind}: {found} {'streamed' if stream else 'whole'} replies went on in the middle of a character"
    )

    assert found


def half_characters(trainer: Trainer, *, stream: bool) -> list[Call]:
    """Calls in the middle of their replies, thoughts and words, whose tokens are halves of characters."""
    fields = {**LONG[trainer.site.kind], **ONLY_HALVES, "stream": stream}
    how: list[Any] = [{}, NO_THINKING]
    calls = [trainer.call(**fields, **how[number % 2]) for number in range(CALLS)]
    until(lambda: all(call.is_known() for call in calls))
    trainer.site.works_on(8)
    return calls


def whole_text(kind: str, record: Any) -> str:
    """What an engine tells of these tokens in a whole reply; vLLM leaves out what is no character at the end."""
    text = b"".join(HALVES[token] for token in record["completion_token_ids"]).decode(errors="replace")
    return text if kind == "sglang" else text.rstrip("\ufffd")


def text_of(record: Any) -> str:
    return "".join(record["message"].get(name) or "" for name in TEXTS)


def is_cut_in_two(record: Any) -> bool:
    """Whether a part of it ended with the first half of a character and the next began with the second."""
    ids, cuts = record["completion_token_ids"], [part["end"] for part in record["segments"][:-1]]
    return any(ids[cut - 1 : cut + 1] == list(HALVES) for cut in cuts)


def version_now(trainer: Trainer) -> str:
    """The version that a call is told to be drawn by."""
    return str(trainer.call().record()["segments"][0]["weight_version"])


def salt_now(site: Site) -> str:
    """What the proxy sends with calls now."""
    weights = site.proxy.wiring.weights
    return weights.salt(weights.at(site.engine.url))


@ON_SGLANG
def test_a_second_turn_after_an_update_is_on_the_new_weights_alone_on_sglang(trainer: Trainer) -> None:
    """Its prefix was computed under the old ones: it is supplied as ids, and computed anew."""
    second_turn(trainer, flush_cache=False)


@ON_VLLM
@AS_STREAM
def test_an_update_in_mid_flight_mislabels_no_token_on_vllm(trainer: Trainer, tell: Tell, *, stream: bool) -> None:
    """The same, with vLLM's own endpoints; segments have seeds of their own."""
    update_and_check(trainer, "abort", tell, stream=stream)


@ON_VLLM
def test_draining_ends_calls_on_the_old_weights_on_vllm(trainer: Trainer) -> None:
    """One version each, and not a token of the new ones."""
    old_version = version_now(trainer)
    old = trainer.now
    calls = long_calls(trainer, stream=True)
    trainer.update("wait")
    records = [call.record() for call in calls]

    assert [[part["weight_version"] for part in record["segments"]] for record in records] == [[old_version]] * CALLS
    assert max(furthest(trainer.site.engine, segments_of(records), old)) < LOGPROB_TOLERANCE


@ON_VLLM
def test_what_keep_drew_is_not_guessed_on_vllm(trainer: Trainer) -> None:
    """Chat does not tell where the weights changed."""
    met = update_under_calls(trainer, "keep", is_doubtful, stream=False)

    assert {tuple(record["segments"][0]["notes"]) for record in met.records} == {("weights_changed_in_mid_reply",)}


@ON_VLLM
def test_weights_that_changed_without_a_word_are_noticed_on_vllm(trainer: Trainer, tell: Tell) -> None:
    """Nothing was flushed. The first call is in doubt, the next is on the new weights alone; unsalted none is."""
    # One that ended by itself might be too short for anything of it to be kept in the cache.
    record = trainer.call(**NO_END).record()
    engine, old_salt = trainer.site.engine, salt_now(trainer.site)
    version = trainer.load()
    doubtful, clear = (trainer.call().record() for _ in range(2))
    salts = salt_now(trainer.site), old_salt
    salted, unsalted = (asked_on(engine, record, salt, trainer.now) for salt in salts)
    tell(f"vllm: without a pause: later {salted:.1e} with the salt, {unsalted:.1e} without it")

    assert [part["notes"] for part in doubtful["segments"]] == [["weights_changed_in_mid_reply"]]
    assert [part["weight_version"] for part in clear["segments"]] == [version]
    assert max(furthest(engine, segments_of([clear]), trainer.now)) < LOGPROB_TOLERANCE
    assert salted < LOGPROB_TOLERANCE
    assert unsalted > FAR


@ON_VLLM
def test_a_second_turn_after_an_update_is_on_the_new_weights_alone_on_vllm(trainer: Trainer) -> None:
    """The same on vLLM."""
    second_turn(trainer)


def second_turn(trainer: Trainer, **more: Any) -> None:
    first = trainer.call()
    said, record = first.reply().json()["choices"][0]["message"], first.record()
    version = trainer.update("abort", **more)
    talk = [*record["messages"], said, {"role": "user", "content": "And then?"}]
    answer = first.client.post({"model": "policy", "messages": talk, "max_tokens": 40})
    assert answer.status_code == 200, answer.text
    later = first.client.calls()[1]

    assert [part["weight_version"] for part in later["segments"]] == [version]
    assert max(furthest(trainer.site.engine, segments_of([later]), trainer.now)) < LOGPROB_TOLERANCE


@ON_SGLANG
def test_a_call_across_two_updates_and_a_stop_keeps_its_books_on_sglang(trainer: Trainer) -> None:
    """As many segments as there were weights, and the whole budget and no more."""
    calls = long_calls(trainer, stream=False)
    for _ in range(2):
        trainer.update("abort")
        trainer.site.works_on()
    records = interrupted([call.record() for call in calls])

    assert max(len(record["segments"]) for record in records) == 3
    assert all(len(record["completion_token_ids"]) <= TOKENS["sglang"] for record in records)
    assert all(record["usage"]["completion_tokens"] == len(record["completion_token_ids"]) for record in records)
