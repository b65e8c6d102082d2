"""Everything that is wrong with data, told at once instead of one mistake per try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pate.errors import DataError, numbered


class SeveralErrors(DataError):
    """Two or more errors about data, in one line."""

    def __init__(self, found: Sequence[DataError]) -> None:
        arguments = {name: value for error in found for name, value in error.arguments.items()}
        super().__init__(numbered([error.text() for error in found]), **arguments)
        self.found = tuple(found)
        self.private = "; ".join(error.private for error in found if error.private)


class Problems:
    """Errors about data, gathered until they are told in one line.

    >>> problems = Problems()
    >>> for name in ("age", "sex"):
    ...     with problems.gathered():
    ...         raise DataError(f"column {name!r} is missing")
    >>> problems.raise_all()
    Traceback (most recent call last):
    pate.data.problems.SeveralErrors: 2 problems: (1) column 'age' is missing; (2) column 'sex' is missing
    """

    def __init__(self) -> None:
        self._found: list[DataError] = []

    def add(self, error: DataError) -> None:
        """One more."""
        if error.text() not in (other.text() for other in self._found):
            self._found.append(error)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Within it a DataError is kept for later."""
        try:
            yield
        except DataError as error:
            for one in error.found if isinstance(error, SeveralErrors) else [error]:
                self.add(one)

    def raise_all(self) -> None:
        """Raise what was gathered, if anything was."""
        if not self._found:
            return
        raise self._found[0] if len(self._found) == 1 else SeveralErrors(self._found)
