"""Dates as templates print them, and whatever only looks like one."""

from datetime import date

import pytest

from proxy.engine.dates import without_dates
from proxy.engine.fingerprint import OPENING, undated

TODAY = date(2026, 12, 1)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("Today Date: 30 Nov 2026\n\n", "Today Date: (date)\n\n"),
        ("Current date: 2026-12-01\n", "Current date: (date)\n"),
        ("It is Tuesday, December 1, 2026.", "It is (date)."),
        ("It is 01 December 2026, Tuesday.", "It is (date)."),
        ("today 2026-12-01, yesterday 2026-11-30", "today (date), yesterday (date)"),
        ("at 2026-12-01 09:05:00 and at 2026-12-01T09:05", "at (date) and at (date)"),
        ("12/01/2026, 1.12.2026, 20261201", "(date), (date), (date)"),
        ("2026年12月01日", "(date)"),
        ("In December 2026 and Dec 2026", "In (date) and (date)"),
    ],
)
def test_a_date_of_these_days_is_left_out(text: str, plain: str) -> None:
    """Clocks differ by a day, and some templates tell yesterday's date as well."""
    assert without_dates(text, TODAY) == plain


@pytest.mark.parametrize(
    "text",
    [
        "Cutting Knowledge Date: December 2023\n",
        "Today Date: 26 Jul 2024",
        "2026-12-04, 2025-12-01",
        "120261201, 2026-12-011",
        "Tuesday at 09:05",
        "Monday, the first",
    ],
)
def test_what_stays_the_same_tomorrow_stays(text: str) -> None:
    """Knowledge cut-offs and dates that a template fixes tell templates apart."""
    assert without_dates(text, TODAY) == text


@pytest.mark.parametrize("today", [date(2026, 12, 31), date(2028, 2, 28), date(2028, 3, 1), date(2026, 11, 30)])
def test_the_next_day_reads_like_this_one(today: date) -> None:
    """Also where month and year change."""
    texts = [f"{day:%A, %B %d, %Y} {day:%Y-%m-%d}" for day in (today, date.fromordinal(today.toordinal() + 1))]

    assert {without_dates(text, today) for text in texts} == {"(date) (date)"}


def test_a_date_behind_the_first_words_stays() -> None:
    """It would stand in the tails of later turns, where another day is another prompt."""
    assert undated(f"On 2026-12-01: {OPENING} 2026-12-01", TODAY) == f"On (date): {OPENING} 2026-12-01"
    assert undated("On 2026-12-01.", TODAY) == "On 2026-12-01.", "nor is it left out where the words are not found"
