"""Image benchmarks: the real files where they are at hand, made-up files of the same layout elsewhere."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from pate.data import _benchmarks as benchmarks
from pate.data._benchmarks import load_images
from pate.data._settings import BenchmarkData
from pate.data._sources import load
from pate.errors import DataError


def test_digits_need_no_files() -> None:
    public, private = load(BenchmarkData(source="digits"), None, Path())
    assert (len(private.X), len(public.X_public), len(public.X_test)) == (1197, 400, 200)
    assert private.X.min() == 0
    assert private.X.max() == 1
    assert public.benchmark


def test_mnist_has_the_papers_split(real_data: Path) -> None:
    public, private = load(BenchmarkData(source="mnist"), real_data, Path())
    assert private.X.shape == (60_000, 28, 28)
    assert public.X_public.shape == (9_000, 28, 28)
    assert public.X_test.shape == (1_000, 28, 28)
    assert private.X.dtype == np.float32
    assert np.bincount(private.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


@pytest.mark.slow
def test_svhn_has_the_papers_split(real_svhn: Path) -> None:
    public, private = load(BenchmarkData(source="svhn"), real_svhn, Path())
    assert private.X.shape == (73_257, 32, 32, 3)
    assert public.X_public.shape == (10_000, 32, 32, 3)
    assert public.X_test.shape == (16_032, 32, 32, 3)
    assert np.bincount(private.y)[[0, 1, 9]].tolist() == [4948, 13861, 4659]


def test_svhns_label_ten_is_the_digit_zero_and_another_checksum_is_remarked_on(tmp_path: Path) -> None:
    for split in ("train", "test"):
        images = np.arange(32 * 32 * 3 * 2, dtype=np.int64).reshape(32, 32, 3, 2) % 256
        savemat(tmp_path / f"{split}_32x32.mat", {"X": images.astype(np.uint8), "y": np.array([[10], [3]])})
    public, private = load_images("svhn", [tmp_path])
    assert private.y.tolist() == [0, 3]
    assert private.X[1, 0, 0].tolist() == pytest.approx([1 / 255, 3 / 255, 5 / 255])
    assert len(public.notes) == 2
    assert "train_32x32.mat is not the official file" in public.notes[0]


def test_svhns_extra_images_are_private_records_too(tmp_path: Path) -> None:
    for split, labels in (("train", [10, 3]), ("test", [4, 5]), ("extra", [7, 10, 9])):
        pixels = np.full((32, 32, 3, len(labels)), len(split), dtype=np.uint8)
        savemat(tmp_path / f"{split}_32x32.mat", {"X": pixels, "y": np.array(labels)[:, None]})
    public, private = load_images("svhn", [tmp_path])
    assert private.y.tolist() == [0, 3, 7, 0, 9]
    assert private.X.shape == (5, 32, 32, 3)
    assert public.y_public.tolist() == [4, 5]
    assert len(public.notes) == 3


def test_fashion_mnist_is_found_where_debian_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debian = tmp_path / "debian"
    debian.mkdir()
    for part, n in (("train", 4), ("t10k", 3)):
        for kind, array in (("images-idx3", np.full((n, 28, 28), n)), ("labels-idx1", np.arange(n))):
            (debian / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    monkeypatch.setattr(benchmarks, "_DEBIAN_FASHION_MNIST", debian)
    public, private = load_images("fashion_mnist", [tmp_path / "elsewhere"])
    assert private.X.shape == (4, 28, 28)
    assert private.X.max() == pytest.approx(4 / 255)
    assert public.y_public.tolist() == [0, 1, 2]
    (debian / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"no such thing"))
    with pytest.raises(DataError, match=r"fashion_mnist below .*: train-labels-idx1-ubyte\.gz is no file of bytes"):
        load_images("fashion_mnist", [tmp_path / "elsewhere"])


def idx(array: np.ndarray) -> bytes:
    """The idx format of MNIST's files."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


def test_fashion_mnist_from_unpacked_files(tmp_path: Path) -> None:
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for split, n in (("train", 5), ("t10k", 3)):
        (raw / f"{split}-images-idx3-ubyte").write_bytes(idx(np.full((n, 28, 28), 51)))
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(idx(np.arange(n)))
    public, private = load_images("fashion_mnist", [tmp_path])
    assert private.X.shape == (5, 28, 28)
    assert (len(public.X_public), len(public.X_test)) == (3, 0)  # what was public is not for tests
    assert float(private.X[0, 0, 0]) == pytest.approx(0.2)
    assert public.classes[9] == "ankle boot"


def test_cifar10_from_its_binary_files(tmp_path: Path) -> None:
    home = tmp_path / "cifar-10-batches-bin"
    home.mkdir()
    record = np.zeros((2, 3073), dtype=np.uint8)
    record[:, 0] = [3, 9]
    record[:, 1:1025], record[:, 1025:2049], record[:, 2049:] = 255, 51, 0
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        (home / name).write_bytes(record.tobytes())
    _, private = load_images("cifar10", [tmp_path])
    assert private.X.shape == (10, 32, 32, 3)
    assert private.X[0, 5, 7].tolist() == pytest.approx([1, 0.2, 0])
    assert private.y[:2].tolist() == [3, 9]


@pytest.mark.parametrize("source", ["mnist", "svhn", "cifar10"])
def test_missing_data_says_where_to_put_it(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import urllib.request

    def no_network(*_: object, **__: object) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    with pytest.raises(DataError, match=rf"{source}: not below .*data_dir or PATE_DATA"):
        load_images(source, [tmp_path])


def test_damaged_mnist_is_named(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (raw / f"{name}-ubyte").write_bytes(b"\0\0")
        (raw / f"{name}-ubyte.gz").write_bytes(gzip.compress(b"\0\0"))
    with pytest.raises(DataError, match="damaged"):
        load_images("mnist", [tmp_path])
