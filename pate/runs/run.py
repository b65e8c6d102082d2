"""`Run`: a run's directory, or its place in storage. What may leave is at the top; everything private is under
`private/`, for its owner only.

A run named by URL lives in storage (`pate.storage`). It is worked on in a local copy, which is made anew from storage
whenever the run is opened and removed when it is closed: what counts is in storage.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from hashlib import blake2b
from html import escape
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from pate.config import BaselineConfig, Config, RunConfig, read_yaml, stored_config
from pate.config._loading import settings_from
from pate.data.partition import keyed_digest
from pate.errors import PateError, RunError
from pate.ledger._stored import FOLDER
from pate.runs import _files as files
from pate.runs._console import labels_table
from pate.runs._files import RunFiles
from pate.storage import Storage, check_exclusive, is_url, open_storage, pull
from pate.storage._files import KEY_BYTES, locked, make_folder, read_key, write_atomically

if TYPE_CHECKING:
    from pate.report.schema import BaselineReport, Report
    from pate.runs._run_ledger import Labels
    from pate.runs.model_store import Predictor

_KEY, _ENSEMBLE, _RELEASED = (f"{files.PRIVATE}/{name}" for name in (files.KEY, files.ENSEMBLE, files.RELEASED))
_STAYS = (  # on this machine
    files.LEDGER,
    *(f"{files.PRIVATE}/{name}" for name in (files.LEDGER_HEAD, files.LOCK, files.STUDENT_CHECKPOINT)),
    *(f"{files.PRIVATE}/{name}/" for name in (files.FEATURES, files.SPILL)),
)
_SIGNALS = (  # that they are there says that all before is
    f"{files.STUDENT}/{files.STUDENT_CARD}",
    files.REPORT,
    _ENSEMBLE,
)
_TO_GO_ON = f"{files.PRIVATE}/{files.TEACHERS}/"  # is needed to go on with a run, not to look at one
_ALONE = ("", f"{files.STUDENT}/", f"{files.MODEL}/")  # folders that are published whole, or by themselves
_AT_ONCE = 64
_FIRST_FILES = {files.PRIVATE, f"{files.CONFIG}.partial"}  # all there is if it was killed while it began


BEGUN: set[str] = set()
"""Places of runs that this process has begun, or gone on with."""

Resume = bool | Literal["auto"]
"""Whether to go on with a run that is there; `auto` makes one where there is none, so a start can be repeated."""


class Run(RunFiles):
    """A run of `pate run` or `pate baseline`, begun or finished: `Run.load` to read it, `Run.create` to work on it.

    A context manager, which removes the local copy of a run in storage at the end. A folder with what has left a run,
    as `pate fetch` downloads it, can be loaded too: it lacks the config and everything private.

    Parameters
    ----------
    path : Path
        The run directory; of a run in storage, the private local copy.
    storage : Storage, optional
        Where the run is, if not in `path`.
    """

    def __init__(self, path: Path, storage: Storage | None = None) -> None:
        super().__init__(path)
        self.storage = storage
        self.place = storage.url if storage else str(path)
        self.resumed = False
        self._stored: dict[str, tuple[int, int]] = {}
        self._stored_at = time.monotonic()
        self._ensemble: bytes | None = None
        self._remove: Callable[[], object] = lambda: None

    @classmethod
    def load(cls, place: Path | str, *, inside: bool = True) -> Run:
        """Open a run for reading. Not locked: it may still be at work.

        Of one in storage a private copy is made, without ledger and teachers; without `inside` only what may leave the
        run and its config are copied. `sync` brings back what was changed in a copy of what is inside.
        """
        if not is_url(place):
            if not Path(place).is_dir():
                raise RunError(f"{place}: is not a run directory")
            return cls(Path(place))
        storage = open_storage(str(place))
        folder = Path(mkdtemp(prefix="pate-run-"))  # mode 0700
        run = cls(folder, storage)
        run._remove = weakref.finalize(run, shutil.rmtree, folder, ignore_errors=True)
        pull(storage, folder, _to_read if inside else _to_publish)
        if not any(folder.iterdir()):
            raise RunError(f"{storage.url}: is not a run directory")
        run._remember()
        return run

    @classmethod
    def check(cls, place: Path | str, config: RunConfig, resume: Resume = False) -> None:
        """Raise where `create` would refuse a folder as it is now; of a place in storage only `create` can tell."""
        if not is_url(place):
            try:
                cls(Path(place))._check_place(config, resume)
            except OSError as error:
                raise RunError(f"{error.filename or place}: {error.strerror}; choose another place") from None

    @classmethod
    @contextmanager
    def create(cls, place: Path | str, config: RunConfig, resume: Resume = False) -> Iterator[Run]:
        """Make a run, or `resume` one that belongs to the same config; locked while in use.

        Of several that begin in one place at the same time, one has it, and the others are refused.
        """
        opened = cls._in_storage(open_storage(str(place)), config, resume) if is_url(place) else None
        with opened or cls._in_folder(Path(place), config, resume) as run, run:
            BEGUN.add(str(place))
            yield run

    @classmethod
    @contextmanager
    def _in_folder(cls, path: Path, config: RunConfig, resume: Resume) -> Iterator[Run]:
        run = cls(path)
        with ExitStack() as stack:
            try:
                run._check_place(config, resume)
                run._make_private()
                stack.enter_context(locked(run.lock_file, wait=False))
                run._prepare(config, resume)
                run._adopt(config)
            except BlockingIOError:
                raise RunError(f"{path}: another pate is at work there; wait for it or choose another place") from None
            except OSError as error:
                raise RunError(f"{error.filename or path}: {error.strerror}; choose another place") from None
            yield run

    @classmethod
    @contextmanager
    def _in_storage(cls, storage: Storage, config: RunConfig, resume: Resume) -> Iterator[Run]:
        """A local copy of what is in storage. Only the ledger keeps two machines apart: see `StoredLedger`."""
        folder = _working_copies() / blake2b(storage.url.encode(), digest_size=12).hexdigest()
        make_folder(folder.parent, 0o700)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(folder.with_suffix(".lock"), wait=False))
            except BlockingIOError:
                raise RunError(f"{storage.url}: another pate on this machine is at work there; wait for it") from None
            shutil.rmtree(folder, ignore_errors=True)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            pull(storage, folder, lambda name: not name.startswith(FOLDER))
            run = cls(folder, storage)
            run._check_place(config, resume)
            run._make_private()
            run._prepare(config, resume)
            check_exclusive(storage)
            for name in (_KEY, files.CONFIG):
                if not storage.create(name, (folder / name).read_bytes()):
                    raise RunError(f"{storage.url}: another run was begun there this moment; choose another place")
            run._remember()
            run._adopt(config)
            yield run

    def close(self) -> None:
        """Remove the copy that `load` made; also done when the run is no longer used."""
        self._remove()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the run; an error about its local copy is told of the place that the user knows."""
        self.close()
        if self.storage is not None and isinstance(error, PateError):
            here = str(self.path)
            error.args = tuple(p.replace(here, self.place) if isinstance(p, str) else p for p in error.args)

    @property
    def key(self) -> bytes:
        """Drawn once per run; keys the partition and the digests of queries."""
        return read_key(self.key_file)

    @property
    def id(self) -> str:
        """The run's public name, the same whenever and wherever it goes on; nobody learns the key from it."""
        return keyed_digest(self.key, b"run", b"").hex()

    @property
    def config(self) -> Config | BaselineConfig:
        """The settings that the run was begun with."""
        if not self.config_file.exists():
            raise RunError(f"{self.place}: is not a run directory")
        return stored_config(self.config_file)

    @property
    def report(self) -> Report | BaselineReport:
        """The figures of a finished run."""
        from pate.report._files import read_report

        return read_report(self.path)

    @property
    def labels(self) -> Labels | None:
        """The labels that were released; None where there are none yet."""
        from pate.runs._run_ledger import read_labels

        return read_labels(self.labels_file)

    def student(self, trust: Iterable[str] = ()) -> Any:
        """The run's student, ready to predict: whatever it is made of, if the run itself wrote it.

        Else `trust` names what its files may import beside our own classes.
        """
        from pate.runs.model_store import load_model

        return load_model(self.student_folder, trust, self)

    def model(self, trust: Iterable[str] = ()) -> Any:
        """A baseline's model, ready to predict; `trust` as for a student."""
        from pate.runs.model_store import load_model

        return load_model(self.model_folder, trust, self)

    def predictor(self, trust: Iterable[str] = (), student: str | None = None) -> Predictor:
        """What the run has learned, a student or a baseline's model, and its card; or a further `student` by name."""
        from pate.runs.model_store import load_predictor

        return load_predictor(self, trust, student)

    def _repr_html_(self) -> str:
        """What a notebook shows: accuracy, ε, and how often each class was released."""
        try:
            report, labels = self.report, self.labels
        except RunError as error:
            return f"<p>{escape(str(error))}</p>"
        accuracy = "not measured" if report.student.accuracy is None else f"{100 * report.student.accuracy:.1f} %"
        told = (
            f"<p>Run {escape(self.place)}: ε = {report.privacy.epsilon:.3g} at δ = {report.privacy.delta:g}, "
            f"right on test examples: {accuracy}</p>"
        )
        return told if labels is None else told + labels_table(report.classes, labels.labels)

    @property
    def places(self) -> tuple[Path | None, Path]:
        """Where the run found its data, and the folder of its config."""
        try:
            content = json.loads(self.places_file.read_text())
        except (OSError, ValueError):
            return None, Path()
        return content["data_dir"] and Path(content["data_dir"]), Path(content["config_dir"])

    def sync(self, at_least_every: float = 0.0) -> None:
        """Copy what has changed here to storage, `private/` too, unless that was done less than that many seconds ago.

        What was removed here is removed there first: whatever a crash leaves behind, erased votes do not come back.
        """
        if self.storage is None or time.monotonic() - self._stored_at < at_least_every:
            return
        if self.storage.read(_ENSEMBLE) != self._ensemble:
            raise RunError(f"{self.place}: records were forgotten there meanwhile; this pate stops, resume the run")
        state = self._state()
        for name in self._stored.keys() - state.keys():
            self.storage.remove(name)
        changed = [name for name in state if state[name] != self._stored.get(name)]
        signals = [name for name in changed if name in _SIGNALS]
        others = [name for name in changed if name not in _SIGNALS]
        for names in (*(others[i : i + _AT_ONCE] for i in range(0, len(others), _AT_ONCE)), signals):
            if names:
                self.storage.write({name: (self.path / name).read_bytes() for name in names})
        self._remember(state)

    def release_once(self, content: bytes) -> None:
        """Store what the run releases, with what it cost, before anyone sees it: whole or not at all, and only once.

        RunError if another machine has stored another result of this run in storage: both would cost ε.
        """
        if self.storage is not None and not self.storage.create(_RELEASED, content):
            text = f"{self.place}: another pate has released its result from this run; with {{resume}} it is published"
            raise RunError(text, resume=True)
        write_atomically(self.released_file, content)

    def _remember(self, state: dict[str, tuple[int, int]] | None = None) -> None:
        """Note that storage holds what is here."""
        self._stored, self._stored_at = self._state() if state is None else state, time.monotonic()
        self._ensemble = self.ensemble_file.read_bytes() if self.ensemble_file.exists() else None

    def _state(self) -> dict[str, tuple[int, int]]:
        """Every file that belongs in storage, with its time and size, which tell whether it has changed."""
        result = {}
        for path in self.path.rglob("*"):
            name = path.relative_to(self.path).as_posix()
            if path.is_file() and not name.endswith(".partial") and not name.startswith(_STAYS):
                about = path.stat()
                result[name] = about.st_mtime_ns, about.st_size
        return result

    def note(self, name: str, content: Any) -> None:
        """Write a JSON file under `private/`."""
        write_atomically(self.private / name, json.dumps(content, indent=2) + "\n")

    def replace(self, name: str, value: str) -> None:
        """Store `value` in the file `name` under `private/`, in place of what was there."""
        write_atomically(self.private / name, value)

    def same_as_before(self, name: str, value: str) -> bool:
        """Store `value` in the file `name` under `private/`; False if another value is there already."""
        path = self.private / name
        if path.exists():
            return path.read_text(encoding="utf-8") == value
        write_atomically(path, value)
        return True

    def _check_place(self, config: RunConfig, resume: Resume) -> None:
        """Before anything is written: there is nothing yet, or a run of this config that is to go on."""
        stored = self.config_file
        begun = self.path.exists() and any(self.path.iterdir())
        if begun and not resume:
            raise self._not_empty()
        if begun and not stored.exists() and not {p.name for p in self.path.iterdir()} <= _FIRST_FILES:
            raise RunError(f"{self.place}: is not a run directory; choose another place")
        if resume is True and not begun:
            raise RunError(f"{self.place}: there is no run to resume")
        if stored.exists():
            _must_match(config, settings_from(read_yaml(stored), type(config)), self.place)

    def _make_private(self) -> None:
        make_folder(self.path)
        make_folder(self.private, 0o700)
        if self.private.stat().st_mode & 0o077:
            raise RunError(f"{self.private}: others can read it; run: chmod -R go= {self.private}")

    def _prepare(self, config: RunConfig, resume: Resume) -> None:
        """Under the lock, so that of several runs begun here at once one draws the key."""
        stored, key = self.config_file, self.key_file
        self.resumed = resume is True or stored.exists()
        if stored.exists():
            if not resume:
                raise self._not_empty()
            self._check_place(config, resume)  # again: another run may have been here before the lock
            read_key(key)
            return
        if not key.exists():
            write_atomically(key, secrets.token_bytes(KEY_BYTES))
        write_atomically(stored, config.to_yaml(), mode=0o644)

    def _adopt(self, config: RunConfig) -> None:
        """Take over settings that release nothing new; a student of other settings is made anew from the same labels.

        The student goes first: whatever a crash leaves, no student is there that the config does not describe.
        """
        stored, text = settings_from(read_yaml(self.config_file), type(config)), config.to_yaml()
        if self.config_file.read_text(encoding="utf-8") == text:
            return
        if isinstance(config, Config) and isinstance(stored, Config) and config.student != stored.student:
            self.student_card.unlink(missing_ok=True)
            for folder in (self.student_folder, self.student_checkpoint):
                shutil.rmtree(folder, ignore_errors=True)
        write_atomically(self.config_file, text, mode=0o644)

    def _not_empty(self) -> RunError:
        text = f"{self.place}: is not empty; add {{resume}} to go on with that run, or choose another {{out}}"
        return RunError(text, resume=True, out=None)


class Version(BaseModel):
    """`private/ensemble.json`: which version of the ensemble this is, and how it came to be.

    `pending` are parts that still have to be erased, and `data_digest` that of the records that are left once they are.
    """

    model_config = ConfigDict(frozen=True)

    version: int = 1
    forgotten: tuple[str, ...] = ()
    pending: tuple[int, ...] | None = None
    data_digest: str | None = None

    @classmethod
    def of(cls, run: Run) -> Version:
        """The version that a run is at; the first where nothing was forgotten."""
        path = run.ensemble_file
        return cls.model_validate_json(path.read_text()) if path.exists() else cls()

    def store(self, run: Run) -> None:
        """Make this the version of the run, in storage too."""
        run.note(files.ENSEMBLE, self.model_dump(mode="json"))
        run.sync()  # whatever happens next, the run knows what is to be forgotten


@contextmanager
def remove_empty_run(run: Run) -> Iterator[None]:
    """Remove a run that was begun this moment if it ends in a mistake of the user and nothing was trained, counted or
    charged. One that is resumed, is to be resumed by what the error says, is in storage or was interrupted stays as it
    is. Within the run's own lock.
    """
    from pate.runs._run_ledger import forget_anchor

    try:
        yield
    except PateError as error:
        stays = run.resumed or "resume" in error.arguments or run.storage is not None
        if not stays and not _is_worth_keeping(run):
            forget_anchor(run)
            shutil.rmtree(run.path, ignore_errors=True)
        raise


def _is_worth_keeping(run: RunFiles) -> bool:
    """Whether anything was paid for, or took time; in doubt yes."""
    if any(path.exists() for path in (run.labels_file, run.votes_file, run.released_file, run.baseline_state)):
        return True
    if any(
        (run.private / name).exists() and any((run.private / name).iterdir())
        for name in (files.CELLS, files.FEATURES, files.TEACHERS)
    ):
        return True
    if not run.ledger_file.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{run.ledger_file.resolve().as_uri()}?mode=ro", uri=True)) as ledger:
            return any(ledger.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() for table in ("charges", "answers"))
    except sqlite3.Error:
        return True


def _must_match(config: RunConfig, stored: RunConfig, place: str) -> None:
    if config.release_digest() == stored.release_digest():
        return
    ours, theirs = config.model_dump(mode="json"), stored.model_dump(mode="json")
    free = {"ray", "backend", *config.releasing_nothing}
    key = next(key for key in ours if key not in free and ours[key] != theirs[key])
    unlike = f"{key} is {theirs[key]!r} there, {ours[key]!r} here"
    if key == "student":
        unlike = f"another student, which has a say in what is asked: {unlike}"
    if key == "data":  # file names of another run have no place in a log
        names = sorted({*ours[key], *theirs[key]})
        unlike = f"other {', '.join(f'data.{n}' for n in names if ours[key].get(n) != theirs[key].get(n))}"
    raise RunError(
        f"{place}: belongs to another config ({unlike}); choose another place, or the config it was made with"
    )


def _working_copies() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "pate" / "work"


def _to_read(name: str) -> bool:
    return not name.startswith((FOLDER, _TO_GO_ON))


def _to_publish(name: str) -> bool:
    """The config, what may leave, and the files of a student or model that left."""
    return name == files.CONFIG or any(files.may_leave(f"{folder}{name}") for folder in _ALONE)
