"""A run's ledger: how it is opened, the links that published files pin it to, and which anchor it has.

`labels.npz`, a student's card and a baseline's name the link of the ledger that they left at. That tells nothing
private. The link's number counts batches, which follows from limits and released labels; its code is an HMAC under the
run's key, and tells nothing to anybody without the key. The code is written in letters only, so that nobody takes
digits in it for a figure.

The anchor is one that the user names, or by default the user's own: a file in the user's state folder, named by the
ledger's identity, so neither a run's path nor another run's matters. Which anchor a run was begun with is noted in it
and beside the anchor: a copy of the run from which that was stripped is found all the same. A run in storage has its
links there, and goes on on any machine: it has no default.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pate.config import Config
from pate.data.public import PublicData
from pate.errors import ConfigError, RunError
from pate.ledger import Ledger, Limits, SharedLedger, StoredLedger
from pate.ledger._chain import MAC_BYTES, Pin, absolute, identity
from pate.runs._files import LABELS, MODEL, MODEL_CARD, STUDENT, STUDENT_CARD, RunFiles
from pate.runs._signatures import is_signed, sign
from pate.runs.run import Run, Version
from pate.storage import is_url
from pate.storage._files import make_state_folder, state_folder, write_arrays, write_atomically

if TYPE_CHECKING:
    from pate.voters.base import Voters

_CARDS = (f"{STUDENT}/{STUDENT_CARD}", f"{MODEL}/{MODEL_CARD}")
_LETTERS = str.maketrans("0123456789", "ghijklmnop")
_HEX = str.maketrans("ghijklmnop", "0123456789")


class Labels(NamedTuple):
    """The content of `labels.npz`: labels, the rows of the public data they belong to and, if any, their weights."""

    labels: NDArray[np.int64]
    rows: NDArray[np.int64]
    pin: Pin
    weights: NDArray[np.float64] | None = None
    cells: NDArray[np.int64] | None = None
    """Which cell of public examples each label is from, where whole cells were labelled."""

    def examples(self, data: PublicData) -> NDArray:
        """The public examples that were labelled."""
        return data.X_public[self.places(data)]

    def places(self, data: PublicData) -> NDArray[np.int64]:
        """Where among the public examples those are that were labelled."""
        numbers = np.arange(len(data.X_public)) if data.public_rows is None else data.public_rows
        order = np.argsort(numbers)
        places = order[np.searchsorted(numbers[order], self.rows).clip(max=len(order) - 1)]
        if not np.array_equal(numbers[places], self.rows):
            raise RunError(f"{LABELS}: names public examples that are not there; put back what the run published")
        return places


def write_labels(path: Path, content: Labels, classes: tuple[str, ...]) -> None:
    """Write `labels.npz`, whole or not at all."""
    link, code = pin_to_json(content.pin).values()
    arrays: dict[str, Any] = {
        "labels": content.labels,
        "rows": content.rows,
        "classes": np.array(classes),
        "ledger_link": np.int64(link),
        "ledger_code": np.array(code),
    }
    optional = {"weights": content.weights, "cells": content.cells}
    write_arrays(path, arrays | {name: array for name, array in optional.items() if array is not None}, mode=0o644)


def read_labels(path: Path) -> Labels | None:
    """What a run has published; None where there is nothing yet."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            labels, rows = archive["labels"].astype(np.int64), archive["rows"].astype(np.int64)
            weights = archive["weights"].astype(np.float64) if "weights" in archive.files else None
            cells = archive["cells"].astype(np.int64) if "cells" in archive.files else None
            pin = _pin_from_json({"link": archive["ledger_link"].item(), "code": archive["ledger_code"].item()})
    except FileNotFoundError:
        return None
    except Exception:  # zip, zlib and numpy each have their own for a damaged file
        pin = None
    if pin is None or labels.ndim != 1 or labels.shape != rows.shape:
        raise RunError(f"{path}: is damaged, or of another pate; put back what the run published")
    return Labels(labels, rows, pin, weights, cells)


def published_pins(run: Path) -> dict[str, Pin]:
    """Where the ledger of the run in this folder was when each file was published."""
    labels = read_labels(RunFiles(run).labels_file)
    pins = {} if labels is None else {LABELS: labels.pin}
    for name in filter(lambda name: (run / name).exists(), _CARDS):
        try:
            pin = _pin_from_json(json.loads((run / name).read_text(encoding="utf-8"))["ledger"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pin = None
        if pin is None:
            raise RunError(f"{run / name}: is damaged, or of another pate; put back what the run published")
        pins[name] = pin
    return pins


def pin_to_json(pin: Pin) -> dict[str, Any]:
    """A pin as the published files carry it."""
    return {"link": pin.link, "code": pin.mac.hex().translate(_LETTERS)}


def _pin_from_json(content: object) -> Pin | None:
    """What `pin_to_json` wrote; None if it is anything else."""
    try:
        pin = Pin(content["link"], bytes.fromhex(content["code"].translate(_HEX)))  # type: ignore[index]
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return pin if type(pin.link) is int and pin.link > 0 and len(pin.mac) == MAC_BYTES else None


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


def shared_ledger(config: Config, out: Path | str, config_dir: Path) -> SharedLedger | None:
    """The ledger that a run in `out` shares with others, None if it has its own; an error if it cannot be used."""
    named = config.budget.ledger
    if named is None:
        return None
    if is_url(out):
        text = "budget.ledger: a ledger that runs share stays on one machine; give {out} as a folder there"
        raise ConfigError(text, out=None)
    return SharedLedger.at((config_dir / named.path).resolve(), named.id)


def anchor_of(
    config: Config, directory: Run, config_dir: Path, wanted: str | None, notify: Callable[[str], None]
) -> ChosenAnchor:
    """Where the links of the run's ledger, its own or a shared one, are also kept.

    `wanted` is what `choose_anchor` takes.
    """
    shared = shared_ledger(config, directory.place, config_dir)
    return choose_anchor(directory, identity(directory.key) if shared is None else shared.id, wanted, notify)


def ledger_opener(
    voters: Voters[Any], directory: Run, config_dir: Path = Path(), anchor: ChosenAnchor = NO_ANCHOR
) -> Callable[[], Ledger]:
    """How the aggregator opens its ledger: the run's own, or one that runs on the same data share.

    What the run has published must come from that ledger, and the links that `anchor` holds must be its own.
    """
    shared = shared_ledger(voters.config, directory.place, config_dir)
    if shared is None:
        return own_ledger(directory, voters.limits(), anchor)
    joint = shared.budget()
    name, options = directory.id, _vouched(directory, anchor)  # copies of a run are one run: they share its answers
    return partial(Ledger, shared.db, shared.key, shared.head, name, voters.limits(joint.order), joint, **options)


def own_ledger(directory: Run, limits: Limits, anchor: ChosenAnchor) -> Callable[[], Ledger]:
    """How the run's own ledger is opened, here or in storage."""
    own = (directory.ledger_file.resolve(), directory.key, directory.ledger_head.resolve(), "run", limits)
    if directory.storage is None:
        return partial(Ledger, *own, **_vouched(directory, anchor))
    return partial(StoredLedger, directory.storage.url, *own, **_vouched(directory, anchor))


def _vouched(directory: Run, anchor: ChosenAnchor) -> dict[str, Any]:
    published = {"ensemble": Version.of(directory).version, "pins": published_pins(directory.path)}
    return {**published, "anchor": anchor.place, "new_anchor": anchor.new}
