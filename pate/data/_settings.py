"""The data section of a config: which source, and where its files are."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from posixpath import normpath
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, field_validator, model_validator

from pate.components._registry import dotted, shown
from pate.data._columns import Treatment, canonical, folded, problem_of
from pate.data._csv_records import is_delimiter
from pate.data._formats import USUAL, Dialect

T = TypeVar("T")
Text = str | int
Several = Annotated[tuple[T, ...], Strict(False)]
"""A tuple, which a file writes as a list; its items are checked as strictly as everything else."""


class Settings(BaseModel):
    """Frozen and strict: an unknown key is an error, and so are text, `yes`, NaN or ∞ in place of a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _numbers_can_be_used(cls, content: Any) -> Any:
        """Refuse numbers that are too large or not finite, inside of parameters too; take `1e3` as a whole number."""
        for path, number in _numbers(content, ()):
            if isinstance(number, int) and number.bit_length() > 63:
                raise ValueError(f"{dotted(path)}: {shown(number)} is too large a number")
            if not math.isfinite(number):
                raise ValueError(f"{dotted(path)} = {number!r}: must be a finite number")
        return {key: _whole(value) for key, value in content.items()} if isinstance(content, dict) else content


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


def _numbers(content: Any, path: tuple[int | str, ...]) -> Iterator[tuple[tuple[int | str, ...], int | float]]:
    """Every number in plain values, and where it is."""
    if isinstance(content, (int, float)):
        yield path, content
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from _numbers(value, (*path, key))
    elif isinstance(content, (list, tuple)):
        for index, value in enumerate(content):
            yield from _numbers(value, (*path, index))


class BenchmarkData(Settings):
    """Public data that plays the part of private data.

    Parameters
    ----------
    source : "digits", "mnist", "fashion_mnist", "svhn", "cifar10", "adult" or "kddcup99"
        Which one: scikit-learn's bundled digits (1,797 images of 8×8 pixels, of which 1,197 play private; no download),
        a torchvision benchmark with the papers' split, or a public table; `pate.data._benchmarks` says where files are
        looked for, and how a table's columns become features.
    """

    source: Literal["digits", "mnist", "fashion_mnist", "svhn", "cifar10", "adult", "kddcup99"]


class ArraysData(Settings):
    """Arrays in memory, given to `pate.run` from Python as `public=` and `private=`.

    Parameters
    ----------
    source : "arrays"
        Nothing else is said of them in the config.
    """

    source: Literal["arrays"]


class OwnData(Settings):
    """The user's own files.

    Parameters
    ----------
    private : str or list of str, optional
        Files of private records, or a pattern such as `shards/*.csv`; paths or URLs.
    public : str, optional
        A file of public examples.
    test : str, optional
        A file of examples with labels to test the student on; it counts as public.
    read_by : "driver" or "workers", optional
        Who reads shards, which changes nothing else; the workers of a cluster that was joined, else the driver, if left
        out.
    id_type : "text" or "integer", default="text"
        What ids are, the same in all files.
    public_record_count : int, optional
        Roughly how many private records there are (persons, where there are ids), as anybody may know: δ is checked
        against it. The exact number is private.
    """

    private: str | Several[str] | None = None
    public: str | None = None
    test: str | None = None
    read_by: Literal["driver", "workers"] | None = None
    id_type: Literal["text", "integer"] = "text"
    public_record_count: int | None = Field(default=None, ge=1, le=10**12)

    @property
    def sharded(self) -> bool:
        """Whether private records are read shard by shard; see pate/data/_shards.py."""
        several = not isinstance(self.private, str) or any(sign in self.private for sign in "*?[")
        return self.private is not None and (several or "://" in str(self.private) or self.read_by == "workers")

    @property
    def dialect(self) -> Dialect:
        """How csv files are written; others say so themselves."""
        return USUAL

    @classmethod
    def lacking(cls, given: Mapping[str, Any]) -> list[str]:
        """The files that a section has to name and does not."""
        needed = ("private",) if given.get("split") is not None else ("private", "public")
        return [] if given.get("file") is not None else [key for key in needed if given.get(key) is None]

    @model_validator(mode="after")
    def _files_fit_together(self) -> OwnData:
        if lacking := self.lacking(vars(self)):
            raise ValueError(f"names no {' and no '.join(lacking)} file; add {' and '.join(lacking)}")
        names = (self.private,) if isinstance(self.private, str) else self.private or ()
        for key in ("public", "test"):
            path = getattr(self, key)
            if path is not None and any(fnmatchcase(normpath(path), normpath(name)) for name in names):
                raise ValueError(
                    f"{key}: is a private file, and what is {key} is treated as known to everybody; name another file"
                )
        if self.sharded and self.public is None:
            raise ValueError("private shards need a 'public' file of their own")
        return self


def _names(values: tuple[Text, ...], form: Callable[[str], str] = canonical) -> tuple[Text, ...]:
    """Names of classes or categories: none twice in that form, none with blanks around it, which match no cell."""
    found: dict[str, Text] = {}
    for value in values:
        name = canonical(str(value))
        if name != str(value):
            raise ValueError(f"{shown(value)} would match no cell: cells are compared without surrounding blanks, in "
                             f"Unicode's form NFC; write {shown(name)}")  # fmt: skip
        if form(name) in found:
            raise ValueError(f"names repeat: {shown(value)}")
        found[form(name)] = value
    return values


def _classes(values: tuple[Text, ...]) -> tuple[Text, ...]:
    if len(values) < 2:
        raise ValueError("at least two classes are needed")
    if "" in values:
        raise ValueError("a class has no name")
    return _names(values)


Classes = Annotated[Several[Text], AfterValidator(_classes)]
Categories = Annotated[Several[Text], AfterValidator(lambda values: _names(values))]


def _markers(values: tuple[Text, ...]) -> tuple[Text, ...]:
    """Texts that a cell could be, none of them twice: they are compared in capitals or not."""
    if "" in values:
        raise ValueError("an empty cell is missing in any case; leave '' out")
    return _names(values, folded)


class MissingValues(Settings):
    """What is missing, and what becomes of it.

    Parameters
    ----------
    markers : list of str, default=[]
        Texts that mean "missing" in every column of numbers, dates and categories, besides an empty cell and the usual
        words (`pate.data._columns.MISSING`). They count as public and are on the student's card.
    treatment : "refuse", "public_median", "indicator" or "keep", default="refuse"
        What stands for a missing number or date: nothing, the public median, that and a 0/1 feature, or NaN.
    """

    markers: Annotated[Several[Text], AfterValidator(_markers)] = ()
    treatment: Treatment = "refuse"

    @model_validator(mode="before")
    @classmethod
    def _is_a_section(cls, content: Any) -> Any:
        if isinstance(content, str):
            raise ValueError(f"is a section with keys of its own; write {{treatment: {shown(content)}}}")
        return content


class NpzData(OwnData):
    """NumPy archives; see `pate.data._sources` for the keys of their arrays.

    Parameters
    ----------
    source : "npz"
        The kind of file.
    classes : list of str or int
        All labels that there can be, in order.
    file : str, optional
        One archive that holds everything, instead of `private`, `public` and `test`.
    ids : bool, default=False
        Whether there is an array of ids; needed for shards.
    """

    source: Literal["npz"]
    classes: Classes
    file: str | None = None
    ids: bool = False
    label: ClassVar[str] = "y"
    ignore: ClassVar[tuple[str, ...]] = ()
    categories: ClassVar[dict[str, tuple[Text, ...]]] = {}
    dates: ClassVar[dict[str, str]] = {}
    date_features: ClassVar[dict[str, tuple[str, ...]]] = {}
    missing_values: ClassVar[MissingValues] = MissingValues()

    @model_validator(mode="after")
    def _one_way(self) -> NpzData:
        if self.file is not None and (self.private is not None or self.public is not None):
            raise ValueError("give either 'file', or 'private' and 'public'")
        return self


def _date_form(form: str) -> str:
    """A form that a date can be written in and read again."""
    when = datetime(2003, 2, 1)
    try:
        again = datetime.strptime(when.strftime(form), form)
    except (ValueError, re.error):  # the latter of a form that says one thing twice
        again = None
    if again != when:
        raise ValueError("must say day, month and year, such as %Y-%m-%d, %d.%m.%Y or %d/%m/%Y %H:%M")
    return form


class ColumnsData(OwnData):
    """Files of named columns, csv or parquet; see docs/data.md.

    Parameters
    ----------
    label : str
        The column to predict.
    classes : list of str or int
        All labels that there can be, in order.
    id : str, optional
        The column that says whose record it is: then the guarantee is per person.
    ignore : list of str, default=[]
        Columns that are not used.
    categories : mapping of str to list, default={}
        Columns of words, each with its values: a 0/1 feature for each.
    dates : mapping of str to str, default={}
        Columns of dates, each with its form, such as `%Y-%m-%d`.
    date_features : mapping of str to list of str, default={}
        What columns of dates become, such as `[month, days since onset]`; years since 2000 where nothing is said.
    missing_values : MissingValues, default=MissingValues()
        What is missing, and what becomes of it.
    """

    label: str
    classes: Classes
    id: str | None = None
    ignore: Several[str] = ()
    categories: dict[str, Categories] = {}
    dates: dict[str, Annotated[str, AfterValidator(_date_form)]] = {}
    date_features: dict[str, Several[str]] = {}
    missing_values: MissingValues = MissingValues()

    @model_validator(mode="after")
    def _columns_fit_together(self) -> ColumnsData:
        if problem := problem_of(self.date_features, self.dates):
            raise ValueError(f"date_features.{problem}")
        single = {key: getattr(self, key, None) for key in ("label", "id", "split")}
        named = [(key, name) for key, name in single.items() if name is not None]
        named += [(key, name) for key in ("ignore", "categories", "dates") for name in getattr(self, key)]
        uses: dict[str, str] = {}
        for key, name in named:
            if name in uses:
                raise ValueError(
                    f"{key}: column {shown(name)} is named under {uses[name]} already; a column is one thing"
                )
            uses[name] = key
        for key, more in (("label", ""), ("id", ", or leave it out")):
            if single[key] == "":
                raise ValueError(f"{key}: names no column; write its name{more}")
        markers = {folded(str(marker)) for marker in self.missing_values.markers}
        for name, values in self.categories.items():
            if not values:
                raise ValueError(f"categories.{name}: lists no values; list them, or add the column to ignore")
            for value in values:
                if folded(str(value)) in markers:
                    raise ValueError(
                        f"categories.{name}: {shown(value)} is a marker of missing values (missing_values.markers), "
                        "so no category; take it out of one of the two"
                    )
        return self


class CsvData(ColumnsData):
    """CSV files with a header line.

    Parameters
    ----------
    source : "csv"
        The kind of file.
    split : str, optional
        Where one file holds everything: the column that says private, public or test.
    delimiter : str, default=","
        The sign between cells.
    decimal : "." or ",", default="."
        The sign before decimals.
    encoding : str, default="utf-8"
        Of all files alike.
    """

    source: Literal["csv"]
    split: str | None = None
    delimiter: str = ","
    decimal: Literal[".", ","] = "."
    encoding: str = "utf-8"

    @property
    def dialect(self) -> Dialect:
        return Dialect(self.delimiter, self.decimal, self.encoding)

    @field_validator("delimiter")
    @classmethod
    def _one_sign(cls, value: str) -> str:
        if not is_delimiter(value):
            raise ValueError("must be one sign, such as ',', ';', '|' or \"\\t\" (a tab, in double quotes)")
        return value

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            "".encode(value)
        except (LookupError, ValueError):
            raise ValueError("no such text encoding; utf-8, cp1252, latin-1 and utf-16 are usual") from None
        return value

    @model_validator(mode="after")
    def _can_be_told_apart(self) -> CsvData:
        if self.split is not None and self.sharded:
            raise ValueError("split is for one file that holds everything; leave it out where there are shards")
        if self.delimiter == self.decimal:
            given = "is" if "delimiter" in self.model_fields_set else "is, where it is not written,"
            raise ValueError(
                f"decimal is {self.decimal!r} and delimiter {given} {self.delimiter!r} too: cells could not be told "
                "apart; write what stands between cells, such as delimiter: ';'"
            )
        return self


class ParquetData(ColumnsData):
    """Parquet files, with the keys of csv.

    Parameters
    ----------
    source : "parquet"
        The kind of file.
    """

    source: Literal["parquet"]

    @property
    def sharded(self) -> bool:
        return True


AnyData = ArraysData | BenchmarkData | NpzData | CsvData | ParquetData
DataSettings = Annotated[AnyData, Field(discriminator="source")]
