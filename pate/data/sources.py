"""From the data section of a config to the data set that it describes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pate.data.private import PrivateData, Records
from pate.data.public import PublicData
from pate.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pate.data.settings import DataSettings


def load(
    settings: DataSettings,
    data_dir: Path | None,
    config_dir: Path,
    by_workers: bool = False,
    keep_missing: bool = False,
) -> tuple[PublicData, PrivateData]:
    """The two sides, public and private, of what the config's data section describes.

    `by_workers`: leave private shards unread, for workers to read them. `keep_missing`: keep private
    records whose features are no numbers or whose label is no class (−1), which cast no vote where records vote
    themselves and count as zero in a baseline, and take an empty private set; else they are refused.

    Files are looked for below `data_dir`, else below $PATE_DATA. If there is neither, the
    user's own files are looked for beside the config and benchmarks in ~/.cache/pate, where downloads go too.
    """
    if data_dir is not None and not Path(data_dir).is_dir():
        raise DataError("{data_dir}: no such folder; name one that is there", data_dir=data_dir)
    if settings.source == "digits":
        return _digits()
    if settings.source == "arrays":
        raise ConfigError(
            "data.source = 'arrays': they are given from Python, as pate.run(config, out, public=..., private=...)"
        )
    given = data_root(data_dir)
    if settings.source in ("csv", "npz", "parquet") and settings.sharded:
        from pate.data.shards import load_sharded

        return load_sharded(settings, given or config_dir, by_workers, keep_missing)
    if settings.source == "npz":
        from pate.data.tables import load_npz

        return load_npz(settings, given or config_dir, keep_missing)
    if settings.source == "csv":
        from pate.data.tables import load_csv

        return load_csv(settings, given or config_dir, keep_missing)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pate"
    folders = [given] if data_dir and given else [folder for folder in (given, cache) if folder]
    if settings.source in ("adult", "kddcup99"):
        from pate.data.benchmarks import load_table

        return load_table(settings.source, folders)
    from pate.data.benchmarks import load_images

    return load_images(settings.source, folders)


def read_by_workers(settings: DataSettings, on_cluster: bool) -> bool:
    """Whether workers are to read the private records: as the config says, else of shards where there is a cluster."""
    chosen = getattr(settings, "read_by", "driver")
    return chosen == "workers" or (chosen is None and on_cluster and getattr(settings, "sharded", False))


def data_root(data_dir: Path | None) -> Path | None:
    """The folder that the user named for data: `data_dir`, else $PATE_DATA; None where neither is given."""
    return data_dir or (Path(os.environ["PATE_DATA"]) if os.environ.get("PATE_DATA") else None)


def _digits() -> tuple[PublicData, Records]:
    """scikit-learn's bundled 8×8 digits: 1,797 images, of which 1,197 play private, 400 public and 200 test."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(0).permutation(len(images))  # part of the source's definition
    X = (images / 16).astype(np.float32).reshape(-1, 8, 8)[shuffled]
    y = labels.astype(np.int64)[shuffled]
    public = PublicData(
        X_public=X[1197:1597],
        y_public=y[1197:1597],
        X_test=X[1597:],
        y_test=y[1597:],
        classes=tuple(str(digit) for digit in range(10)),
        benchmark=True,
        input="images of 8×8 pixels, each divided by 16",
    )
    return public, Records(X[:1197], y[:1197])
