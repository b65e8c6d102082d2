"""Nobody can know a release beforehand: same state, other answers, and the operating system's entropy for each draw."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "support/releases.py"
Twins = dict[str, tuple[int, tuple[str, int], tuple[str, int]]]


@pytest.fixture(scope="module", params=["labels", "baselines"])
def twins(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Twins:
    """By release: the least bytes of entropy, and what two forks of one process gave and took from `os.urandom`."""
    command = [sys.executable, str(PROGRAM), request.param, str(tmp_path_factory.mktemp("releases"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found: Twins = json.loads(done.stdout)
    return found


def test_two_processes_in_the_same_state_release_different_things(twins: Twins) -> None:
    """Any of them equal by chance: less than once in a million runs, see `releases.N`."""
    assert [name for name, (_, (one, _), (other, _)) in twins.items() if one == other] == []


def test_every_draw_is_the_operating_systems(twins: Twins) -> None:
    """A generator that is seeded once, even by the operating system, takes fewer bytes than there are draws."""
    assert {name: found for name, (least, *found) in twins.items() if min(n for _, n in found) < least} == {}
