"""Whatever file `pate predict` is given: it ends in labels or in one line, and a claim alone takes no memory."""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.command_line import in_process
from support.fuzzing import MEGABYTE, allowed_for, command_survives, fuzz, no_traceback

from pate.cli._predict import predict
from pate.runs.model_store import save_model
from pate.students import build_student

_WIDTH = 6
_CARD: dict[str, Any] = {"classes": ["cat", "dog"], "shape": [_WIDTH], "epsilon": 1.0, "delta": 1e-5}
_SHAPES: list[tuple[int, ...]] = [
    (3, _WIDTH),
    (3, _WIDTH),
    (_WIDTH,),
    (),
    (0, _WIDTH),
    (3, 0),
    (3, _WIDTH, 1),
    (1, 2, 3),
]
_FLOATS, _WHOLE, _OTHERS = ["f2", "f4", "f8", ">f8", "g"], ["i1", "u1", ">i2", "i8", "?"], ["c8", "U3", "S3", "U0"]
_NUMBERS = [0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e300, -1e39, 5e-324, 6e4]
_NAMES = ["X", "x", "y", "", "X.npy", "a/b", "../../X", "\n", "\u202e", "n" * 300]
_CLAIMS: list[tuple[float, ...]] = [(10**9, _WIDTH), (2**62, _WIDTH), (2**63, 2**63), (-1, _WIDTH), (0, 2**62)]
_CLAIMS += [(10**400,), (True, _WIDTH), (3.0, _WIDTH)]
_DESCR = [
    "'<f8'",
    "'|O'",
    "'<U1000000000'",
    "'|V0'",
    "[('a', '<f8')]",
    "('<f4', (10**9,))",
    "','",
    "'M8[x]'",
    "None",
    "1",
]
_HEADERS = ["{", "(" * 300, "[" * 5000, "{'descr': '<f8'}", "9" * 6000, "'" * 3, "\x00", "{}{}", "lambda: 0", ""]


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    X = np.random.default_rng(0).random((20, _WIDTH)).astype(np.float32)
    estimator = {"estimator": "sklearn.linear_model.LogisticRegression"}
    save_model(
        build_student("supervised", estimator, 0).fit(X, (X[:, 0] > 0.5).astype(np.int64)), folder / "student", _CARD
    )
    np.save(folder / "good.npy", X)
    status, out, _ = in_process("predict", folder, "--input", folder / "good.npy")
    assert (status, len(out.split())) == (0, 20)
    return folder


@st.composite
def _arrays(draw: st.DrawFn) -> NDArray:
    values = np.resize(
        draw(st.lists(st.sampled_from(_NUMBERS), min_size=1, max_size=4)), draw(st.sampled_from(_SHAPES))
    )
    kind = draw(st.sampled_from([*_FLOATS * 3, *_WHOLE, *_OTHERS, "V4", "M8[s]", "m8[D]", "O"]))
    with np.errstate(all="ignore"):
        if kind in _WHOLE:
            return (np.nan_to_num(values) % 7).astype(kind)
        if kind[0] in "VMm":
            return np.zeros(values.shape, kind)
        return values.astype(kind)


def _npy(array: NDArray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


@st.composite
def _claims(draw: st.DrawFn) -> bytes:
    """A npy file whose header is not about what follows it."""
    shape = draw(st.one_of(st.sampled_from(_CLAIMS), st.sampled_from(_SHAPES)))
    descr, by_columns = draw(st.sampled_from(_DESCR)), draw(st.sampled_from(["False", "True", "None", "1"]))
    header = f"{{'descr': {descr}, 'fortran_order': {by_columns}, 'shape': {shape!r}, }}\n"
    header = draw(st.one_of(st.just(header), st.sampled_from(_HEADERS)))
    version = draw(st.sampled_from([b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x00\x00", b"\xff\xff"]))
    length = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + length + header.encode("latin1") + draw(st.binary(max_size=200))


@st.composite
def _archives(draw: st.DrawFn) -> bytes:
    file = io.BytesIO()
    method = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]))
    with zipfile.ZipFile(file, "w", method) as archive:
        for _ in range(draw(st.integers(0, 3))):
            name = draw(st.sampled_from(["X", *_NAMES])) + draw(st.sampled_from([".npy", ".npy", "_", "/"]))
            archive.writestr(name, draw(st.one_of(_arrays().map(_npy), _claims(), st.binary(max_size=50))))
    return file.getvalue()


@st.composite
def _files(draw: st.DrawFn) -> bytes:
    """A file as NumPy writes them, or nearly; then perhaps cut off, or with other bytes in it."""
    content = draw(st.one_of(_arrays().map(_npy), _archives(), _archives(), _claims(), st.binary(max_size=50)))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 5]))):
        at = draw(st.integers(0, len(content)))
        how = draw(st.sampled_from(["cut", "flip", "insert", "double"]))
        if how == "cut":
            content = content[:at]
        elif how == "insert":
            content = content[:at] + draw(st.binary(max_size=8)) + content[at:]
        elif how == "double":
            content = content[:at] + content
        else:
            content = content[:at] + draw(st.binary(min_size=1, max_size=4)) + content[at + 1 :]
    return content


@pytest.mark.filterwarnings("ignore")  # archives with a name twice
@fuzz(40)
@given(content=_files(), as_json=st.booleans())
def test_any_file(content: bytes, as_json: bool, student: Path) -> None:
    path = student / "in.npz"
    path.write_bytes(content)
    with contextlib.redirect_stdout(io.StringIO()):
        call = partial(predict, run=student, input_=path, as_json=as_json)
        said = no_traceback(call, allowed_for(path, 8 * MEGABYTE))
    assert said is None or str(path) in said


def _refused(student: Path, path: Path, words: str) -> None:
    said = command_survives("predict", student, "--input", path, max_bytes=allowed_for(path, 8 * MEGABYTE))
    assert said is not None
    assert str(path) in said
    assert words in said


def test_folders_devices_pipes_and_links(student: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, target in {
        "zero": "/dev/zero",
        "loop": "loop",
        "gone": "nowhere",
        "to_pipe": "pipe",
        "folder": ".",
    }.items():
        (tmp_path / name).symlink_to(target)
    for name in ("pipe", "zero", "to_pipe", "folder"):
        _refused(student, tmp_path / name, "not a regular file")
    _refused(student, tmp_path / "gone", "no such file")
    _refused(student, tmp_path / "loop", "cannot be read")
    (tmp_path / "good").symlink_to(student / "good.npy")
    assert command_survives("predict", student, "--input", tmp_path / "good") is None


def test_an_archive_that_grows_without_end(student: Path, tmp_path: Path) -> None:
    """Of 24 MB of zeros in 24 kB nothing is unpacked."""
    header = io.BytesIO()
    rows = 1_000_000
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (rows, _WIDTH)})
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("X.npy", "w") as member:
        member.write(header.getvalue())
        for _ in range(rows // 100_000):
            member.write(bytes(100_000 * _WIDTH * 4))
    assert path.stat().st_size < MEGABYTE
    _refused(student, path, "more than 10 times its size")


def test_a_claim_without_content(student: Path, tmp_path: Path) -> None:
    path = tmp_path / "claim.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (10**12, _WIDTH)})
    _refused(student, path, "not a whole npy file")
