"""The log holds one line per event and no secret."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from proxy.keys import Keys
from proxy.log import MASK, start_log
from proxy.model import RolloutId

KEY = Keys("a", "b", key_secret="c").rollout_key(RolloutId("task-1"))
MINTED = "admin-" + "0f" * 32


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Logging is the process's own: leave it as it was."""
    root = logging.getLogger()
    handlers, level, words = list(root.handlers), root.level, structlog.get_config()
    yield
    structlog.configure(**words)
    root.handlers[:] = handlers
    root.setLevel(level)


def _fail(message: str) -> None:
    raise RuntimeError(message)


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    """What was logged as JSON."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_our_events_and_those_of_libraries_come_out_alike() -> None:
    """One form for whoever collects the log."""
    stream = io.StringIO()
    start_log("json", "info", stream=stream)

    structlog.get_logger("ours").info("engine found", engine="e1")
    logging.getLogger("theirs").warning("port %d is odd", 7)

    ours, theirs = events(stream)
    assert (ours["event"], ours["engine"], ours["level"], ours["logger"]) == ("engine found", "e1", "info", "ours")
    assert (theirs["event"], theirs["level"], theirs["logger"]) == ("port 7 is odd", "warning", "theirs")
    assert set(theirs) == {"event", "level", "logger", "timestamp"}


@pytest.mark.parametrize("form", ["console", "json"])
def test_no_secret_is_logged_wherever_it_stands(form: Any) -> None:
    """Under telling keys, by their form, by their value, in errors, and deep inside of values."""
    stream = io.StringIO()
    start_log(form, "info", secrets=["engine-secret", ""], stream=stream)
    log = structlog.get_logger()

    log.info("one", token="hush-1", details={"api_key": "hush-2", 1: [KEY, (MINTED,)]}, text="Bearer hush-3 x")
    log.info("two", text=KEY, error=ValueError("engine-secret"))
    logging.getLogger("theirs").info("three %s", "engine-secret")
    try:
        _fail(f"engine-secret {MINTED}")
    except RuntimeError:
        log.exception("four")
        logging.getLogger("theirs").exception("five")

    text = stream.getvalue()
    assert all(word in text for word in ("one", "two", "three", "four", "five", MASK))
    assert not any(secret in text for secret in ("hush", "engine-secret", KEY, MINTED))


def test_what_is_below_the_level_is_left_out_and_so_is_chatter() -> None:
    """Clients that tell of each request would drown the rest."""
    stream = io.StringIO()
    start_log("json", "warning", stream=stream)
    start_log("json", "info", stream=stream)

    structlog.get_logger().debug("too fine")
    logging.getLogger("httpx").info("HTTP Request: …")
    structlog.get_logger().info("shown")

    assert [event["event"] for event in events(stream)] == ["shown"]
