"""A ledger in storage: one history whatever crashes and whoever else is alive."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.aggregators import examples, vote
from support.stored_ledgers import KEY, LIMITS, MEMORY, Crashed, Interleaved, Turns, machine, memory, pay

from pate.boundary._aggregator import Aggregator
from pate.errors import RunError
from pate.ledger import Charge, Limits
from pate.ledger._chain import verify
from pate.ledger._stored import FOLDER, Fenced, StoredLedger
from pate.mechanisms import ConfidentGNMax, Mechanism
from pate.storage import Storage, open_storage


def test_another_machine_goes_on_without_losing_a_charge(tmp_path: Path) -> None:
    storage = memory()
    first = machine(storage, tmp_path / "a")
    assert pay(first, 7, 1, 2, 3) == {1: 7, 2: 7, 3: 7}
    second = machine(storage, tmp_path / "b")
    assert second.spent() == Charge(3, 3)
    assert pay(second, 8, 3, 4) == {3: 7, 4: 8}
    with pytest.raises(Fenced, match="has taken this run over"):
        pay(first, 9, 5)
    with pytest.raises(RunError, match="has stopped"):
        pay(first, 9, 6)
    assert pay(first, 9, 1) == {1: 7}  # what was released before stays so
    second.close()
    assert verify(tmp_path / "b" / "ledger.db", KEY, tmp_path / "b" / "ledger.head") == 6
    third = machine(storage, tmp_path / "a")  # the first machine again, with its older copy
    assert third.spent() == Charge(4, 4)
    assert pay(third, 1, 5) == {5: 1}


def test_the_aggregators_answers_and_its_figure_are_the_same_elsewhere(tmp_path: Path) -> None:
    from pate.config import Sanitise

    storage = memory()

    def aggregator(name: str, mechanism: Mechanism) -> Aggregator:
        folder = tmp_path / name
        folder.mkdir()
        limits = Limits(40, 30, repr(mechanism))
        opener = partial(StoredLedger, storage, folder / "l.db", KEY, folder / "head", "run", limits)
        made = Aggregator(mechanism, opener, folder, KEY, 20)
        made.collect(examples(30), vote)
        return made

    noisy = ConfidentGNMax(threshold=14, sigma1=6.0, sigma2=20.0)
    first = aggregator("a", noisy)
    labels = first.label(examples(20)).labels
    figure = first.sanitise(examples(20), Sanitise(order=6, beta=0.04), 1e-5)
    second = aggregator("b", noisy)
    assert second.label(examples(20)).labels.tolist() == labels.tolist()
    assert second.spent() == first.spent()
    assert second.sanitise(examples(20), Sanitise(order=6, beta=0.04), 1e-5) == figure


@pytest.mark.parametrize("link", [1, 2, 4, 5])
def test_changed_missing_and_foreign_links_are_refused(link: int, tmp_path: Path) -> None:
    storage = memory()
    first = machine(storage, tmp_path / "a")
    pay(first, 7, 1, 2)
    pay(first, 6, 3)
    name = f"{FOLDER}/{link:09d}"
    content = storage.read(name) or b""
    record = json.loads(content)
    record["content"][-1] = [1, "00", 5] if record["kind"] == "charges" else 99
    for damaged in (json.dumps(record).encode(), b"", b"[1]"):
        storage.write({name: damaged})
        with pytest.raises(RunError, match=f"link {link} of the ledger was changed"):
            machine(storage, tmp_path / secrets.token_hex(4))
    storage.remove(name)
    if link < 5:
        with pytest.raises(RunError, match=f"link {link} of the ledger is missing"):
            machine(storage, tmp_path / "c")
    else:
        with pytest.raises(RunError, match="are gone"):
            machine(storage, tmp_path / "a")
    storage.write({name: content})
    assert machine(storage, tmp_path / "d").spent() == Charge(3, 3)


def test_another_run_at_the_same_place_is_refused(tmp_path: Path) -> None:
    storage = memory()
    machine(storage, tmp_path / "a")
    with pytest.raises(RunError, match="limits are fixed"):
        machine(storage, tmp_path / "b", Limits(41, 41, "m"))
    with pytest.raises(RunError, match="link 1 of the ledger was changed"):
        StoredLedger(storage, tmp_path / "c.db", b"x" * 32, tmp_path / "c.head", "run", LIMITS)


def test_a_local_file_of_another_history_is_not_continued(tmp_path: Path) -> None:
    """Of the same run, under the same key and as long: two copies that went on at two places."""
    stores = memory(), memory()
    for number, storage in enumerate(stores):
        pay(machine(storage, tmp_path / str(number)), number, 1)
    with pytest.raises(RunError, match="is not the ledger that is stored at"):
        machine(stores[1], tmp_path / "0")


def test_a_history_that_an_anchor_misses_is_refused_before_a_link_is_added(tmp_path: Path) -> None:
    storage, anchor = memory(), str(tmp_path / "anchor")

    def opened(folder: str) -> StoredLedger:
        (tmp_path / folder).mkdir()
        places = (tmp_path / folder / "ledger.db", KEY, tmp_path / folder / "ledger.head")
        return StoredLedger(storage, *places, "run", LIMITS, anchor=anchor)

    pay(opened("a"), 7, 1)
    storage.remove(storage.names(FOLDER)[-1])
    left = storage.names(FOLDER)
    with pytest.raises(RunError, match="rolled back, or another copy"):
        opened("b")
    assert storage.names(FOLDER) == left


def test_people_can_look_at_a_ledger_in_storage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pate.cli._look import show
    from pate.cli._look import verify as verify_command

    url = f"file://{tmp_path}/store"
    storage = open_storage(url)
    with pytest.raises(RunError, match="is not a run directory"):
        show(url)
    storage.create("private/key", KEY)
    with pytest.raises(RunError, match="there is no ledger yet"):
        show(url)
    ledger = machine(url, tmp_path / "a")
    pay(ledger, 1, 1, 2)
    before = storage.names()
    show(url, as_json=True)
    content = json.loads(capsys.readouterr().out)
    assert content["ledger"] == url
    assert sum(charge["asked"] for charge in content["charges"]) == 2
    verify_command(url)
    assert capsys.readouterr().out == f"{url}: 4 links, unchanged\n"
    assert storage.names() == before  # looking takes nothing over
    pay(ledger, 1, 3)


class Failing:
    """A store of which a given write fails, before or after it took effect."""

    def __init__(self, storage: Storage, at: int, kept: bool) -> None:
        self.url, self._storage, self._left, self._kept = storage.url, storage, at, kept

    def __getattr__(self, name: str) -> object:
        return getattr(self._storage, name)

    def create(self, name: str, content: bytes) -> bool:
        self._left -= 1
        if self._left == 0:
            if self._kept:
                self._storage.create(name, content)
            raise RunError(f"{self.url}: cannot be written (no space)")
        return self._storage.create(name, content)


@pytest.mark.parametrize("kept", [False, True])
def test_a_store_that_fails_releases_nothing_and_the_next_goes_on(kept: bool, tmp_path: Path) -> None:
    for at in range(1, 6):
        storage = memory()
        told: dict[int, int] = {}
        failing: object = Failing(storage, at, kept)
        with pytest.raises(RunError, match="no space"):
            first = machine(failing, tmp_path / f"a{at}")  # type: ignore[arg-type]
            told |= pay(first, 1, 1, 2)
            told |= pay(first, 2, 2, 3)
        if at > 3:
            with pytest.raises(RunError, match="has stopped"):
                pay(first, 3, 9)
        second = machine(storage, tmp_path / f"b{at}")
        assert second.spent().asked >= len(told)
        assert pay(second, 5, 1, 2, 3).items() >= told.items()


Plan = tuple[list[list[int]], int | None, bool]
MACHINE = st.tuples(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=3),  # batches of queries
    st.none() | st.integers(1, 10),  # crashes at that operation
    st.booleans(),  # after it took effect
)


def live_together(plans: list[Plan], choose: Callable[[int], int], storage: Storage, folder: Path) -> int:
    """Several aggregators open the same run and answer at once; operations on storage interleave as chosen.

    Whatever was released, by whomever: no query has two answers, and every answer is in the history that a successor
    reads, and paid for there. Returns how many links that history has.
    """
    turns = Turns(choose, len(plans))
    told: list[tuple[int, int]] = []
    errors: list[BaseException] = []

    def live(me: int, batches: list[list[int]], crash_at: int | None, after: bool) -> None:
        try:
            ledger = machine(Interleaved(storage, turns, me, crash_at, after), folder / str(me))
            for number, batch in enumerate(batches):
                told.extend(pay(ledger, 100 * me + number, *batch).items())
        except (Crashed, RunError):
            pass
        except BaseException as error:
            errors.append(error)
        finally:
            turns.leave()

    threads = [threading.Thread(target=live, args=(me, *plan), daemon=True) for me, plan in enumerate(plans)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors
    successor = machine(storage, folder / "successor")
    assert len(dict(told)) == len(set(told))
    assert pay(successor, 999, *dict(told)) == dict(told)
    links = [json.loads(content) for _, content in storage.read_all(storage.names(FOLDER))]
    answered = [query for link in links if link["kind"] == "charges" for _, query, _ in link["content"][8:]]
    assert len(answered) == len(set(answered)) == successor.spent().asked
    successor.close()
    return verify(folder / "successor" / "ledger.db", KEY, folder / "successor" / "ledger.head")


@given(st.lists(MACHINE, min_size=2, max_size=3), st.integers(0, 2**32), st.sampled_from([0.1, 0.5, 1.0]))
@settings(max_examples=40, deadline=None)
def test_interleavings_of_aggregators_that_crash_keep_one_history(
    plans: list[Plan], seed: int, switching: float
) -> None:
    rng, last = random.Random(seed), 0

    def choose(n: int) -> int:
        nonlocal last
        last = rng.randrange(n) if rng.random() < switching else min(last, n - 1)
        return last

    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        assert live_together(plans, choose, memory(), Path(folder)) > 1


@pytest.mark.parametrize("crash_at", [None, 4])
def test_every_interleaving_of_two_aggregators_keeps_one_history(crash_at: int | None) -> None:
    """All of them, one after the other: a takeover and a batch each, the first one's last operation perhaps its end."""
    plans: list[Plan] = [([[1, 2]], crash_at, True), ([[2, 3]], None, False)]
    schedule: list[int] | None = []
    runs = 0
    while schedule is not None:
        trace: list[tuple[int, int]] = []

        def choose(n: int, planned: Iterator[int] = iter(schedule), trace: list = trace) -> int:  # noqa: B008
            trace.append((next(planned, 0), n))
            return trace[-1][0]

        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            storage = memory()
            machine(storage, Path(folder) / "first")
            live_together(plans, choose, storage, Path(folder))
        while trace and trace[-1][0] + 1 == trace[-1][1]:
            trace.pop()
        schedule = [*(chosen for chosen, _ in trace[:-1]), trace[-1][0] + 1] if trace else None
        runs += 1
    assert runs > 50


_ANSWERS = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from support.stored_ledgers import machine, pay
from pate.errors import PateError
ledger = machine(sys.argv[1], Path(sys.argv[2]), )
label = int(sys.argv[4])
try:
    for i in range(0, 40, 2):
        print(json.dumps(pay(ledger, label, i, i + 1)), flush=True)
except PateError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""


def start(url: str, folder: Path, label: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _ANSWERS, url, str(folder), str(Path(__file__).parents[1]), str(label)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told_by(process: subprocess.Popen[str]) -> dict[int, int]:
    told: dict[int, int] = {}
    for line in process.communicate(timeout=60)[0].splitlines():
        told |= {int(query): label for query, label in json.loads(line).items()}
    return told


def wait_for_links(storage: Storage, n: int) -> None:
    until = time.monotonic() + 60
    while len(storage.names(FOLDER)) < n:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_processes_killed_or_fenced_leave_one_history(tmp_path: Path) -> None:
    """Real processes: one is killed with SIGKILL, one is stopped, overtaken and woken up again."""
    url = f"file://{tmp_path}/store"
    storage = open_storage(url)
    killed = start(url, tmp_path / "a", 1)
    wait_for_links(storage, 6)
    killed.send_signal(signal.SIGKILL)
    stopped = start(url, tmp_path / "b", 2)
    wait_for_links(storage, len(storage.names(FOLDER)) + 4)
    stopped.send_signal(signal.SIGSTOP)
    last = start(url, tmp_path / "c", 3)
    told = [told_by(killed), told_by(last)]
    assert last.returncode == 0
    stopped.send_signal(signal.SIGCONT)
    told.append(told_by(stopped))
    assert stopped.returncode in (0, 2)
    history = pay(machine(url, tmp_path / "d"), 9, *range(40))
    assert told[1] == history
    assert set(history.values()) >= {1, 3}
    for one in told:
        assert one.items() <= history.items()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_forbidden_store_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o500)
    with pytest.raises(RunError, match="Permission denied"):
        machine(f"file://{tmp_path}/store", tmp_path / "a")


def test_a_store_that_fills_up_is_one_line(tmp_path: Path) -> None:
    """Its own process, with a limit on the size of files: nothing is printed as released that is not stored."""
    code = _ANSWERS.replace("ledger = machine", "import resource, signal\nledger = machine").replace(
        "try:",
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\ntry:",
        1,
    )
    command = [
        sys.executable,
        "-c",
        code,
        f"file://{tmp_path}/s",
        str(tmp_path / "a"),
        str(Path(__file__).parents[1]),
        "1",
    ]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 2, shown.stderr
    assert shown.stdout == ""
    assert shown.stderr.count("\n") == 1
    assert "cannot be written" in shown.stderr
