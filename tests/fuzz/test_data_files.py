"""Damaged and hostile data files: each is read, or refused in one line; no traceback, no hang, no huge allocation."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fuzzing import fuzz, no_traceback

from pate.data._formats import load_votes
from pate.data._settings import BenchmarkData, CsvData, NpzData, ParquetData
from pate.data._shards import ShardReader
from pate.data._sources import load
from pate.data.private import Shards
from pate.errors import DataError
from pate.mechanisms.base import Split

TIMES_ITS_SIZE = 10
ROOM = 2**20  # for what does not depend on the file: a csv module, a decoder, a parser's tables
X = np.arange(24, dtype=np.float32).reshape(12, 2)
WHO, Y = np.array([f"p{i % 5}" for i in range(12)]), np.arange(12) % 2
TABLE = "who,a,b,kind\n" + "".join(f"{w},{a:g},{b:g},{y}\n" for w, (a, b), y in zip(WHO, X, Y, strict=True))
COLUMNS = {"label": "kind", "id": "who", "classes": [0, 1]}
ADULT = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, Cuba, "
)
KDD = "0,tcp,http,SF,181,5450" + ",0" * 35


def csv_files(folder: Path) -> Callable[[], object]:
    (folder / "private.csv").write_text(TABLE)
    (folder / "public.csv").write_text("a,b\n1,2\n")
    data = {"source": "csv", "private": "private.csv", "public": "public.csv"} | COLUMNS
    return lambda: load(CsvData.model_validate(data), None, folder)


def csv_shards(folder: Path) -> Callable[[], object]:
    csv_files(folder)
    data = {"source": "csv", "private": "private.csv", "public": "public.csv", "read_by": "workers"} | COLUMNS
    return lambda: by_worker(CsvData.model_validate(data), folder)


def npz_file(folder: Path) -> Callable[[], object]:
    np.savez(folder / "all.npz", X_private=X, y_private=Y, id_private=WHO, X_public=X[:3], X_test=X[:2], y_test=Y[:2])
    data = {"source": "npz", "file": "all.npz", "classes": [0, 1]}
    return lambda: load(NpzData.model_validate(data), None, folder)


def npz_shards(folder: Path) -> Callable[[], object]:
    np.savez_compressed(folder / "private.npz", X=X, y=Y.astype(str), id=Y)
    np.savez(folder / "public.npz", X=X[:3])
    data = {"source": "npz", "private": "private.npz", "public": "public.npz", "read_by": "workers", "ids": True}
    return lambda: by_worker(NpzData.model_validate(data | {"classes": [0, 1], "id_type": "integer"}), folder)


def parquet_files(folder: Path) -> Callable[[], object]:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"who": WHO.tolist(), "a": X[:, 0], "b": [None, *map(str, X[1:, 1])], "kind": Y}
    parquet.write_table(pyarrow.table(columns), folder / "private.parquet")
    parquet.write_table(pyarrow.table({"a": [1.0], "b": ["2"]}), folder / "public.parquet")
    data = {"source": "parquet", "private": "private.parquet", "public": "public.parquet", "categories": {"b": [1, 3]}}
    return lambda: by_worker(ParquetData.model_validate(data | {"read_by": "workers"} | COLUMNS), folder)


def votes_file(folder: Path) -> Callable[[], object]:
    np.save(folder / "votes.npy", np.array([[5, 2, 3], [1, 8, 1]] * 4))
    return lambda: load_votes(folder / "votes.npy")


def adult_files(folder: Path) -> Callable[[], object]:
    (folder / "adult").mkdir()
    (folder / "adult" / "adult.data").write_text(f"{ADULT}<=50K\n{ADULT}>50K\n")
    (folder / "adult" / "adult.test").write_text("|1x3 Cross validator\n" + f"{ADULT}>50K.\n" * 20)
    return lambda: load(BenchmarkData(source="adult"), folder, folder)


def kdd_file(folder: Path) -> Callable[[], object]:
    (folder / "kddcup99").mkdir()
    with gzip.open(folder / "kddcup99" / "kddcup.data_10_percent.gz", "wt") as file:
        file.writelines(f"{KDD},{label}\n" for label in ["normal.", "smurf."] * 5)
    return lambda: load(BenchmarkData(source="kddcup99"), folder, folder)


def cifar_files(folder: Path) -> Callable[[], object]:
    (folder / "cifar-10-batches-bin").mkdir()
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        (folder / "cifar-10-batches-bin" / f"{name}.bin").write_bytes((b"\3" + bytes(3072)) * 2)
    return lambda: load(BenchmarkData(source="cifar10"), folder, folder)


def svhn_files(folder: Path) -> Callable[[], object]:
    from scipy.io import savemat

    for split in ("train", "test"):
        images = np.zeros((32, 32, 3, 2), dtype=np.uint8)
        savemat(folder / f"{split}_32x32.mat", {"X": images, "y": np.array([[10], [3]])}, do_compression=True)
    return lambda: load(BenchmarkData(source="svhn"), folder, folder)


def by_worker(data: Any, folder: Path) -> object:
    """What the driver reads, and then what a reader does, in one process."""
    _, private = load(data, None, folder, by_workers=True)
    assert isinstance(private, Shards)
    answer = ShardReader(private, b"k" * 32, Split(3)).load()
    if isinstance(answer, str):
        raise DataError(answer)
    return answer


KINDS = [csv_files, csv_shards, npz_file, npz_shards, parquet_files, votes_file, adult_files, kdd_file, cifar_files]
KINDS += [svhn_files]
PIECES = [b"", b"\0", b'"', b",", b"\n", b"\r", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"nan", b"-1"]
PIECES += [b"1e999", b"9" * 20, "é".encode("utf-16"), b"\xe9", b"\xef\xbb\xbf", b"'|O'", b"'<U0'", b"(" * 60]
_POOLS: list[Any] = []


@st.composite
def changed(draw: st.DrawFn, content: bytes) -> bytes:
    """The content with up to four cuts, insertions, overwritten or repeated stretches."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.one_of(st.integers(start, min(start + 8, len(content))), st.just(len(content))))
        piece = draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=8), st.just(content[start:end] * 2)))
        content = content[:start] + piece + content[end:]
    return content


@st.composite
def damaged(draw: st.DrawFn, name: str, content: bytes) -> bytes:
    """The file changed as it is, or inside its packing, which then is right again."""
    if draw(st.booleans()):
        if name.endswith(".gz"):
            return gzip.compress(draw(changed(gzip.decompress(content))))
        if name.endswith(".npz"):
            return draw(repacked(content))
        if name.endswith(".npy"):
            return draw(with_another_header(content))
    return draw(changed(content))


@st.composite
def repacked(draw: st.DrawFn, content: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = draw(st.sampled_from(sorted(members)))
    members[name] = draw(st.one_of(changed(members[name]), with_another_header(members[name])))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))) as archive:
        for key, member in members.items():
            archive.writestr(key, member)
    return packed.getvalue()


@st.composite
def with_another_header(draw: st.DrawFn, content: bytes) -> bytes:
    """An array that claims another shape, type or order, over the same bytes."""
    sizes = st.sampled_from([0, 1, 2, 12, -1, 2**31, 2**62, 10**18, 10**400])
    kinds = ["<f8", "<f4", "<f2", "<i8", ">u4", "|b1", "<U2", "<U0", "|S3", "|O", "|V8", "<M8[s]", "<c16", "x"]
    fields = [("a", "<f8"), ("b", "<i4")]
    header = {
        "descr": draw(st.one_of(st.sampled_from(kinds), st.just(fields))),
        "fortran_order": draw(st.sampled_from([False, True, 1])),
        "shape": tuple(draw(st.lists(sizes, max_size=4))),
    }
    text = repr(header).encode() + b"\n"
    body = content[10 + int.from_bytes(content[8:10], "little") :]
    return b"\x93NUMPY" + draw(st.sampled_from([b"\1\0", b"\2\0"])) + len(text).to_bytes(2, "little") + text + body


def arrow_memory() -> Callable[[], int]:
    """What pyarrow allocates from now on, at most at once."""
    try:
        import pyarrow
    except ImportError:
        return lambda: 0
    pool = pyarrow.proxy_memory_pool(pyarrow.system_memory_pool())
    _POOLS.append(pool)  # pyarrow does not keep it alive
    pyarrow.set_memory_pool(pool)
    return lambda: pool.max_memory() or 0


def one_line_or_data(read: Callable[[], object], size: int) -> None:
    arrow = arrow_memory()
    most = TIMES_ITS_SIZE * size + ROOM
    said = no_traceback(read, most)
    assert said is None or len(said) < 1000
    assert arrow() < most


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_damaged_file_is_refused_in_one_line(kind: Callable[[Path], Callable[[], object]], tmp_path: Path) -> None:
    read = kind(tmp_path)
    files = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    size = sum(map(len, files.values()))
    one_line_or_data(read, 2**30)  # what it imports is imported now

    @given(st.data())
    @fuzz(30)
    def damage(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(files)))
        content = data.draw(damaged(path.name, files[path]))
        path.write_bytes(content)
        try:
            one_line_or_data(read, size + len(content))
        finally:
            path.write_bytes(files[path])

    damage()


def test_a_claim_is_not_an_allocation(tmp_path: Path) -> None:
    """Headers that claim 10¹² numbers, archives that claim gigabytes."""
    head = repr({"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)}).encode() + b"\n"
    claim = b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + head + bytes(64)
    (tmp_path / "votes.npy").write_bytes(claim)
    with zipfile.ZipFile(tmp_path / "all.npz", "w") as archive:
        archive.writestr("X_public.npy", claim)
    data = NpzData.model_validate({"source": "npz", "file": "all.npz", "classes": [0, 1]})
    reads = [lambda: load_votes(tmp_path / "votes.npy"), lambda: load(data, None, tmp_path)]
    for read in reads:
        assert "not a whole npy file" in (no_traceback(read, ROOM) or "")
