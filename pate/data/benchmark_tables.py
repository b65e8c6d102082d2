"""UCI Adult and KDD Cup 1999 (10 % file): public tables that play the part of private data.

Every column is prepared by a fixed rule: listed categories as 0 and 1 (an unknown one, '?', is all zeros), numbers
divided by a fixed bound.
Nothing is worked out from the records, so the same rules would do for private data.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate.data.columns import Column, one_hot
from pate.data.private import Records
from pate.data.public import PublicData
from pate.errors import DataError

Columns = list[tuple[str, ...]]

_ADULT_NUMBERS = {0: ("age", 100.0), 4: ("education-num", 16.0), 12: ("hours-per-week", 100.0)}
_ADULT_LOGARITHMS = {10: "capital-gain", 11: "capital-loss"}
_ADULT_CATEGORIES = {
    1: ("workclass", "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked"),
    3: (
        "education",
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th 10th "
        "Doctorate 5th-6th Preschool",
    ),
    5: (
        "marital-status",
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse",
    ),
    6: (
        "occupation",
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
        "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces",
    ),
    7: ("relationship", "Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    8: ("race", "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    9: ("sex", "Female Male"),
    13: (
        "native-country",
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece South "
        "China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
        "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand "
        "Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
    ),
}
_LARGEST_GAIN = 1e5

_KDD_CATEGORIES = {
    1: "icmp tcp udp",
    2: "IRC X11 Z39_50 auth bgp courier csnet_ns ctf daytime discard domain domain_u echo eco_i ecr_i efs exec finger "
    "ftp ftp_data gopher hostnames http http_443 imap4 iso_tsap klogin kshell ldap link login mtp name netbios_dgm "
    "netbios_ns netbios_ssn netstat nnsp nntp ntp_u other pm_dump pop_2 pop_3 printer private red_i remote_job rje "
    "shell smtp sql_net ssh sunrpc supdup systat telnet tftp_u tim_i time urh_i urp_i uucp uucp_path vmnet whois",
    3: "OTH REJ RSTO RSTOS0 RSTR S0 S1 S2 S3 SF SH",
}
_KDD_COUNTS = {22: 511.0, 23: 511.0, 31: 255.0, 32: 255.0}  # connections in a window, by its length
_KDD_FLAGS_AND_SHARES = (6, 11, 13, 20, 21, *range(24, 31), *range(33, 41))  # in [0, 1] already
_KDD_LOGARITHMS = {0: 1e5, 4: 1e9, 5: 1e9, 7: 10.0, 8: 10.0, 9: 100.0, 10: 10.0, 12: 1e3, 14: 10.0, 15: 1e3, 16: 100.0,
                   17: 10.0, 18: 10.0, 19: 10.0}  # fmt: skip
_DENIAL_OF_SERVICE = ("back.", "land.", "neptune.", "pod.", "smurf.", "teardrop.")


def load_table(source: str, folders: list[Path]) -> tuple[PublicData, Records]:
    """The benchmark `source`, found below one of `folders`."""
    names, home, read = _READERS[source]
    for folder in folders:
        files = [folder / source / name for name in names]
        if all(path.is_file() for path in files):
            try:
                return read(files)
            except DataError:
                raise
            except Exception as error:  # gzip, csv and numpy raise many kinds
                reason = f"{' or '.join(names)} is damaged ({type(error).__name__})"
                raise DataError(f"{source} below {folder}: {reason}; fetch it again from {home}") from None
    places = " or ".join(str(folder / source) for folder in folders)
    raise DataError(
        f"{source}: put {' and '.join(names)} from {home} into {places}, or name the folder with {{data_dir}}",
        data_dir=None,
    )


def _adult(files: list[Path]) -> tuple[PublicData, Records]:
    """Does somebody earn more than 50,000 dollars a year? Private: adult.data; public: the first 10,000 rows of
    adult.test; test: its other 6,281."""
    (X, y), (X_rest, y_rest) = (_adult_file(path) for path in files)
    return _split(
        np.concatenate([X, X_rest]), np.concatenate([y, y_rest]), len(X), 10_000, ("<=50K", ">50K"), _adult_features()
    )


def _adult_file(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file, skipinitialspace=True) if len(row) == 15]
    columns = list(zip(*rows, strict=True))
    blocks = [_bounded(columns[i], bound) for i, (_, bound) in _ADULT_NUMBERS.items()]
    blocks += [_logarithm(columns[i], _LARGEST_GAIN) for i in _ADULT_LOGARITHMS]
    blocks += [one_hot(columns[i], values.split()) for i, (_, values) in _ADULT_CATEGORIES.items()]
    labels = Column(f"{path}: labels", "cells", "text", [value.rstrip(".") for value in columns[14]])
    return np.concatenate(blocks, axis=1), labels.labels(("<=50K", ">50K"))


def _adult_features() -> tuple[str, ...]:
    names = [name for name, _ in _ADULT_NUMBERS.values()] + list(_ADULT_LOGARITHMS.values())
    return (*names, *(f"{name}={value}" for name, values in _ADULT_CATEGORIES.values() for value in values.split()))


def _kddcup99(files: list[Path]) -> tuple[PublicData, Records]:
    """Is a connection part of a denial-of-service attack? The file is in order of time: a fixed shuffle, then 394,021
    rows private, 50,000 public, 50,000 test."""
    with gzip.open(files[0], "rt", encoding="ascii") as file:
        columns = list(zip(*csv.reader(file), strict=True))
    blocks = [_bounded(columns[i], bound) for i, bound in _KDD_COUNTS.items()]
    blocks += [_bounded(columns[i], 1.0) for i in _KDD_FLAGS_AND_SHARES]
    blocks += [_logarithm(columns[i], bound) for i, bound in _KDD_LOGARITHMS.items()]
    blocks += [one_hot(columns[i], values.split()) for i, values in _KDD_CATEGORIES.items()]
    y = np.array([label in _DENIAL_OF_SERVICE for label in columns[41]], dtype=np.int64)
    X = np.concatenate(blocks, axis=1)
    shuffled = np.random.default_rng(0).permutation(len(X))  # part of the source's definition
    return _split(X[shuffled], y[shuffled], len(X) - 100_000, 50_000, ("other", "denial of service"), None)


def _split(
    X: NDArray, y: NDArray, n_private: int, n_public: int, classes: tuple[str, ...], features: tuple[str, ...] | None
) -> tuple[PublicData, Records]:
    if not 0 < n_private < len(X) - n_public:
        raise ValueError("too few rows")
    public = slice(n_private, n_private + n_public)
    test = slice(n_private + n_public, None)
    found = PublicData(
        X_public=X[public],
        y_public=y[public],
        X_test=X[test],
        y_test=y[test],
        classes=classes,
        benchmark=True,
        input="columns prepared as in pate/data/benchmark_tables.py",
        features=features,
    )
    return found, Records(X[:n_private], y[:n_private])


def _bounded(column: tuple[str, ...], bound: float) -> NDArray[np.float32]:
    return np.clip(np.array(column, dtype=np.float32) / np.float32(bound), 0, 1)[:, None]


def _logarithm(column: tuple[str, ...], bound: float) -> NDArray[np.float32]:
    """log(1 + x), as a share of the bound's: for amounts that span many powers of ten."""
    shares = np.log1p(np.array(column, dtype=np.float64)) / np.log1p(bound)
    return np.clip(shares, 0, 1).astype(np.float32)[:, None]


_READERS: dict[str, tuple[tuple[str, ...], str, Callable[[list[Path]], tuple[PublicData, Records]]]] = {
    "adult": (("adult.data", "adult.test"), "https://archive.ics.uci.edu/dataset/2/adult", _adult),
    "kddcup99": (
        ("kddcup.data_10_percent.gz",),
        "https://archive.ics.uci.edu/dataset/130/kdd+cup+1999+data",
        _kddcup99,
    ),
}
