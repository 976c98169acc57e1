"""`rollpin check` on simulated engines with one thing wrong each: named, judged, and mended by the right flag."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.check.report import Line, Report, check_all, document, status_of
from proxy.check.server import IDLE_S
from tests.check.router import router
from tests.fakes import FakeEngine, Fault
from tests.fakes.front import Strict, serving
from tests.served import settings_for

pytestmark = pytest.mark.anyio


async def checked(folder: Path, url: str, **fields: Any) -> Report:
    (report,) = await check_all(settings_for(folder, url, **fields))
    return report


def by_name(report: Report) -> dict[str, Line]:
    assert report.problem is None, report.problem
    return {line.check.name: line for line in report.lines}


def odd(report: Report) -> dict[str, str]:
    """The checks that did not pass, by their verdict."""
    return {name: line.seen.verdict for name, line in by_name(report).items() if line.seen.verdict != "pass"}


async def test_an_engine_with_nothing_wrong_passes_every_check(tmp_path: Path) -> None:
    """A deterministic SGLang with neutral defaults; the one warning is that filtering calls disturb it."""
    with FakeEngine("sglang", neutral_defaults=True, token_delay_s=0.003) as engine:
        # The first call that filters lasts for as long as all that is drawn beside it.
        engine.script_when(lambda body: body.get("top_p") == 0.9, Fault.slow(0.06))
        report = await checked(tmp_path, engine.url)

    assert odd(report) == {"classes": "warn"}
    assert report.verdict == "warn"
    assert status_of([report]) == 0


async def test_a_vllm_outside_its_development_mode_says_less(tmp_path: Path) -> None:
    """Guarantee and weight version are not told there."""
    with FakeEngine("vllm", neutral_defaults=True) as engine:
        report = await checked(tmp_path, engine.url)

    assert odd(report) == {"determinism": "warn", "weights": "warn"}


async def test_a_missing_deterministic_flag_is_named_with_its_remedy(tmp_path: Path) -> None:
    """A warning, and a failure where replay is required."""
    with FakeEngine("sglang", deterministic=False, neutral_defaults=True) as engine:
        lenient = await checked(tmp_path, engine.url)
        strict = await checked(tmp_path, engine.url, require_replayable=True)

    assert {name: odd(lenient)[name] for name in ("seeds", "determinism")} == {"seeds": "warn", "determinism": "warn"}
    assert "--enable-deterministic-inference" in by_name(lenient)["seeds"].remedy
    assert (odd(strict)["seeds"], status_of([strict])) == ("fail", 1)


@pytest.mark.parametrize(
    ("kind", "remedy"), [("vllm", "--generation-config vllm"), ("sglang", "--sampling-defaults openai")]
)
async def test_a_default_that_leaks_is_named_with_its_remedy(tmp_path: Path, kind: Any, remedy: str) -> None:
    """The model's files ask for top_k 20, and whoever leaves it out gets it."""
    with FakeEngine(kind) as engine:
        line = by_name(await checked(tmp_path, engine.url))["defaults"]

    assert line.seen.verdict == "warn"
    assert "leaves" in line.seen.what
    assert remedy in line.remedy


async def test_raw_logprobs_beside_a_temperature_are_named_with_their_remedy(tmp_path: Path) -> None:
    """Only where a profile bends the distribution, and a failure where replay is required."""
    bent = {"train": {"temperature": 0.7}, "validation": {}}
    with FakeEngine("vllm") as engine, FakeEngine("vllm", raw_logprobs=False) as processed:
        plain = by_name(await checked(tmp_path, engine.url))["logprobs"]
        raw = by_name(await checked(tmp_path, engine.url, profiles=bent))["logprobs"]
        strict = by_name(await checked(tmp_path, engine.url, profiles=bent, require_replayable=True))["logprobs"]
        mended = by_name(await checked(tmp_path, processed.url, profiles=bent))["logprobs"]

    assert [line.seen.verdict for line in (plain, raw, strict, mended)] == ["pass", "warn", "fail", "pass"]
    assert "profile train" in raw.seen.what
    assert "--logprobs-mode processed_logprobs" in raw.remedy


async def test_sglang_told_to_return_raw_logprobs_is_found_out(tmp_path: Path) -> None:
    """By an environment variable that no route of its own shows."""
    with FakeEngine("sglang", raw_logprobs=True) as engine:
        line = by_name(await checked(tmp_path, engine.url, profiles={"train": {"temperature": 0.7}}))["logprobs"]

    assert line.seen.verdict == "warn"
    assert "SGLANG_RETURN_ORIGINAL_LOGPROB" in line.remedy


@pytest.mark.parametrize(
    ("kind", "drops", "named"),
    [
        ("sglang", ("input_ids", "return_token_ids", "return_output_ids_in_sglext"), "input_ids"),
        ("sglang", ("return_token_ids", "return_output_ids_in_sglext"), "return_token_ids"),
        ("sglang", ("top_k",), "top_k"),
        ("vllm", ("kv_transfer_params",), "kv_transfer_params"),
        ("vllm", ("return_token_ids",), "return_token_ids"),
        ("vllm", ("logprobs",), "logprobs"),
    ],
)
async def test_a_router_that_drops_fields_is_named_with_its_remedy(
    tmp_path: Path, kind: Any, drops: tuple[str, ...], named: str
) -> None:
    """What is dropped is listed; status 1."""
    with FakeEngine(kind) as engine, router(engine.url, drops=drops) as url:
        report = await checked(tmp_path, url)

    line = by_name(report)["path"]
    assert line.seen.verdict == "fail"
    assert named in line.seen.what
    assert "name the engine itself" in line.remedy
    assert status_of([report]) == 1


async def test_a_router_that_drops_the_seed_is_found_by_the_seeds(tmp_path: Path) -> None:
    """Two draws of one seed differ on an engine that would honour it."""
    with FakeEngine("vllm") as engine, router(engine.url, drops=("seed",)) as url:
        lines = by_name(await checked(tmp_path, url))

    seen = lines["seeds"].seen
    assert (seen.verdict, seen.what) == ("warn", "the same seed drew other tokens the second time")
    assert lines["company"].seen.verdict == lines["classes"].seen.verdict == "skip"


@pytest.mark.parametrize("idle_s", [IDLE_S])
async def test_whoever_closes_idle_connections_early_is_told_of(tmp_path: Path, idle_s: float) -> None:
    """This router closes each at once."""
    with FakeEngine("vllm") as engine, router(engine.url) as url:
        line = by_name(await checked(tmp_path, url))["keep_alive"]

    assert line.seen.verdict == "warn"
    assert f"closed within {idle_s:g} s" in line.seen.what


async def test_a_router_without_the_engines_own_routes_cannot_be_checked(tmp_path: Path) -> None:
    """Status 2, and the reason says what stands there."""
    with FakeEngine("sglang") as engine, router(engine.url, hides=("/server_info", "/get_server_info")) as url:
        report = await checked(tmp_path, url)

    assert "does a router stand in front of SGLang?" in (report.problem or "")
    assert (report.verdict, status_of([report])) == (None, 2)


async def test_an_engine_that_cuts_prompts_fails(tmp_path: Path) -> None:
    """The record would not match what the model saw."""
    with FakeEngine("sglang", auto_truncates=True) as engine:
        line = by_name(await checked(tmp_path, engine.url))["truncation"]

    assert line.seen.verdict == "fail"
    assert "--allow-auto-truncate" in line.remedy


@pytest.mark.parametrize(("refuses", "seen"), [(True, "refused: System message"), (False, "left out without a word")])
async def test_a_template_without_later_system_messages_is_named_with_the_setting(
    tmp_path: Path,
    refuses: bool,  # noqa: FBT001
    seen: str,
) -> None:
    """It may refuse them, or leave them out; with the setting all is well."""
    with FakeEngine("vllm") as engine, serving(Strict(engine, "system", refuses=refuses)) as url:
        kept = by_name(await checked(tmp_path, url))["later_system"]
        told = by_name(await checked(tmp_path, url, later_system="as_user"))["later_system"]

    assert kept.seen.verdict == "warn"
    assert kept.seen.what.startswith(seen)
    assert 'later_system = "as_user"' in kept.remedy
    assert told.seen.verdict == "pass"


async def test_a_template_that_takes_neither_is_not_mended_by_the_setting(tmp_path: Path) -> None:
    """Roles may have to take turns."""
    with FakeEngine("vllm") as engine, serving(Strict(engine, "system", "user", refuses=True)) as url:
        line = by_name(await checked(tmp_path, url))["later_system"]

    assert (line.seen.verdict, line.remedy) == ("warn", "serve another chat template")


@pytest.mark.parametrize("fault", [Fault.no_ids(), Fault.wrong_count(), Fault.no_logprobs(), Fault.null_logprob()])
async def test_replies_without_their_tokens_fail(tmp_path: Path, fault: Fault) -> None:
    """Whatever is missing."""
    with FakeEngine("vllm") as engine:
        engine.always(fault)
        report = await checked(tmp_path, engine.url)

    assert by_name(report)["ids"].seen.verdict == "fail"


async def test_nobody_at_the_address_is_status_2(tmp_path: Path) -> None:
    """Beside an engine that passes: one that could not be checked is told first of all."""
    with FakeEngine("sglang", neutral_defaults=True) as engine:
        reports = await check_all(settings_for(tmp_path, engine.url, "http://127.0.0.1:1"))

    assert [report.problem is None for report in reports] == [True, False]
    assert status_of(reports) == 2
    assert document(reports)["engines"][1]["verdict"] is None


async def test_a_busy_deterministic_sglang_is_not_disturbed(tmp_path: Path) -> None:
    """No call of the filtering class is made while others run there; what could not be tried is told."""
    with FakeEngine("sglang") as engine:
        engine.script(Fault.halt())
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{engine.url}/v1/chat/completions", json=body):
            report = await checked(tmp_path, engine.url)

    assert {name for name, verdict in odd(report).items() if verdict == "skip"} == {"path", "classes", "defaults"}
    ours = [request.body for request in engine.requests[1:]]
    assert {(sent["top_p"], sent["top_k"], sent["min_p"]) for sent in ours} == {(1.0, -1, 0.0)}


async def test_what_serve_would_say_of_a_profile_is_said_here_too(tmp_path: Path) -> None:
    """A profile that kills the engine is a failure."""
    with FakeEngine("sglang") as engine:
        report = await checked(tmp_path, engine.url, profiles={"train": {"min_p": 0.1}})

    assert [(finding.setting, finding.severity) for finding in report.findings] == [("min_p", "refuse")]
    assert report.verdict == "fail"


async def test_nothing_is_sent_that_is_known_to_kill_an_engine(tmp_path: Path) -> None:
    """The simulated SGLang dies of ids outside its vocabulary and of min_p beside a seed, as the real one does."""
    with FakeEngine("sglang") as engine:
        await checked(tmp_path, engine.url, profiles={"train": {"min_p": 0.1}})

        assert engine.is_alive
        assert all(request.body.get("min_p", 0) == 0 for request in engine.requests)
