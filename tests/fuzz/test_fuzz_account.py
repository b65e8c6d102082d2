"""`pate account` and `pate plan` on hostile options and votes files: a figure or one line, no traceback, no hang."""

from __future__ import annotations

import io
import json
import math
import resource
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fuzzing import fuzz, hang_guard
from typer.testing import CliRunner

from pate.cli import app
from pate.errors import PateError

MAX_MEGABYTES = 700  # beyond what is loaded: ten times a file of a few kB says nothing about the program's own tables

OPTIONS = {
    "lnmax": {"scale": 20.0},
    "gnmax": {"sigma": 12.0},
    "confident-gnmax": {"threshold": 30.0, "sigma1": 20.0, "sigma2": 10.0},
    "mstab": {"epsilon": 0.5, "query-delta": 1e-7},
    "msamp": {"epsilon": 0.5, "query-delta": 1e-7, "sampling-rate": 0.05, "teachers": 250},
    "msvec": {"epsilon": 1.0, "unstable": 2, "max-queries": 100},
    "lecture-msvec": {"epsilon": 1.0, "unstable": 2, "max-queries": 100},
    "gaussian-mstab": {"sigma": 12.0, "query-delta": 1e-7},
    "gaussian-msamp": {"sigma": 12.0, "query-delta": 1e-7, "sampling-rate": 0.05, "teachers": 250},
}
SANE = {
    "delta": 1e-5,
    "queries": 2,
    "max-answers": 2,
    "moments": 8,
    "classes": 3,
    "teachers": 100,
    "target-epsilon": 2.0,
}
EXTRA = {
    "account": ("queries", "max-answers", "moments"),
    "plan": ("queries", "max-answers", "classes", "teachers", "target-epsilon"),
}
HOSTILE = [
    *("nan", "inf", "-inf", "1e308", "-1e308", "5e-324", "1e-300", "-1", "0", "-0.0", "1", "2", "0.5", "1e-12"),
    *("1000000000000", "9" * 400, "1e9", "10000", "9999.5", "400", "0.001", "0.02", "", " ", "x", "1,5", "0x10", "１"),
    *("0.9999999999999999", "1e-17", "-5", "1_000", "None", "True", "1e5000", "--", "\x00", "150", "1000000"),
]
GAPS = ["", ":", "3", "3:1", "90:0.75,0:0.25", "-1:1", "3:nan", "3:0", "1e9:1", "3:-1", "3:1,,", "9" * 99 + ":1"]


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def npy_claiming(header: str) -> bytes:
    """A .npy file whose header says what it likes."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header.encode() + b"\n" + b"\x00" * 64


GOOD = np.array([[90, 5, 5], [50, 45, 5], [100, 0, 0], [40, 30, 30]])
FILES: dict[str, bytes | None] = {
    "good": npy(GOOD),
    "unsigned": npy(GOOD.astype(np.uint8)),
    "floats": npy(GOOD.astype(np.float32)),
    "two classes": npy(np.array([[7, 3], [10, 0]])),
    "one teacher": npy(np.array([[1, 0], [0, 1]])),
    "many classes": npy(np.eye(3, 300, dtype=np.int64) * 40),
    "wide": npy(np.array([[900_000, 100_000], [1_000_000, 0]])),
    "wider": npy(np.array([[2**40, 0], [0, 2**40]])),
    "overflow": npy(np.array([[2**62, 2**62, 2**62]])),
    "unsigned overflow": npy(np.array([[2**64 - 1, 1]], dtype=np.uint64)),
    "fortran": npy(np.asfortranarray(GOOD)),
    "big endian": npy(GOOD.astype(">i4")),
    "no teachers": npy(np.zeros((3, 4), dtype=int)),
    "negative": npy(np.array([[3, -1]])),
    "parts": npy(np.array([[1.5, 0.5]])),
    "unequal": npy(np.array([[2, 1], [2, 2]])),
    "nan": npy(np.array([[math.nan, 1.0]])),
    "inf": npy(np.array([[math.inf, 1.0]])),
    "large floats": npy(np.array([[1e308, 1e308]])),
    "0-d": npy(np.array(3)),
    "1-d": npy(np.array([1, 2, 3])),
    "3-d": npy(np.zeros((2, 2, 2), dtype=int)),
    "no rows": npy(np.zeros((0, 3), dtype=int)),
    "no columns": npy(np.zeros((3, 0), dtype=int)),
    "one column": npy(np.array([[3], [3]])),
    "text": npy(np.array([["a", "b"]])),
    "booleans": npy(np.array([[True, False]])),
    "dates": npy(np.array([["2020-01-01", "2021-01-01"]], dtype="datetime64[D]")),
    "complex": npy(np.array([[1j, 2]])),
    "records": npy(np.array([(1, 2)], dtype=[("a", int), ("b", int)])),
    "objects": npy(np.array([[{}, 1]], dtype=object)),
    "huge shape": npy_claiming("{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000, 10), }"),
    "overflowing shape": npy_claiming(
        "{'descr': '<i8', 'fortran_order': False, 'shape': (9999999999999999999, 9999999999), }"
    ),
    "negative shape": npy_claiming("{'descr': '<i8', 'fortran_order': False, 'shape': (-2, -3), }"),
    "words for a shape": npy_claiming("{'descr': '<i8', 'fortran_order': False, 'shape': 'abc', }"),
    "no header": npy_claiming("{}"),
    "nested header": npy_claiming("-" * 5000 + "1"),
    "no literal": npy_claiming("__import__('os')"),
    "odd type": npy_claiming("{'descr': '<q9', 'fortran_order': 3, 'shape': (2, 2), }"),
    "later version": b"\x93NUMPY\x09\x00" + b"\x00" * 50,
    "empty": b"",
    "zip": b"PK\x03\x04" + b"\x00" * 40,
    "pickle": b"\x80\x04K\x01.",
    "folder": None,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("votes")


@st.composite
def options(draw: st.DrawFn, command: str) -> list[str]:
    """Options of one mechanism, of which up to three hold something hostile, are doubled, or left out."""
    name = draw(st.sampled_from(sorted(OPTIONS)))
    given = {**OPTIONS[name], "delta": SANE["delta"]}
    for extra in EXTRA[command]:
        if draw(st.integers(0, 2)) == 0:
            given[extra] = SANE[extra]
    if command == "account":
        given = {key: value for key, value in given.items() if key not in ("sampling-rate", "teachers")}
    if not name.endswith("msvec") and "target-epsilon" in given:
        free = {"lnmax": "scale", "confident-gnmax": "sigma2", "mstab": "epsilon", "msamp": "epsilon"}
        given.pop(free.get(name, "sigma"), None)
    shown: dict[str, str | None] = {key: repr(value) for key, value in given.items()}
    for _ in range(draw(st.integers(0, 3))):
        key = draw(st.sampled_from([*sorted(shown), "scale", "mechanism"]))
        shown[key] = draw(st.one_of(st.none(), st.sampled_from(HOSTILE), st.floats().map(repr), st.integers().map(str)))
    shown.setdefault("mechanism", name)
    return [f"--{key}={value}" for key, value in shown.items() if value is not None]


@st.composite
def files(draw: st.DrawFn) -> bytes | None:
    """A votes file: good, of the list above, cut off, or with some bytes changed."""
    if draw(st.booleans()):
        return FILES["good"]
    content = FILES[draw(st.sampled_from(sorted(FILES)))]
    if content and draw(st.booleans()):
        content = content[: draw(st.integers(0, len(content)))]
    if content and draw(st.booleans()):
        changed = bytearray(content)
        for _ in range(draw(st.integers(1, 4))):
            changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
        content = bytes(changed)
    return content


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.fixture(scope="module", autouse=True)
def everything_loaded(folder: Path) -> float:
    """What the imports take, before anything is measured."""
    survives(["plan", "--mechanism=mstab", "--epsilon=0.5", "--query-delta=1e-7", "--json"])
    survives(["plan", "--mechanism=lnmax", "--scale=20", "--json"])
    return megabytes()


def survives(arguments: list[str]) -> str:
    """Run the command: it ends in figures that are numbers, or in one line. Returns what it printed."""
    with hang_guard():
        result = CliRunner().invoke(app, arguments)
    error = result.exception
    if isinstance(error, (PateError, OSError)):  # which `main` prints as one line
        assert len(str(error).splitlines()) == 1, str(error)
        return ""
    if isinstance(error, SystemExit):
        assert error.code == 2, arguments
        return ""
    assert error is None, f"{arguments}: {type(error).__name__}: {error}"
    return result.stdout


def check_figures(shown: str) -> None:
    if not shown:
        return
    content = json.loads(shown, parse_constant=lambda word: pytest.fail(f"{word} is no figure"))
    epsilon = content["epsilon"]
    figures = epsilon if isinstance(epsilon, dict) else {"epsilon": epsilon}
    for name, value in figures.items():
        assert value is None or value >= 0, name
    asked = content["queries"]
    assert asked >= 1
    public = figures.get("data_independent", figures.get("epsilon"))
    assert public is None or public > 0 or content["delta"] > 1e-5


@given(arguments=options("account"), content=files())
@fuzz(20)
def test_account(arguments: list[str], content: bytes | None, folder: Path, everything_loaded: float) -> None:
    path = folder / "votes.npy"
    if content is None:
        path = folder
    else:
        path.write_bytes(content)
    check_figures(survives(["account", str(path), *arguments, "--json"]))
    assert megabytes() - everything_loaded < MAX_MEGABYTES


@given(
    arguments=options("plan"), gaps=st.one_of(st.none(), st.sampled_from(GAPS)), content=st.one_of(st.none(), files())
)
@fuzz(12)
def test_plan(
    arguments: list[str], gaps: str | None, content: bytes | None, folder: Path, everything_loaded: float
) -> None:
    more = [] if gaps is None else [f"--gaps={gaps}"]
    if content is not None:
        path = folder / "planned.npy"
        path.write_bytes(content)
        more.append(f"--votes={path}")
    check_figures(survives(["plan", *arguments, *more, "--json"]))
    assert megabytes() - everything_loaded < MAX_MEGABYTES


@pytest.mark.parametrize("name", [name for name, content in FILES.items() if content is not None])
def test_each_file_by_itself(name: str, tmp_path: Path) -> None:
    path = tmp_path / "votes.npy"
    path.write_bytes(FILES[name] or b"")
    arguments = ["--mechanism=gnmax", "--sigma=12", "--delta=1e-5", "--json"]
    check_figures(survives(["account", str(path), *arguments]))


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "--mechanism=gnmax", "--sigma=40", "--max-answers=-1000"],
        ["plan", "--mechanism=confident-gnmax", "--threshold=30", "--sigma1=20", "--sigma2=10", "--max-answers=-1000"],
        ["plan", "--mechanism=gnmax", "--sigma=40", "--max-queries=-5"],
        ["plan", "--mechanism=gnmax", "--sigma=40", "--max-queries=0"],
        ["plan", "--mechanism=gnmax", "--sigma=40", "--delta=2"],
        ["plan", "--mechanism=gnmax", "--sigma=40", "--delta=0"],
        ["plan", "--mechanism=gnmax", "--sigma=40", "--delta=nan"],
        ["plan", "--mechanism=gnmax", "--sigma=1e308"],
        ["account", "VOTES", "--mechanism=gnmax", "--sigma=40", "--delta=2"],
        ["account", "VOTES", "--mechanism=gnmax", "--sigma=40", "--delta=1e-5", "--max-answers=-1000"],
        ["account", "VOTES", "--mechanism=gnmax", "--sigma=40", "--delta=1e-5", "--queries=-5"],
    ],
)
def test_what_used_to_lower_epsilon_names_its_option(arguments: list[str], tmp_path: Path) -> None:
    np.save(tmp_path / "votes.npy", GOOD)
    result = CliRunner().invoke(app, [str(tmp_path / "votes.npy") if a == "VOTES" else a for a in arguments])
    assert isinstance(result.exception, PateError)
    option = next(a for a in arguments[::-1] if a.startswith("--") and a != "--sigma=40").split("=")[0]
    assert str(result.exception).startswith(f"{option} ")
