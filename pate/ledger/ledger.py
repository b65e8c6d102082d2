"""Durable budget and answers on SQLite: label and charge are stored together, before anyone sees the label.

Append only: triggers refuse updates and deletes. Every run and every charge, with its answers, is a link of an HMAC
chain under a key kept elsewhere, whose head is also kept in a second file and, where there is one, in an anchor
(`pate.ledger._chain`). Opening a ledger checks all of it, so a changed, removed or reordered row, and an older copy of
the file, are found before anything is charged. The head is written after the commit and before the release, so it
covers all that anyone has seen.

A crash between noise and commit loses an answer that nobody saw; a crash after the commit loses nothing. The file
is readable with any SQLite tool.

One file may serve several runs on the same data: a `SharedLedger` is a folder with `ledger.db`, `key` and `head`, for
its owner only. It is made once, by `pate ledger create`, and known by an identity that comes from its key. Runs name
both path and identity, and are refused if that ledger is not there: a new one in its place would be a fresh budget.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from pate.accounting import _parameters as parameters
from pate.accounting.composition import epsilon_of_rdp, sampler_share
from pate.errors import BudgetExceeded, ConfigError, RunError
from pate.ledger._chain import (
    FIRST_LINK,
    Link,
    Pin,
    conflict,
    connect,
    identity,
    json_pin,
    link_mac,
    named_errors,
    open_anchor,
    prepare_tables,
    read_chain,
    read_head,
    row_content,
    verified,
)
from pate.storage._files import KEY_BYTES, create_key, locked, make_folder, read_key, sync_folder, write_atomically

DRAWS_PER_RUN = 2**40
"""The most noise draws that a run may take if it shares its ledger: their sampling error is charged to the joint δ."""

RUNS_SHARING = 2**10
"""The most runs that may share a ledger."""


@dataclass(frozen=True)
class Charge:
    """What a batch costs, counted in queries.

    Parameters
    ----------
    asked : int
        Queries that were asked.
    answered : int
        Queries of them that got a label.
    unstable : int, default=0
        MSvec's ⊥ and its restarts, which cost as much.
    """

    asked: int
    answered: int
    unstable: int = 0


@dataclass(frozen=True)
class Limits:
    """Fixed before the first query: the most queries asked, the most answered, and by what mechanism.

    Parameters
    ----------
    max_queries : int
        The most queries that may ever be asked.
    max_answers : int
        The most of them that may be answered.
    mechanism : str
        The mechanism with its parameters, as text.
    rdp_asked : float, default=0.0
        In a shared ledger: what each query asked costs at the ledger's Rényi order.
    rdp_answered : float, default=0.0
        In a shared ledger: what an answer adds to that.
    """

    max_queries: int
    max_answers: int
    mechanism: str
    rdp_asked: float = 0.0
    rdp_answered: float = 0.0

    def __post_init__(self) -> None:
        parameters.limits(self.max_queries, self.max_answers)
        for name in ("rdp_asked", "rdp_answered"):
            parameters.number(getattr(self, name), name, least=0)


@dataclass(frozen=True)
class SharedBudget:
    """A Rényi filter over all runs on the same data: one order, fixed when the ledger is made.

    A share of `delta` is set aside for the sampling error of all noise that the runs can draw.
    """

    order: float
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        parameters.order(self.order)
        parameters.epsilon(self.epsilon)
        parameters.delta(self.delta)

    @property
    def rdp(self) -> float:
        """The Rényi cost that (epsilon, delta) allows at the order (Canonne, Kamath, Steinke 2020, Prop. 12).

        Not above 0 where nothing is left of them.
        """
        share = self._share
        return 0.0 if share is None else self.epsilon - epsilon_of_rdp(0.0, self.order, self.delta * (1 - share))

    def epsilon_of(self, rdp: float) -> float:
        """What a Rényi cost at the order amounts to as ε at `delta`; nothing where nothing was spent."""
        return max(0.0, epsilon_of_rdp(rdp, self.order, self.delta * (1 - (self._share or 0.0)))) if rdp > 0 else 0.0

    @property
    def _share(self) -> float | None:
        """The share of δ for the samplers of all runs; None where nothing would be left."""
        return sampler_share(self.epsilon, self.delta, RUNS_SHARING * DRAWS_PER_RUN)


class Ledger:
    """One run's view of a ledger file. Writers of all runs take turns.

    Opening checks the file whole and enters the run. A ledger that is not shared is made where there is none. Limits or
    a budget other than the stored ones are refused.

    Parameters
    ----------
    path : Path
        The SQLite file.
    key : bytes
        The key that vouches for its rows, kept elsewhere.
    head : Path
        The file that holds the last link.
    run : str
        Name of the run.
    limits : Limits
        What the run may ask and answer.
    shared : SharedBudget, default=None
        The joint budget, where runs share the ledger.
    ensemble : int, default=1
        Version of the teachers that new answers come from.
    pins : mapping of str to Pin, default=None
        The links that published files name, by file.
    anchor : str, default=None
        File or URL where links are also kept.
    new_anchor : bool, default=False
        Whether the anchor may know nothing of what was released so far.
    """

    _keeps_head = True

    def __init__(
        self,
        path: Path,
        key: bytes,
        head: Path,
        run: str,
        limits: Limits,
        shared: SharedBudget | None = None,
        ensemble: int = 1,
        pins: Mapping[str, Pin] | None = None,
        anchor: str | None = None,
        new_anchor: bool = False,
    ) -> None:
        self.path, self.limits, self.shared, self.ensemble = path, limits, shared, ensemble
        self._key, self._head, self._pins = key, head, pins or {}
        self._anchor = None if anchor is None else open_anchor(anchor, identity(key))
        self._db = connect(path, make=shared is None)
        try:
            with named_errors(self.path), self._transaction():
                prepare_tables(self._db, path)
                self._catch_up()
                self._check()
                self._agree_on_budget()
                self._run = self._enter(run)
                if not new_anchor:
                    self._check_anchored()
                self._take_over()
            self._write_head()
        except BaseException:
            self._db.close()
            raise

    @classmethod
    def open(cls, path: Path | str, limits: Limits, key: Path | str | None = None) -> Ledger:
        """A ledger for use by hand: the file `path`, made where there is none, with its head in `path`.head.

        The key that vouches for its rows is in the file `key`, by default `path`.key, and is drawn with the ledger.
        Keep it where those who can write the ledger cannot read it.

        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> limits = Limits(max_queries=3, max_answers=3, mechanism="GNMax(sigma=40)")
        >>> ledger = Ledger.open(folder / "ledger.db", limits)
        >>> with ledger.batch(2):  # refused here if it does not fit; noise is drawn and stored inside
        ...     ledger.charge_and_store([b"first", b"second"], [7, 1], Charge(asked=2, answered=2))
        >>> ledger.stored([b"first"]), ledger.room()
        ({b'first': 7}, 1)
        """
        path = Path(path)
        key_file = path.with_name(f"{path.name}.key") if key is None else Path(key)
        if not key_file.exists():
            if path.exists():
                raise RunError(f"{key_file}: the key of {path} is gone; nothing can be charged without it")
            create_key(key_file)
        return cls(path, read_key(key_file), path.with_name(f"{path.name}.head"), "by hand", limits)

    def head(self) -> Pin:
        """The last link, which files that are published now name."""
        return Pin(*self._rows("SELECT link, mac FROM chain ORDER BY link DESC LIMIT 1")[0])

    def spent(self) -> Charge:
        """Everything this run was charged."""
        columns = "TOTAL(asked), TOTAL(answered), TOTAL(unstable)"
        row = self._rows(f"SELECT {columns} FROM charges WHERE run = ?", self._run)[0]
        return Charge(*(int(value) for value in row))

    def from_earlier_ensembles(self) -> bool:
        """Whether some answers of this run came from teachers that have been trained again since."""
        return bool(self._rows("SELECT 1 FROM charges WHERE run = ? AND ensemble != ?", self._run, self.ensemble))

    def rdp_left(self) -> float:
        """What is left of a shared budget at its order; infinite where there is none."""
        if self.shared is None:
            return math.inf
        return self.shared.rdp - float(self._rows("SELECT TOTAL(rdp) FROM charges")[0][0])

    def room(self) -> int:
        """How many new queries are sure to fit, even if every one of them is answered."""
        spent = self.spent()
        room = min(self.limits.max_queries - spent.asked, self.limits.max_answers - spent.answered)
        each = self.limits.rdp_asked + self.limits.rdp_answered
        if self.shared is not None and each > 0:
            room = min(room, math.floor(self.rdp_left() / each))
        return max(0, room)

    def stored(self, query_ids: Sequence[bytes]) -> dict[bytes, int]:
        """The answers already paid for, ⊥ included."""
        found = {}
        for query in set(query_ids):
            rows = self._rows("SELECT label FROM answers WHERE run = ? AND query = ?", self._run, query)
            if rows:
                found[query] = int(rows[0][0])
        return found

    @contextmanager
    def batch(self, most: int) -> Iterator[None]:
        """Hold the ledger with room for `most` queries, for noise to be drawn and stored in the block.

        Raises `BudgetExceeded` before the block is entered; whatever goes wrong inside, nothing is stored.
        """
        with self._transaction():
            room = self.room()
            if most > room:
                raise BudgetExceeded(
                    f"{most} new queries do not fit: {room} would (limits: {self.limits.max_queries} asked, "
                    f"{self.limits.max_answers} answered{', and a budget shared by runs' if self.shared else ''})"
                )
            yield
        self._write_head()

    def charge_and_store(self, query_ids: Sequence[bytes], labels: Sequence[int], cost: Charge) -> None:
        """Inside `batch`: store answers and their charge. Durable when the block has ended."""
        if len(query_ids) != len(labels):
            raise ValueError(f"{len(query_ids)} queries but {len(labels)} labels")
        if not self._db.in_transaction:
            raise RuntimeError("charge_and_store is for the block of a batch")
        rdp = cost.asked * self.limits.rdp_asked + cost.answered * self.limits.rdp_answered
        with named_errors(self.path):
            charge = self._db.execute(
                "INSERT INTO charges (run, asked, answered, unstable, rdp, at, ensemble) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self._run, *astuple(cost), rdp, now(), self.ensemble),
            ).lastrowid
            rows = [(self._run, query, int(label), charge) for query, label in zip(query_ids, labels, strict=True)]
            self._db.executemany("INSERT INTO answers (run, query, label, charge) VALUES (?, ?, ?, ?)", rows)
            self._link("charges", int(charge or 0))

    def release_once(self, draw: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
        """The run's sanitised figure: drawn and stored by the first call, the stored one ever after.

        Where `draw` gives None, nothing is stored or released.
        """
        with self._transaction():
            rows = self._rows("SELECT content FROM sanitised WHERE run = ?", self._run)
            released: dict[str, Any] | None = json.loads(rows[0][0]) if rows else draw()
            if not rows and released is not None:
                self._rows("INSERT INTO sanitised VALUES (?, ?, ?)", self._run, json.dumps(released), now())
                self._link("sanitised", self._run)
        self._write_head()
        return released

    def close(self) -> None:
        """Release the file, with everything in the one file that people copy."""
        with named_errors(self.path):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()

    def _check(self) -> None:
        """Raise RunError unless all rows are as written, and reach what head, published files and anchor name."""
        chain = read_chain(self._db, self._key, self.path)
        head = read_head(self._head)
        if head is not None or self._keeps_head:
            chain.must_reach(head, self._head)
        chain.must_hold(self._pins)
        kept = self._anchor.last() if self._anchor else None
        if kept is not None and not chain.goes_through(kept):
            raise conflict(str(self.path), kept.link)

    def _check_anchored(self) -> None:
        """Raise RunError where something was released and the anchor knows nothing of this ledger."""
        if self._anchor and self._anchor.last() is None and self.spent().asked:
            raise RunError(
                f"{self.path}: its anchor holds nothing of it, so nothing vouches that it is not an older copy; name "
                "the anchor it was begun with"
            )

    def _agree_on_budget(self) -> None:
        wanted = (None, None, None) if self.shared is None else astuple(self.shared)
        rows = self._db.execute("SELECT rdp_order, epsilon, delta FROM budget").fetchall()
        if not rows:
            self._db.execute("INSERT INTO budget VALUES (?, ?, ?)", wanted)
            self._link("budget", 1)
        elif tuple(rows[0]) != wanted:
            stored = "no shared budget" if rows[0][0] is None else str(SharedBudget(*rows[0]))
            raise RunError(f"{self.path}: was made for {stored}, which cannot be changed; name another ledger")

    def _enter(self, name: str) -> int:
        columns = "max_queries, max_answers, mechanism, rdp_asked, rdp_answered"
        row = self._db.execute(f"SELECT run, {columns} FROM runs WHERE name = ?", (name,)).fetchone()
        if row is None:
            if self.shared is not None and self._db.execute("SELECT COUNT(*) FROM runs").fetchone()[0] >= RUNS_SHARING:
                raise RunError(f"{self.path}: {RUNS_SHARING:,} runs share it, and its δ allows for no more")
            values = (name, *astuple(self.limits), now())
            run = self._db.execute(
                f"INSERT INTO runs (name, {columns}, at) VALUES (?, ?, ?, ?, ?, ?, ?)", values
            ).lastrowid
            self._link("runs", int(run or 0))
            return int(run or 0)
        if Limits(*row[1:]) != self.limits:
            raise RunError(
                f"{self.path}: was made for {Limits(*row[1:])}, not for {self.limits}; limits are fixed before the "
                "first query, so start a new run"
            )
        return int(row[0])

    def _link(self, kind: str, number: int) -> None:
        last = self._db.execute("SELECT link, mac FROM chain ORDER BY link DESC LIMIT 1").fetchone() or (0, FIRST_LINK)
        content = row_content(self._db, kind, number)
        mac = link_mac(self._key, last[1], last[0] + 1, kind, content)
        self._acknowledge(Link(last[0] + 1, kind, number, content, mac))
        self._db.execute("INSERT INTO chain VALUES (?, ?, ?, ?)", (last[0] + 1, kind, number, mac))

    def _catch_up(self) -> None:
        """Where links are also kept elsewhere: take over those that are missing here."""

    def _take_over(self) -> None:
        """Where links are also kept elsewhere: be the only one who can add to them from now on."""

    def _acknowledge(self, link: Link) -> None:
        """Where links are also kept elsewhere: have this one kept there before it counts here."""

    def _links_from(self, number: int) -> list[Pin]:
        return [Pin(*row) for row in self._rows("SELECT link, mac FROM chain WHERE link >= ? ORDER BY link", number)]

    def _write_head(self) -> None:
        """Store the last link outside the ledger, before what was committed is released."""
        try:
            with locked(self._head.with_name(self._head.name + ".lock")):  # runs that share the ledger take turns
                content = json_pin(self.head())
                write_atomically(self._head, content)
        except OSError as error:
            raise RunError(f"{self._head}: {error.strerror}; nothing was released") from error
        if self._anchor:
            self._anchor.extend(self._links_from)

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with named_errors(self.path):
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with named_errors(self.path):
            self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            with named_errors(self.path):
                self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def now() -> str:
    """The time in UTC, as rows hold it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


_DB, _KEY = "ledger.db", "key"


@dataclass(frozen=True)
class SharedLedger:
    """Where the parts of a shared ledger are, and its key."""

    folder: Path
    key: bytes

    @property
    def db(self) -> Path:
        """The SQLite file."""
        return self.folder / _DB

    @property
    def head(self) -> Path:
        """The file that holds the last link."""
        return self.folder / "head"

    @property
    def id(self) -> str:
        """The identity by which runs name it."""
        return identity(self.key)

    @classmethod
    def is_at(cls, folder: Path) -> bool:
        """Whether there is a shared ledger in that folder, judging by its key."""
        return (folder / _KEY).exists()

    @classmethod
    def create(cls, folder: Path, budget: SharedBudget) -> SharedLedger:
        """Make one, whole or not at all; RunError if the folder exists. Of several callers at once, one succeeds."""
        if not 0 < budget.rdp < math.inf:
            raise ConfigError(
                f"epsilon = {budget.epsilon:g}: nothing is left of it at order {budget.order:g} and δ = "
                f"{budget.delta:g}; raise the order"
            )
        taken = RunError(f"{folder}: is there already; use it as it is, or name another place")
        if folder.exists():
            raise taken
        make_folder(folder.parent)
        made = cls(Path(mkdtemp(prefix=f".{folder.name}-", dir=folder.parent)), secrets.token_bytes(KEY_BYTES))
        try:
            write_atomically(made.folder / _KEY, made.key)
            _Founding(made, budget)
            os.rename(made.folder, folder)  # fails where there is something: what is made here is never empty
        except OSError as error:
            if folder.exists():
                raise taken from None
            raise RunError(f"{folder}: cannot be made ({error.strerror})") from None
        finally:
            shutil.rmtree(made.folder, ignore_errors=True)
        sync_folder(folder.parent)
        return cls(folder, made.key)

    @classmethod
    def at(cls, folder: Path, wanted: str | None = None) -> SharedLedger:
        """The ledger in that folder, which has to be there and, where one is `wanted`, to be the one of that id."""
        if not (folder / _DB).is_file():
            raise RunError(f"{folder}: there is no shared ledger; make one with `pate ledger create`, or mend the path")
        found = cls(folder, read_key(folder / _KEY))
        if (folder / _KEY).stat().st_mode & 0o077:
            raise RunError(f"{folder / _KEY}: others can read it; run: chmod -R go= {folder}")
        if wanted is not None and found.id != wanted:
            raise RunError(f"{folder}: is the ledger {found.id}, not {wanted}; mend path or id of budget.ledger")
        return found

    def budget(self) -> SharedBudget:
        """The joint budget of all runs, from a file that was checked whole."""
        with verified(self.db, self.key, self.head) as (db, _):
            row = db.execute("SELECT rdp_order, epsilon, delta FROM budget").fetchone()
        if row is None or row[0] is None:
            raise RunError(f"{self.folder}: has no joint budget; make a shared ledger with `pate ledger create`")
        return SharedBudget(*row)


class _Founding(Ledger):
    """A ledger that no run has entered yet."""

    def __init__(self, place: SharedLedger, budget: SharedBudget) -> None:
        self.path, self.shared, self._key, self._head, self._anchor = place.db, budget, place.key, place.head, None
        self._db = connect(place.db)
        with named_errors(self.path), self._transaction():
            prepare_tables(self._db, place.db)
            self._agree_on_budget()
        self._write_head()
        self.close()
