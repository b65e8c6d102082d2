"""The data section of a config: which source, and where its files are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, model_validator

from pate.naming import dotted, shown

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


class DigitsData(Settings):
    """scikit-learn's bundled digits; no download."""

    source: Literal["digits"]


class ImageData(Settings):
    """A torchvision benchmark, with the papers' split."""

    source: Literal["mnist", "fashion_mnist", "svhn", "cifar10"]


class TableData(Settings):
    """A public table that plays the part of private data; see pate/data/benchmark_tables.py."""

    source: Literal["adult", "kddcup99"]


class VotesData(Settings):
    """Stored votes of teachers on a benchmark's public images: labels and a student without training teachers."""

    source: Literal["votes"]
    images: Literal["mnist", "fashion_mnist", "svhn", "cifar10"]
    votes: str


class ArraysData(Settings):
    """Arrays in memory, given to `pate.run` from Python as `data=`, a `pate.data.dataset.Dataset`."""

    source: Literal["arrays"]


class OwnData(Settings):
    """The user's own files. Private ones may be several: a list, or a pattern such as `shards/*.csv`.

    `id_type` says what ids are, the same in all files; see pate/data/columns.py.
    """

    private: str | Several[str] | None = None
    public: str | None = None
    test: str | None = None
    read_by: Literal["driver", "workers"] = "driver"
    id_type: Literal["text", "integer"] = "text"

    @property
    def sharded(self) -> bool:
        """Whether private records are read shard by shard; see pate/data/shards.py."""
        several = not isinstance(self.private, str) or any(sign in self.private for sign in "*?[")
        return self.private is not None and (several or "://" in str(self.private) or self.read_by == "workers")

    @model_validator(mode="after")
    def _shards_have_public_examples(self) -> OwnData:
        if self.read_by == "workers" and self.private is None:
            raise ValueError("read_by: workers needs 'private', the files that they read")
        if self.sharded and self.public is None:
            raise ValueError("private shards need a 'public' file of their own")
        return self


class NpzData(OwnData):
    """NumPy archives; see pate/data/tables.py for the keys. `ids`: whether there is an array of ids."""

    source: Literal["npz"]
    classes: Several[Text]
    file: str | None = None
    ids: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> NpzData:
        if (self.file is None) == (self.private is None or self.public is None):
            raise ValueError("give either 'file', or 'private' and 'public'")
        return self


class CsvData(OwnData):
    """CSV files; see pate/data/tables.py."""

    source: Literal["csv"]
    label: str
    classes: Several[Text]
    id: str | None = None
    split: str | None = None
    ignore: Several[str] = ()
    categories: dict[str, Several[Text]] = {}

    @model_validator(mode="after")
    def _one_file_or_shards(self) -> CsvData:
        if self.split is not None and self.sharded:
            raise ValueError("split is for one file that holds everything; leave it out where there are shards")
        return self


class ParquetData(OwnData):
    """Parquet files, with the keys of csv; see pate/data/shards.py."""

    source: Literal["parquet"]
    label: str
    classes: Several[Text]
    id: str | None = None
    ignore: Several[str] = ()
    categories: dict[str, Several[Text]] = {}

    @property
    def sharded(self) -> bool:
        return True

    @model_validator(mode="after")
    def _has_files(self) -> ParquetData:
        if self.private is None or self.public is None:
            raise ValueError("give 'private' and 'public'")
        return self


AnyData = ArraysData | DigitsData | ImageData | TableData | VotesData | NpzData | CsvData | ParquetData
DataSettings = Annotated[AnyData, Field(discriminator="source")]
