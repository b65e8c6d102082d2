"""pate predict: the student, or a baseline's model, at work. Needs neither Ray nor anything private."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pate.cli._options import AsJson
from pate.components._registry import dotted
from pate.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pate.runs.model_store import Predictor


def predict(
    run: Annotated[
        str, typer.Argument(help="directory or URL of `pate run` or `pate baseline`, or a student folder taken from it")
    ],
    input_: Annotated[
        Path, typer.Option("--input", help="csv or parquet with the columns of the data; or .npz (an array X), .npy")
    ],
    out: Annotated[
        Path | None, typer.Option(help="write a csv file: class and probabilities of each row; - for standard output")
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="column of the input to write beside the answers; may be given again")
    ] = None,
    student: Annotated[str | None, typer.Option(help="one of the further students that `pate student` made")] = None,
    trust: Annotated[
        list[str] | None, typer.Option(help="module.Class that the student's files may import; may be given again")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Name the class of each example, one per line, or in a csv file with probabilities."""
    from pate.runs._console import printable
    from pate.runs.run import Run

    if out is not None and not out.parent.is_dir():
        raise DataError(f"{out}: there is no folder {out.parent}; make it, or give {{out}} another", out=None)
    if out is None and keep:
        raise DataError("{keep}: columns are kept in a file; name one with {out}", keep=keep, out=None)
    if out is not None and out.exists() and input_.exists() and out.samefile(input_):
        raise DataError("{out}: is the input itself, and would be written over; name another file", out=str(out))
    with Run.load(run, inside=False) as found:
        predictor = found.predictor(trust or (), student)
        X, kept = read_examples(input_, predictor, keep or ())
        labels = predictor.positions(X)
        shares = predictor.shares(X) if as_json or out is not None else None
    names = [predictor.classes[label] for label in labels]
    if as_json:
        card = predictor.card
        kind = ("baseline",) if "baseline" in card else ("student", "mechanism")
        content = {key: card.get(key) for key in (*kind, "epsilon", "delta", "classes")}
        sure = None if shares is None else [round(float(share), 6) for share in shares.max(1, initial=0.0)]
        print(json.dumps(content | {"labels": names, "probabilities": sure}))
    elif out is not None:
        _write_csv(out, predictor, names, shares, kept)
    else:
        print("\n".join(printable(name) for name in names))


def _write_csv(
    out: Path, predictor: Predictor, names: list[str], shares: NDArray | None, kept: dict[str, list[str]]
) -> None:
    """A row for each example: kept columns, or its number from 0 on, its class, and the probability of each class.

    With the signs between cells and before decimals that the run's own csv files have.
    """
    columns = predictor.card.get("columns")
    from pate.data._formats import Dialect

    dialect = predictor.format.dialect if isinstance(columns, dict) else Dialect()
    label = str(columns["label"]) if isinstance(columns, dict) and columns.get("label") else "label"
    table: dict[str, Iterable[Any]] = dict(kept) if kept else {"row": range(len(names))}
    table["predicted " + label if label in table else label] = names
    if shares is not None:
        table |= {
            f"p({name})": [f"{share:.6f}".replace(".", dialect.decimal) for share in shares[:, i]]
            for i, name in enumerate(predictor.classes)
        }
    with ExitStack() as stack:
        shown = str(out) == "-"
        file = sys.stdout if shown else stack.enter_context(out.open("w", newline="", encoding="utf-8"))
        writer = csv.writer(file, delimiter=dialect.delimiter, lineterminator="\n")
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    if not shown:
        print(f"written: {out}, {len(names):,} rows", file=sys.stderr)


def read_examples(path: Path, predictor: Predictor, keep: Iterable[str] = ()) -> tuple[NDArray, dict[str, list[str]]]:
    """The examples in `path` as the student takes them, never unpickled, and the columns to keep."""
    from pate.data._formats import is_archive
    from pate.runs.model_store import checked_array

    if path.suffix.lower() in (".xlsx", ".xls", ".ods"):
        raise DataError(f"{path}: is a workbook; save it as csv")
    content = _content(path)
    if content.startswith(b"\x93NUMPY") or is_archive(content):
        if keep:
            raise DataError(f"{path}: is an array, without columns that could be kept; leave out {{keep}}", keep=None)
        return checked_array(_array(content, path), predictor.card, str(path)), {}
    from pate.data._model_input import dialect_seen, examples_of, table_in, texts_of

    if not isinstance(predictor.card.get("columns"), dict):
        raise DataError(f"{path}: not a .npz or .npy file, and this student's card does not say what columns mean")
    format = predictor.format
    dialect = dialect_seen(content, format.dialect)
    of_text = (
        dialect.encoding.lower().startswith(("utf-16", "utf16", "utf_16", "utf-32")) or b"\0" not in content[:4096]
    )
    if not (parquet := content.startswith(b"PAR1")) and not of_text:
        raise DataError(
            f"{path}: neither csv in {format.dialect.encoding}, as this student takes, nor parquet or numpy's"
        )
    try:
        table = table_in(path, format, dialect)
        X = examples_of(table, format)
    except DataError as error:  # of a csv file it ends with how the run's own were written: nobody has its config here
        if parquet:
            raise
        text = f"{error.text()} (this student takes csv files {format.dialect}, as in the run)"
        raise DataError(text, **error.arguments) from None
    if not len(table):
        raise DataError(f"{path}: holds no examples")
    return X, {name: texts_of(table.columns, name, str(path)) for name in keep}


def _content(path: Path) -> bytes:
    from pate.storage._files import read_whole

    try:
        return read_whole(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None


def _array(content: bytes, path: Path) -> NDArray:
    """The array X of an archive, or the only one there is."""
    from pate.data._formats import npy_array, npz_arrays, npz_names

    if content.startswith(b"\x93NUMPY"):
        return npy_array(content, str(path))
    names = npz_names(content, str(path))
    if "X" not in names and len(names) != 1:
        listed = ", ".join(dotted([name]) for name in names[:9]) or "none"
        raise DataError(f"{path}: has no array X; there are {listed}")
    name = "X" if "X" in names else names[0]
    return npz_arrays(content, str(path), [name])[name]
