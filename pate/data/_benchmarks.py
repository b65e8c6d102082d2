"""Benchmarks, from the files torchvision uses and others: public data that plays the part of private data.

The papers' splits: teachers train on the training images; the student's public data is the first 9,000 test
images (SVHN: 10,000); the rest of the test images test the student. Pixels are scaled to [0, 1].
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pate.data._columns import Column, one_hot
from pate.data.private import Records
from pate.data.public import PublicData
from pate.errors import DataError, first_line

Images = tuple[NDArray, NDArray[np.int64]]


class _Splits(NamedTuple):
    """A benchmark's images and labels as in its files, and notes about those files."""

    train: Images
    test: Images
    notes: tuple[str, ...] = ()


_DIGITS = tuple(str(digit) for digit in range(10))
_CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
_SVHN_MD5 = {  # as torchvision has them
    "train": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test": "eb5a983be6a315427106f1b164d9cef3",
    "extra": "a93ce644f1a588dc4d68dda5feec44a7",
}
_CIFAR10_ARCHIVE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"


def load_digits() -> tuple[PublicData, Records]:
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


def load_images(source: str, folders: list[Path]) -> tuple[PublicData, Records]:
    """The benchmark `source`, found below one of `folders` or downloaded into the last of them."""
    reader, classes, n_public = _READERS[source]
    for folder, download in [*((folder, False) for folder in folders), (folders[-1], True)]:
        try:
            (X_train, y_train), (X_test, y_test), notes = reader(folder, download)
            for images, labels in ((X_train, y_train), (X_test, y_test)):
                if images.ndim < 3 or len(images) != len(labels):
                    raise ValueError("images and labels do not belong together")
                if not np.isin(labels, np.arange(len(classes))).all():
                    raise ValueError("a label is none of the classes")
            break
        except Exception as error:  # torchvision raises many kinds
            if download:
                text = f"not below {', '.join(map(str, folders))}, and the download failed ({type(error).__name__})"
                hint = "put the files there, or give their folder with {data_dir} or PATE_DATA"
                raise DataError(f"{source}: {text}; {hint}", data_dir=None) from None
            if not isinstance(error, FileNotFoundError):
                raise DataError(f"{source} below {folder}: {first_line(error)}; remove the damaged files") from None
    public = PublicData(
        X_public=_unit_interval(X_test[:n_public]),
        y_public=y_test[:n_public],
        X_test=_unit_interval(X_test[n_public:]),
        y_test=y_test[n_public:],
        classes=classes,
        benchmark=True,
        input="images, pixels divided by 255, channels last",
        notes=notes,
    )
    return public, Records(_unit_interval(X_train), y_train)


def _unit_interval(images: NDArray) -> NDArray[np.float32]:
    return images.astype(np.float32) / np.float32(255)


def _mnist(cls_name: str, folder: Path, download: bool) -> _Splits:
    import torchvision.datasets

    cls = getattr(torchvision.datasets, cls_name)
    raw = folder / cls_name / "raw"
    if not download:
        names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
        if not all((raw / name).exists() or (raw / f"{name}.gz").exists() for name in names):
            raise FileNotFoundError(raw)
        download = not all((raw / name).exists() for name in names)  # verifies and unpacks, without a network
    train, test = (cls(str(folder), train=flag, download=download) for flag in (True, False))
    return _Splits(
        (train.data.numpy(), train.targets.numpy().astype(np.int64)),
        (test.data.numpy(), test.targets.numpy().astype(np.int64)),
    )


def _fashion_mnist(folder: Path, download: bool) -> _Splits:
    """Fashion-MNIST as torchvision keeps it, else as the Debian package dataset-fashion-mnist installs it."""
    try:
        return _mnist("FashionMNIST", folder, download)
    except FileNotFoundError:
        if not _DEBIAN_FASHION_MNIST.is_dir():
            raise
    images, labels = (
        [_idx(_DEBIAN_FASHION_MNIST / f"{part}-{kind}-ubyte.gz") for part in ("train", "t10k")]
        for kind in ("images-idx3", "labels-idx1")
    )
    return _Splits((images[0], labels[0].astype(np.int64)), (images[1], labels[1].astype(np.int64)))


def _idx(path: Path) -> NDArray[np.uint8]:
    """A file of MNIST's own format: zero, the type (8: bytes), the number of sides, each side, then the values."""
    content = gzip.decompress(path.read_bytes())
    if content[:3] != bytes([0, 0, 8]):
        raise ValueError(f"{path.name} is no file of bytes in MNIST's format")
    sides = np.frombuffer(content, ">u4", content[3], 4).tolist()
    return np.frombuffer(content, np.uint8, -1, 4 + 4 * content[3]).reshape(sides)


def _svhn(folder: Path, download: bool) -> _Splits:
    """Official .mat layout: X is 32×32×3×N, and the digit 0 has label 10. Read without torchvision's md5 refusal.

    Where the `extra` images are there as well, they are private records too, as in the papers: 604,388 in all.
    """
    from scipy.io import loadmat

    if download:
        import torchvision.datasets

        for split in ("train", "test"):
            torchvision.datasets.SVHN(str(folder / "svhn"), split=split, download=True)
    result, notes = {}, []
    for split in ("train", "test", "extra"):
        name = f"{split}_32x32.mat"
        path = next((home / name for home in (folder / "svhn", folder) if (home / name).exists()), None)
        if path is None:
            if split == "extra":
                continue
            raise FileNotFoundError(name)
        content = path.read_bytes()
        if not content.startswith(b"MATLAB 5.0"):
            raise ValueError(f"{path.name} is not of MATLAB's version 5")  # others allocate what a header claims
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != _SVHN_MD5[split]:
            notes.append(f"{path.name} is not the official file (other md5), so figures may differ")
        arrays = loadmat(io.BytesIO(content))
        labels = arrays["y"].reshape(-1).astype(np.int64) % 10
        result[split] = np.ascontiguousarray(arrays["X"].transpose(3, 0, 1, 2)), labels
    train = [result[split] for split in ("train", "extra") if split in result]
    images, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return _Splits((images, labels), result["test"], tuple(notes))


def _cifar10(folder: Path, download: bool) -> _Splits:
    """The binary version: 3,073 bytes per record (label, then red, green and blue planes); nothing is unpickled."""
    home = folder / "cifar-10-batches-bin"
    if download:
        from torchvision.datasets.utils import download_and_extract_archive

        url, md5 = _CIFAR10_ARCHIVE
        download_and_extract_archive(url, str(folder), md5=md5)
    batches = []
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        records = np.fromfile(home / name, dtype=np.uint8).reshape(-1, 3073)
        batches.append((records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0].astype(np.int64)))
    images, labels = zip(*batches[:5], strict=True)
    return _Splits((np.concatenate(images), np.concatenate(labels)), batches[5])


_READERS: dict[str, tuple[Callable[[Path, bool], _Splits], tuple[str, ...], int]] = {
    "mnist": (lambda folder, download: _mnist("MNIST", folder, download), _DIGITS, 9_000),
    "fashion_mnist": (_fashion_mnist, _CLOTHES, 9_000),
    "svhn": (_svhn, _DIGITS, 10_000),
    "cifar10": (_cifar10, _CIFAR10, 9_000),
}


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
    names, home, read = _TABLES[source]
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
    names = [name for name, _ in _ADULT_NUMBERS.values()] + list(_ADULT_LOGARITHMS.values())
    names += [f"{name}={value}" for name, values in _ADULT_CATEGORIES.values() for value in values.split()]
    X, y = np.concatenate([X, X_rest]), np.concatenate([y, y_rest])
    return _split(X, y, len(X) - len(X_rest), 10_000, ("<=50K", ">50K"), tuple(names))


def _adult_file(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file, skipinitialspace=True) if len(row) == 15]
    columns = list(zip(*rows, strict=True))
    blocks = [_bounded(columns[i], bound) for i, (_, bound) in _ADULT_NUMBERS.items()]
    blocks += [_logarithm(columns[i], _LARGEST_GAIN) for i in _ADULT_LOGARITHMS]
    blocks += [one_hot(columns[i], values.split()) for i, (_, values) in _ADULT_CATEGORIES.items()]
    labels = Column(f"{path}: labels", "cells", "text", [value.rstrip(".") for value in columns[14]])
    return np.concatenate(blocks, axis=1), labels.labels(("<=50K", ">50K"))


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
        input="columns prepared as in pate/data/_benchmarks.py",
        features=features,
    )
    return found, Records(X[:n_private], y[:n_private])


def _bounded(column: tuple[str, ...], bound: float) -> NDArray[np.float32]:
    return np.clip(np.array(column, dtype=np.float32) / np.float32(bound), 0, 1)[:, None]


def _logarithm(column: tuple[str, ...], bound: float) -> NDArray[np.float32]:
    """log(1 + x), as a share of the bound's: for amounts that span many powers of ten."""
    shares = np.log1p(np.array(column, dtype=np.float64)) / np.log1p(bound)
    return np.clip(shares, 0, 1).astype(np.float32)[:, None]


_TABLES: dict[str, tuple[tuple[str, ...], str, Callable[[list[Path]], tuple[PublicData, Records]]]] = {
    "adult": (("adult.data", "adult.test"), "https://archive.ics.uci.edu/dataset/2/adult", _adult),
    "kddcup99": (
        ("kddcup.data_10_percent.gz",),
        "https://archive.ics.uci.edu/dataset/130/kdd+cup+1999+data",
        _kddcup99,
    ),
}
