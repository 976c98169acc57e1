"""Sentences for people on standard error."""

import os

import pytest

from proxy.screen import folded, say

PATH = "/a/path/that/is/longer/than/the/screen/is/wide-and-has-hyphens"


def test_a_sentence_is_folded_between_words() -> None:
    """A path is left whole, so that it can be copied."""
    sentence = f"rollpin: cannot start: {PATH} is in use by another process"
    lines = folded(sentence, 30).splitlines()

    assert PATH in lines
    assert all(len(line) <= 30 for line in lines if line != PATH)
    assert " ".join(lines) == sentence


def test_lines_stay_lines() -> None:
    """Of several findings each begins anew."""
    assert folded("cannot start:\none\n\ntwo", 80) == "cannot start:\none\n\ntwo"


def test_programs_get_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """However long: what reads a log splits it by line."""
    say("words " * 99 + "end")

    assert capsys.readouterr().err == "rollpin: " + "words " * 99 + "end\n"


def test_people_get_lines_as_wide_as_their_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose width is asked for, not assumed."""
    ours, theirs = os.openpty()
    with os.fdopen(ours) as screen, os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setattr(os, "get_terminal_size", lambda _descriptor: os.terminal_size((40, 24)))
        say("words " * 20 + "end")
        terminal.flush()
        lines = [screen.readline().rstrip() for _ in range(4)]

    assert max(map(len, lines)) <= 40
    assert lines[-1].endswith("end")
