"""A log that comes in parts, over a connection that ends when it likes; with a real head: test_jobs.py."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate.cluster import following
from pate.cluster.following import Unreachable, _Lines, _LostConnection, follow
from pate.cluster.jobs import Job

LOG = "one\ntwo\n\nε and ⊥\nlast"


@given(st.lists(st.lists(st.integers(0, len(LOG)), max_size=6), min_size=1, max_size=4))
def test_every_line_comes_once_however_it_is_cut(connections: list[list[int]]) -> None:
    """Each connection sends the log from its beginning, in parts, and ends somewhere; the last one sends all."""
    lines, told = _Lines(), list[str]()
    for cuts in [*connections, [0, len(LOG)]]:
        places = sorted({0, *cuts})
        for start, end in pairwise(places):
            told += lines.add(start, LOG[start:end])
    assert told + lines.last() == LOG.split("\n")


class _Head:
    """Is away between the first connection and the third, and has then seen the job end."""

    def __init__(self, away: int) -> None:
        self.asked, self._away, self.fetched = 0, away, 0

    def info(self, job: str) -> Job:
        self.asked += 1
        if self.asked <= self._away:
            raise Unreachable("nobody there")
        return Job(job, "SUCCEEDED", "", "", {}, 0, 1, 0)

    def log(self, job: str) -> str:
        self.fetched += 1
        return LOG


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time that passes only while somebody waits."""
    now = [0.0]
    waits = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(following, "time", waits)
    return now


def lost_after(characters: int) -> Iterator[str]:
    yield LOG[:characters]
    raise _LostConnection


def test_a_head_may_be_away_for_minutes_but_not_for_ever(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    monkeypatch.setattr(following, "_sent", lambda client, job: lost_after(5))
    said: list[str] = []
    head = _Head(away=200)
    assert list(follow(head, None, "job", said.append)) == LOG.split("\n")
    assert head.fetched == 1  # the rest, since no connection lasted
    assert [words.split()[0] for words in said] == ["lost", "connected"]
    assert clock[0] >= 200
    with pytest.raises(Unreachable):
        list(follow(_Head(away=10_000), None, "job", said.append))
