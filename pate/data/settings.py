"""The data section of a config: which source, and where its files are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Text = str | int


class Settings(BaseModel):
    """Frozen, and closed: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class DigitsData(Settings):
    """scikit-learn's bundled digits; no download."""

    source: Literal["digits"]


class ImageData(Settings):
    """A torchvision benchmark, with the papers' split."""

    source: Literal["mnist", "fashion_mnist", "svhn", "cifar10"]


class TableData(Settings):
    """A public table that plays private; see pate/data/benchmark_tables.py."""

    source: Literal["adult", "kddcup99"]


class VotesData(Settings):
    """Stored votes of teachers on a benchmark's public images: labels and a student without training teachers."""

    source: Literal["votes"]
    images: Literal["mnist", "fashion_mnist", "svhn", "cifar10"]
    votes: str


class OwnData(Settings):
    """People's own files. Private ones may be several: a list, or a pattern such as `shards/*.csv`.

    `id_type`: what ids are in all of them; see pate/data/columns.py.
    """

    private: str | tuple[str, ...] | None = None
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
    classes: tuple[Text, ...]
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
    classes: tuple[Text, ...]
    id: str | None = None
    split: str | None = None
    ignore: tuple[str, ...] = ()
    categories: dict[str, tuple[Text, ...]] = {}

    @model_validator(mode="after")
    def _one_file_or_shards(self) -> CsvData:
        if self.split is not None and self.sharded:
            raise ValueError("split is for one file that holds everything; leave it out where there are shards")
        return self


class ParquetData(OwnData):
    """Parquet files, with the keys of csv; see pate/data/shards.py."""

    source: Literal["parquet"]
    label: str
    classes: tuple[Text, ...]
    id: str | None = None
    ignore: tuple[str, ...] = ()
    categories: dict[str, tuple[Text, ...]] = {}

    @property
    def sharded(self) -> bool:
        return True

    @model_validator(mode="after")
    def _has_files(self) -> ParquetData:
        if self.private is None or self.public is None:
            raise ValueError("give 'private' and 'public'")
        return self


AnyData = DigitsData | ImageData | TableData | VotesData | NpzData | CsvData | ParquetData
DataSettings = Annotated[AnyData, Field(discriminator="source")]
