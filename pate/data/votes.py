"""A votes file: what people who only want the accounting have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate.errors import DataError


def load_votes(path: Path, first: int | None = None) -> NDArray[np.int64]:
    """Vote histograms, int[queries, classes], from a .npy file; every row sums to the number of teachers."""
    try:
        votes = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path}: not a .npy file of plain numbers ({error})") from None
    if not isinstance(votes, np.ndarray):
        raise DataError(f"{path}: an archive; give a .npy file with one array")
    return checked_votes(votes, str(path))[:first]


def checked_votes(votes: NDArray, name: str) -> NDArray[np.int64]:
    """The histograms as integers, or one line that says what is wrong with them."""
    if votes.dtype.kind not in "iuf":
        raise DataError(f"{name}: holds {votes.dtype}, not counts of votes")
    if votes.ndim != 2 or votes.shape[1] < 2:
        raise DataError(f"{name}: has shape {votes.shape}; needed is (queries, classes) with two classes or more")
    if len(votes) == 0:
        raise DataError(f"{name}: holds no queries")
    if not np.isfinite(votes).all():
        raise DataError(f"{name}: row {_first_row(~np.isfinite(votes))} holds NaN or infinity")
    if (votes < 0).any():
        raise DataError(f"{name}: row {_first_row(votes < 0)} holds a negative count")
    if (votes != np.floor(votes)).any():
        raise DataError(f"{name}: row {_first_row(votes != np.floor(votes))} holds a count that is not whole")
    totals = votes.sum(axis=1)
    if (totals != totals[0]).any():
        row = int(np.argmax(totals != totals[0]))
        raise DataError(f"{name}: row {row} sums to {totals[row]:g}, row 0 to {totals[0]:g}; every teacher votes once")
    return votes.astype(np.int64)


def _first_row(wrong: NDArray[np.bool_]) -> int:
    return int(np.argmax(wrong.any(axis=1)))
