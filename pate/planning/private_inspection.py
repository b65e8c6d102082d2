"""What `pate init` looks up in private cells, and whom it tells: the operator at a terminal, and no pipe or log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from pate.data.column_inference import Seen
from pate.data.problems import Problems, SeveralErrors
from pate.data.records import Table
from pate.errors import ConfigError, DataError
from pate.runs.console import Console, printable

_MAX_SHOWN = 3
_LONGEST_SHOWN = 50  # signs


@contextmanager
def private_errors(
    private: Path, public: Iterable[Path], console: Console, argument: str | None = None
) -> Iterator[None]:
    """Within it, errors are raised as they are at a terminal alone.

    Elsewhere those about `public` files are, and instead of others one that says that something is wrong with the
    private file, and perhaps which argument would do without a look at it.
    """
    problems, places = Problems(), tuple(f"{path}: " for path in public)
    try:
        yield
    except (ConfigError, DataError) as error:
        if console.at_terminal:
            raise
        for one in error.found if isinstance(error, SeveralErrors) else [error]:
            if isinstance(one, DataError) and one.text().startswith(places):
                problems.add(one)
            else:
                problems.add(_something_is_wrong(private, argument))
    try:
        problems.raise_all()
    except DataError as error:
        raise error from None  # no traceback shows the one before


def _something_is_wrong(private: Path, argument: str | None) -> DataError:
    text = (
        f"{private}: no config can be written for it as it is; what is wrong depends on private records, and is said "
    )
    text += "at a terminal only: run this command at one"
    return DataError(text) if argument is None else DataError(f"{text}, or give {{{argument}}}", **{argument: None})


def check_private_cells(private: Table, columns: Sequence[Seen], console: Console) -> None:
    """Raise DataError where private cells are no numbers or dates: such a record would silently cast no vote.

    The operator at a terminal is told what they hold, as it may be another marker of missing values.
    """
    problems = Problems()
    for one in columns:
        if one.kind == "category":
            continue
        column = private.columns[one.name]
        with problems.gathered():
            wrong = np.flatnonzero(np.isinf(column.numbers(one.form or None, lenient=True)))
            if len(wrong) and isinstance(column.values, list):
                common = Counter(column.values[row] for row in wrong).most_common(_MAX_SHOWN)
                told = ", ".join(f"{printable(text[:_LONGEST_SHOWN])!r} ({times:,} times)" for text, times in common)
                console.info_private(
                    f"{private.where}: column {one.name!r} holds {told}; what means missing, and may be known to, "
                    "can be named with --marker"
                )
            column.numbers(one.form or None)
    problems.raise_all()


def describe_privately(private: Table, name: str, console: Console) -> None:
    """Tell the operator whether a column can say whose record it is: several records each, or one each."""
    with suppress(DataError):  # of dates and the like, which are no ids
        distinct = len({text for text in private.columns[name].texts() if text})
        console.info_private(f"column {name!r}: {distinct:,} different values in {len(private):,} private rows")
