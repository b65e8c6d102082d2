"""Logs for machines."""

from __future__ import annotations

import json

import pytest

from pate.console import JsonConsole


def test_json_lines_hold_what_happened_and_nothing_private(capsys: pytest.CaptureFixture[str]) -> None:
    console = JsonConsole()
    console.say("ε to publish: 1\nand more")
    console.say_privately("secret")
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
        ("remark", None, None),
        ("begin", "counting votes", None),
        ("end", "counting votes", None),
        ("begin", "labelling", None),
        ("progress", "labelling", 3),
        ("end", "labelling", None),
    ]
    assert "secret" not in shown.err
    assert all("at" in line for line in lines)
