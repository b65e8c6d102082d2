"""What a run published pins its ledger: `labels.npz`, a student's card and a baseline's name the link they left at.

That tells nothing private. The link's number counts batches, which follows from limits and released labels; its code is
an HMAC under the run's key, and tells nothing to anybody without the key. The code is written in letters only, so that
nobody takes digits in it for a figure.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pate.data.public import PublicData
from pate.errors import RunError
from pate.ledger._chain import MAC_BYTES, Pin
from pate.runs._files import LABELS, MODEL, MODEL_CARD, STUDENT, STUDENT_CARD, RunFiles
from pate.storage._files import write_arrays

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
    if content.weights is not None:
        arrays["weights"] = content.weights
    if content.cells is not None:
        arrays["cells"] = content.cells
    write_arrays(path, arrays, mode=0o644)


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
    return pins | {name: _pin_of_card(run / name) for name in _CARDS if (run / name).exists()}


def _pin_of_card(path: Path) -> Pin:
    try:
        pin = _pin_from_json(json.loads(path.read_text(encoding="utf-8"))["ledger"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pin = None
    if pin is None:
        raise RunError(f"{path}: is damaged, or of another pate; put back what the run published")
    return pin


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
