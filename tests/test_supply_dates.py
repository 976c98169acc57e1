"""Templates that say what day it is: a rollout goes on from its own ids past midnight."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from proxy import clock
from tests.echoes import as_it_came
from tests.fakes import FakeEngine, Say
from tests.fakes.front import Dated, serving
from tests.served import served, settings_for
from tests.test_supply import prefixes, reply

TODAY = clock.today()


def over(template: Dated, engine: FakeEngine, days: tuple[str, ...], folder: Path) -> list[dict[str, Any]]:
    """The prefixes of a conversation, a turn on each of these days."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    with serving(template) as url, served(settings_for(folder, url)) as proxy:
        client = proxy.rollout()
        for day in days:
            template.day = day
            proxy.do(proxy.wiring.pool.look())
            engine.script(Say(f"That was {day}."))
            messages += [as_it_came(reply(client, messages)), {"role": "user", "content": "And?"}]
        return prefixes(client)


def test_a_rollout_goes_on_past_midnight(tmp_path: Path) -> None:
    """The parent's ids tell the day on which they were drawn, and the tail tells none."""
    days = (f"{TODAY:%d %b %Y}", f"{TODAY + timedelta(1):%d %b %Y}")
    with FakeEngine("vllm", max_model_len=20_000) as engine:
        _first, second = over(Dated(engine, days[0]), engine, days, tmp_path)

    assert (second["reason"], second["supplied"]) == ("exact", True)
    assert second["drift_at"] is not None, "a render of today would have said so"


def test_another_template_is_no_other_day(tmp_path: Path) -> None:
    """Only what says the day may change."""
    with FakeEngine("vllm", max_model_len=20_000) as engine:
        _first, second = over(Dated(engine, ""), engine, ("Monday", "payday"), tmp_path)

    assert second["reason"] == "another_tokenizer"


def test_where_the_tail_would_tell_another_day_a_new_branch_begins(tmp_path: Path) -> None:
    """One sequence would say two days in the same place."""
    days = (f"{TODAY:%Y-%m-%d}", f"{TODAY + timedelta(1):%Y-%m-%d}")
    with FakeEngine("vllm", max_model_len=20_000) as engine:
        _first, second = over(Dated(engine, days[0], behind=True), engine, days, tmp_path)

    assert second["reason"] == "another_tokenizer"
