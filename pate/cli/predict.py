"""pate predict: the student at work. Needs neither Ray nor anything private."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pate.errors import DataError, PateError, RunError, first_line

if TYPE_CHECKING:
    from numpy.typing import NDArray


def predict(
    run: Annotated[Path, typer.Argument(help="run directory, or a student folder taken from one")],
    input_: Annotated[Path, typer.Option("--input", help=".npz with an array X, or .npy: the examples")],
    trust: Annotated[
        list[str] | None, typer.Option(help="module.Class that the student's files may import; may be given again")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")] = False,
) -> None:
    """Name the class of each example, one a line."""
    from pate.console import printable
    from pate.students.storage import load_card, load_student

    folder = run if (run / "student.json").exists() else run / "student"
    card = load_card(folder)
    X = read_examples(input_, card)
    if "classes" not in card:
        raise RunError(f"{folder}: student.json has no classes, so that there is no name for a label")
    student = load_student(folder, trust or ())
    labels, sure = _answers(student, X, len(card["classes"]), folder, as_json)
    names = [str(card["classes"][label]) for label in labels]
    if as_json:
        content = {key: card.get(key) for key in ("student", "epsilon", "delta", "mechanism", "classes")}
        print(json.dumps(content | {"labels": names, "probabilities": sure}))
    else:
        print("\n".join(printable(name) for name in names))


def _answers(
    student: Any, X: NDArray, n_classes: int, folder: Path, with_probabilities: bool
) -> tuple[list[int], list[float]]:
    """Labels, and how sure the student is of each; its file may hold an estimator that cannot do its work."""
    try:
        labels = [int(label) for label in student.predict(X)]
        shares = student.predict_proba(X).max(1, initial=0.0) if with_probabilities else []
        sure = [round(float(share), 6) for share in shares]
    except PateError:
        raise
    except Exception as error:  # classes of anybody's making
        raise RunError(f"{folder}: cannot predict ({type(error).__name__}: {first_line(error)[:200]})") from None
    if len(labels) != len(X) or not all(0 <= label < n_classes for label in labels):
        raise RunError(f"{folder}: cannot predict (for {len(X)} examples it gave what are not as many classes)")
    if not all(math.isfinite(share) for share in sure):
        raise RunError(f"{folder}: cannot predict (its probabilities are not numbers)")
    return labels, sure


def read_examples(path: Path, card: dict[str, Any]) -> NDArray:
    """The array in `path`, checked against what the student was trained on; never unpickled."""
    import numpy as np

    X = _array(path)
    if X.dtype.kind not in "fiub":
        raise DataError(f"{path}: holds {X.dtype}, not numbers")
    shape = tuple(card.get("shape") or X.shape[1:])
    if X.shape == shape:
        raise DataError(f"{path}: has shape {X.shape}, a single example; give {(1, *shape)}")
    if X.ndim < 2 or X.shape[1:] != shape:
        raise DataError(f"{path}: has shape {X.shape}; this student takes (examples, {', '.join(map(str, shape))})")
    if len(X) == 0:
        raise DataError(f"{path}: holds no examples")
    if not np.isfinite(X).all():
        row = int(np.argwhere(~np.isfinite(X))[0][0])
        raise DataError(f"{path}: NaN or infinity in row {row} (counted from 0)")
    if len(shape) > 1 and X.dtype.kind in "iu":
        raise DataError(f"{path}: holds whole numbers ({X.dtype}); this student takes {card.get('input', 'floats')}")
    return X.astype(np.float32)


def _array(path: Path) -> NDArray:
    import numpy as np

    try:
        content = np.load(path, mmap_mode="r", allow_pickle=False)  # a map is never larger than the file
        if isinstance(content, np.ndarray):
            return content
        with content:
            if "X" not in content and len(content.files) != 1:
                raise DataError(f"{path}: has no array X; there are {', '.join(content.files) or 'none'}")
            return np.asarray(content["X" if "X" in content else content.files[0]])
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except DataError:
        raise
    except Exception as error:  # a broken archive fails in many ways
        raise DataError(f"{path}: not a .npz or .npy file of plain numbers ({first_line(error)})") from None
