"""Which anchor a run's ledger has: one that the user names, or by default the user's own, outside of all runs.

The default is a file in the user's state folder, named by the ledger's identity, so neither a run's path nor another
run's matters. Which anchor a run was begun with is noted in it and beside the anchor: a copy of the run from which that
was stripped is found all the same. A run in storage has its links there, and goes on on any machine: it has no default.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pate.errors import ConfigError, RunError
from pate.ledger._anchor import absolute
from pate.ledger._chain import identity
from pate.runs._signatures import is_signed, sign
from pate.runs.run import Run
from pate.storage._files import make_state_folder, state_folder, write_atomically

_NONE, _NEW = "none", "new"
_USERS = "of the user"
_FOLDER = "anchors"


class ChosenAnchor(NamedTuple):
    """Where a ledger's links are also kept, if anywhere; `new` if it need not know what the ledger released so far."""

    place: str | None
    new: bool = False


NO_ANCHOR = ChosenAnchor(None)


def choose_anchor(run: Run, ledger: str, wanted: str | None, say: Callable[[str], None]) -> ChosenAnchor:
    """The anchor of the ledger of that identity, noted for good; RunError where the run was begun with another.

    `wanted` is a file or URL, `none`, `new` for a run that was moved here for good, or None for the default: whatever
    the run was begun with, and for a new one the user's own.
    """
    known = _noted(run)
    if wanted not in (None, _NONE, _NEW):
        place = absolute(str(wanted))
        if known not in (None, _NONE, place):
            raise _begun_with(known)
        _remember(run, place)
        return ChosenAnchor(place)
    if wanted == _NEW and run.storage is not None:
        raise ConfigError(
            "{anchor}: a run in storage goes on anywhere; name a file or URL, or leave it out", anchor=_NEW
        )
    if wanted == _NONE and known not in (None, _NONE):
        raise _begun_with(known)
    if known not in (None, _NONE, _USERS):
        if not _is_vouched_for(run):
            raise RunError(f"{run.place}: was begun with the anchor {known}, says a file that was not written by you "
                           "here; if that is right, name it with {anchor}", anchor=known)  # fmt: skip
        if wanted == _NEW:
            raise _begun_with(known)
        return ChosenAnchor(known)
    if wanted == _NONE or (wanted is None and known == _NONE) or run.storage is not None:
        if run.storage is None:
            run.replace(run.anchor_file.name, _NONE)
        return ChosenAnchor(None)
    if known == _USERS and wanted is None and not _is_known_here(run):
        raise RunError(
            f"{run.place}: its anchor is with the user who began it, on the machine where that was, and not here: "
            "nothing vouches that this is not an older copy, or one of two that go on. If the run was moved here for "
            "good, add {anchor}",
            anchor=_NEW,
        )
    return ChosenAnchor(_users_own(run, ledger, known, say), new=wanted == _NEW)


def known_anchor(run: Run, ledger: str) -> str | None:
    """The anchor that the ledger of a run, or a shared one, is said to have and that is there: nothing is noted."""
    known = _noted(run) if run.key_file.exists() else _USERS
    if known in (None, _NONE):
        return None
    if known != _USERS:
        return known if _is_vouched_for(run) else None
    with suppress(OSError):
        own = _anchor(ledger)
        return str(own) if own.exists() and own.stat().st_size else None
    return None


def forget_anchor(run: Run) -> None:
    """Nothing is kept of a run that is removed before anything was charged."""
    with suppress(OSError, RunError):
        for place in (_note(run), _anchor(identity(run.key))):
            place.unlink(missing_ok=True)


def _users_own(run: Run, ledger: str, known: str | None, say: Callable[[str], None]) -> str | None:
    """The file in the user's state folder; None where the user has no such folder."""
    try:
        make_state_folder(_FOLDER)
        place = _anchor(ledger)
        place.touch(mode=0o600)
    except OSError as error:
        if known == _USERS:
            raise RunError(f"{error.filename or 'the anchor'}: {error.strerror}; nothing was released") from None
        say(
            f"note: the ledger has no anchor ({error.filename}: {error.strerror}), so a copy of this run that goes on "
            "would not be noticed; docs/ledger.md says how to name one"
        )
        run.replace(run.anchor_file.name, _NONE)
        return None
    _remember(run, _USERS)
    return str(place)


def _remember(run: Run, what: str) -> None:
    """In the run, signed, and beside the anchor, as far as the user has a place for that."""
    if run.anchor_file.exists() and run.anchor_file.read_text(encoding="utf-8") == what and _is_vouched_for(run):
        return
    run.replace(run.anchor_file.name, what)
    sign(run, run.anchor_file)
    with suppress(OSError):
        make_state_folder(_FOLDER)
        write_atomically(_note(run), what)


def _noted(run: Run) -> str | None:
    """What the run was begun with: as the user's own note says, else as the run does."""
    with suppress(OSError):
        return _note(run).read_text(encoding="utf-8")
    return run.anchor_file.read_text(encoding="utf-8") if run.anchor_file.exists() else None


def _is_vouched_for(run: Run) -> bool:
    return _is_known_here(run) or is_signed(run, run.anchor_file)


def _is_known_here(run: Run) -> bool:
    with suppress(OSError):
        return _note(run).exists()
    return False


def _note(run: Run) -> Path:
    return state_folder() / _FOLDER / f"run-{run.id}"


def _anchor(ledger: str) -> Path:
    return state_folder() / _FOLDER / ledger


def _begun_with(known: str | None) -> RunError:
    which = "your own anchor; leave {anchor} out" if known == _USERS else f"the anchor {known}; name that one"
    return RunError(f"{{anchor}}: this run was begun with {which}", anchor=None)
