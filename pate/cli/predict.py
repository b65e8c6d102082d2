"""pate predict: the student, or a baseline's model, at work. Needs neither Ray nor anything private."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pate.errors import DataError, PateError, RunError, first_line
from pate.naming import dotted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pate.runs.predictor import Predictor


def predict(
    run: Annotated[
        str, typer.Argument(help="directory or URL of `pate run` or `pate baseline`, or a student folder taken from it")
    ],
    input_: Annotated[Path, typer.Option("--input", help=".npz with an array X, or .npy: the examples")],
    trust: Annotated[
        list[str] | None, typer.Option(help="module.Class that the student's files may import; may be given again")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")] = False,
) -> None:
    """Name the class of each example, one per line."""
    from pate.console import printable
    from pate.runs.run import Run

    with Run.load(run, inside=False) as found:
        predictor = found.predictor(trust or ())
        card = predictor.card
        labels, sure = _answers(predictor, read_examples(input_, card), as_json)
    names = [str(card["classes"][label]) for label in labels]
    if as_json:
        kind = ("baseline",) if "baseline" in card else ("student", "mechanism")
        content = {key: card.get(key) for key in (*kind, "epsilon", "delta", "classes")}
        print(json.dumps(content | {"labels": names, "probabilities": sure}))
    else:
        print("\n".join(printable(name) for name in names))


def _answers(predictor: Predictor, X: NDArray, with_probabilities: bool) -> tuple[list[int], list[float] | None]:
    """Labels, and how sure the student is of each if it can tell; a file from elsewhere may fail in any way."""
    folder, n_classes = predictor.folder, len(predictor.card["classes"])
    try:
        labels = [int(label) for label in predictor.predict(X)]
        shares = predictor.predict_proba(X) if with_probabilities else None
        sure = None if shares is None else [round(float(share), 6) for share in shares.max(1, initial=0.0)]
    except PateError:
        raise
    except Exception as error:  # classes of anybody's making
        raise RunError(f"{folder}: cannot predict ({type(error).__name__}: {first_line(error)[:200]})") from None
    if len(labels) != len(X) or not all(0 <= label < n_classes for label in labels):
        raise RunError(f"{folder}: cannot predict (it did not give one class for each of {len(X)} examples)")
    if not all(math.isfinite(share) for share in sure or ()):
        raise RunError(f"{folder}: cannot predict (its probabilities are not numbers)")
    return labels, sure


def read_examples(path: Path, card: dict[str, Any]) -> NDArray:
    """The array in `path`, checked against what the student was trained on; never unpickled."""
    import numpy as np

    X = _array(path)
    if X.dtype.kind not in "fiub":
        raise DataError(f"{path}: holds {X.dtype.name}, not numbers")
    shape = tuple(card.get("shape") or X.shape[1:])
    if X.shape == shape:
        raise DataError(f"{path}: has shape {X.shape}, a single example; give {(1, *shape)}")
    if X.ndim < 2 or X.shape[1:] != shape:
        raise DataError(f"{path}: has shape {X.shape}; this student takes (examples, {', '.join(map(str, shape))})")
    if len(X) == 0:
        raise DataError(f"{path}: holds no examples")
    if len(shape) > 1 and X.dtype.kind in "iu":
        raise DataError(f"{path}: holds whole numbers ({X.dtype}); this student takes {card.get('input', 'floats')}")
    with np.errstate(over="ignore"):
        examples = X.astype(np.float32)  # where large numbers become infinite
    if not np.isfinite(examples).all():
        row = int(np.argwhere(~np.isfinite(examples))[0][0])
        raise DataError(f"{path}: NaN, infinity or a number too large for a float in row {row} (counted from 0)")
    return examples


def _array(path: Path) -> NDArray:
    """The array X of an archive, or the only one there is."""
    from pate.data.arrays import is_archive, npy_array, npz_arrays, npz_names
    from pate.storage.files import read_whole

    try:
        content = read_whole(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    if content.startswith(b"\x93NUMPY"):
        return npy_array(content, str(path))
    if not is_archive(content):
        raise DataError(f"{path}: not a .npz or .npy file")
    names = npz_names(content, str(path))
    if "X" not in names and len(names) != 1:
        listed = ", ".join(dotted([name]) for name in names[:9]) or "none"
        raise DataError(f"{path}: has no array X; there are {listed}")
    name = "X" if "X" in names else names[0]
    return npz_arrays(content, str(path), [name])[name]
