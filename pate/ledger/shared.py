"""A ledger that runs on the same data share: a folder with `ledger.db`, `key` and `head`, for its owner only.

It is made once, by `pate ledger create`, and known by an identity that comes from its key. Runs name both path and
identity, and are refused if that ledger is not there: a new one in its place would be a fresh budget.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from pate.errors import ConfigError, RunError
from pate.ledger import Ledger, SharedBudget, connect, schema
from pate.ledger.chain import identity, verified
from pate.storage.files import KEY_BYTES, make_folder, read_key, sync_folder, write_atomically

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
        """Whether there is a shared ledger in that folder, as far as its key tells."""
        return (folder / _KEY).exists()

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


def create(folder: Path, budget: SharedBudget) -> SharedLedger:
    """Make a ledger, whole or not at all; RunError if the folder exists. Of several callers at once, one succeeds."""
    _check(budget)
    if folder.exists():
        raise _taken(folder)
    make_folder(folder.parent)
    made = SharedLedger(Path(mkdtemp(prefix=f".{folder.name}-", dir=folder.parent)), secrets.token_bytes(KEY_BYTES))
    try:
        write_atomically(made.folder / _KEY, lambda path: path.write_bytes(made.key))
        _Founding(made, budget)
        os.rename(made.folder, folder)  # fails where there is something: what is made here is never empty
    except OSError as error:
        if folder.exists():
            raise _taken(folder) from None
        raise RunError(f"{folder}: cannot be made ({error.strerror})") from None
    finally:
        shutil.rmtree(made.folder, ignore_errors=True)
    sync_folder(folder.parent)
    return SharedLedger(folder, made.key)


class _Founding(Ledger):
    """A ledger that no run has entered yet."""

    def __init__(self, place: SharedLedger, budget: SharedBudget) -> None:
        self.path, self.shared, self._key, self._head, self._anchor = place.db, budget, place.key, place.head, None
        self._db = connect(place.db)
        with self._named_errors(), self._transaction():
            schema.prepare(self._db, place.db)
            self._agree_on_budget()
        self._write_head()
        self.close()


def _check(budget: SharedBudget) -> None:
    if not 0 < budget.rdp < math.inf:
        raise ConfigError(
            f"epsilon = {budget.epsilon:g}: nothing is left of it at order {budget.order:g} and δ = "
            f"{budget.delta:g}; raise the order"
        )


def _taken(folder: Path) -> RunError:
    return RunError(f"{folder}: is there already; use it as it is, or name another place")
