"""Logs for machines, and text that is shown as it is."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pate.cli._run import print_rows
from pate.runs._console import Console, _JsonConsole, printable

MARKUP = "runs/[red]x[/] [/no] :smile: 100"


def test_json_lines_hold_what_happened_and_nothing_private(capsys: pytest.CaptureFixture[str]) -> None:
    console = _JsonConsole()
    console.info("ε to publish: 1\nand more")
    console.info_private("secret")
    with console.working("counting votes"):
        pass
    with console.track("labelling", 3) as update:
        update(1)
        update(3)
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = [json.loads(line) for line in shown.err.splitlines()]
    events = [(line["event"], line.get("what"), line.get("done")) for line in lines]
    assert events == [
        ("note", None, None),
        ("begin", "counting votes", None),
        ("end", "counting votes", None),
        ("begin", "labelling", None),
        ("progress", "labelling", 1),
        ("progress", "labelling", 3),
        ("end", "labelling", None),
    ]
    assert "secret" not in shown.err
    assert all(set(line) <= {"event", "text", "what", "done", "total", "note"} for line in lines), "and no times"


def test_private_remarks_are_for_a_terminal_and_never_for_json_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Console().info_private("secret")
    assert capsys.readouterr() == ("", "")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):  # what jobs set for colours in their logs makes no terminal of one
        monkeypatch.setenv(name, "1")
        Console().info_private("secret")
        assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _JsonConsole().info_private("secret")
    assert capsys.readouterr() == ("", "")
    Console().info_private("secret")
    assert "note (private): secret" in capsys.readouterr().err


def test_brackets_in_a_path_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """`[red]` used to vanish, and `[/no]` to end in a traceback."""
    Console().info(MARKUP)
    with Console().working(MARKUP):
        pass
    print_rows([(MARKUP, MARKUP)], MARKUP)
    shown = capsys.readouterr()
    assert shown.err.count(MARKUP) == 2
    assert shown.out.count(MARKUP) == 3


def test_nor_are_they_on_a_terminal() -> None:
    code = (
        "from pate.runs._console import Console\nconsole = Console()\n"
        f"text = {MARKUP!r}\nconsole.info(text)\n"
        "with console.working(text):\n    pass\n"
        "with console.track(text, 3) as update:\n    update(2, text)\n"
    )
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # which is how a terminal says that the other side has gone
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    assert process.returncode == 0, shown
    assert shown.count(MARKUP.encode()) >= 4


def test_a_path_that_no_terminal_can_show_is_shown_all_the_same(tmp_path: Path) -> None:
    """Bytes that are not UTF-8, escape sequences and line breaks: one line, nothing for the terminal to obey."""
    path = str(tmp_path).encode() + b"/\xff[bold]\x1b[2J"
    code = "from pate.cli import main; main()"
    for encoding in ("utf-8", "ascii"):
        command: list[str | bytes] = [sys.executable, "-c", code, "report", path]
        environment = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"}
        shown = subprocess.run(command, capture_output=True, timeout=60, env=environment)
        assert shown.returncode == 2, shown.stderr
        assert shown.stderr.startswith(b"pate: error: ")
        assert shown.stderr.count(b"\n") == 1
        assert b"[bold]" in shown.stderr
        assert b"\x1b" not in shown.stderr
    assert printable("plain ε, ⊥ and 日本") == "plain ε, ⊥ and 日本"


def test_what_an_error_says_privately_is_for_a_terminal() -> None:
    code = (
        "import typer\nfrom pate import cli\nfrom pate.errors import DataError\napp = typer.Typer()\n"
        "@app.command()\ndef read() -> None:\n    raise DataError('f.csv: is wrong').privately('f.csv, row 77')\n"
        "cli.app = app\ncli.main()\n"
    )
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (piped.returncode, piped.stderr) == (2, "pate: error: f.csv: is wrong\n")
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    assert (process.returncode, shown.count(b"row 77"), shown.count(b"is wrong")) == (2, 1, 1)


@pytest.mark.parametrize("console", [Console, _JsonConsole])
def test_a_log_is_the_same_however_long_the_work_took(
    console: type[Console], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One record may hold up a vote: neither what a line says nor how many there are tells."""

    def log(seconds: float) -> str:
        now = [0.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        shown = console()
        with shown.working("counting votes"):
            now[0] += seconds
        with shown.track("training teachers", 250) as update:
            for done in range(1, 251):
                now[0] += seconds
                update(done, f"number {done}")
        return capsys.readouterr().err

    assert log(0.001) == log(46.7)
    assert "of 250" in log(1.0) or '"total": 250' in log(1.0)
