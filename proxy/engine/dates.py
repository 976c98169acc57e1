"""Today's date in a text, in the forms in which chat templates print it (`strftime_now`), and the text without it."""

import re
from calendar import day_name, month_name
from datetime import date, timedelta
from functools import lru_cache

# The engine's clock may stand in another time zone, and some templates print yesterday's date as well.
DAYS_AROUND = 2
FORMS = (
    "{year}年{month}月{day}日",
    "{year}[-/.]?{month}[-/.]?{day}",
    "{day}[-/.]{month}[-/.]{year}",
    "{month}[-/]{day}[-/]{year}",
    "{day}[ -]{name},?[ -]{year}",
    "{name} {day},? {year}",
    "{name},? {year}",
)
# What stands in a date's place: a word like any other.
MARK = "(date)"


def without_dates(text: str, today: date) -> str:
    """The text, a mark in the place of each date of these days, with the weekday and the time of day beside it."""
    return _dates_around(today).sub(MARK, text)


@lru_cache(maxsize=4)
def _dates_around(today: date) -> re.Pattern[str]:
    days = [today + timedelta(days) for days in range(-DAYS_AROUND, DAYS_AROUND + 1)]
    spelt = "|".join(form.format(**_parts(day)) for form in FORMS for day in days)
    weekday = "|".join(map(_shortened, day_name))
    time = r"(?:T|,? (?:at )?)\d\d?:\d\d(?::\d\d)?"
    return re.compile(rf"(?:\b(?:{weekday}),? )?(?<!\d)(?:{spelt})(?!\d)(?:,? (?:{weekday})\b)?(?:{time})?")


def _parts(day: date) -> dict[str, str]:
    """Patterns of a day's year, month and number."""
    name = _shortened(month_name[day.month])
    return {"year": str(day.year), "month": f"0?{day.month}", "day": f"0?{day.day}", "name": name}


def _shortened(name: str) -> str:
    """A pattern of a name and of its first three letters."""
    return f"{name[:3]}(?:{name[3:]})?"
