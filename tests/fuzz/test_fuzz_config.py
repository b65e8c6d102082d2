"""Whatever a config file holds, loading it ends in settings or in one line."""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import REPOSITORY
from support.command_line import in_process
from support.fuzzing import MEGABYTE, command_survives, fuzz, no_traceback

from pate.config import Config, RunConfig, load_baseline_config, load_config, parse_config, read_yaml
from pate.config._yaml_loader import dump_yaml
from pate.voters import voters_of

_MOST = 16 * MEGABYTE

_FILES = {path.stem: path.read_bytes() for path in sorted((REPOSITORY / "configs").glob("*.yaml"))}
_CONTENT = {path.stem: read_yaml(path) for path in sorted((REPOSITORY / "configs").glob("*.yaml"))}
_OWN_DATA: list[dict[str, Any]] = [
    {
        "source": "csv",
        "private": "a.csv",
        "public": "b.csv",
        "label": "y",
        "classes": ["x", "z"],
        "categories": {"c": ["d"]},
    },
    {"source": "npz", "private": ["a.npz", "b.npz"], "public": "c.npz", "classes": [0, 1], "ids": True},
    {"source": "parquet", "private": "s3://a/*.parquet", "public": "c", "label": "y", "classes": [0], "id": "i"},
]
_MECHANISMS: list[dict[str, Any]] = [
    {"name": "lnmax", "scale": 20},
    {"name": "mstab", "epsilon": 0.1, "query_delta": 1e-7},
    {"name": "msamp", "epsilon": 0.1, "query_delta": 1e-7, "sampling_rate": 0.1},
    {"name": "msvec", "epsilon": 1, "delta": 1e-6, "unstable": 10, "max_queries": 1000},
    {"name": "gaussian_mstab", "sigma": 40, "query_delta": 1e-9},
    {"name": "gaussian_msamp", "sigma": 9, "query_delta": 1e-8},
    {"name": "confident_gnmax", "threshold": 200, "sigma1": 150, "sigma2": 40},
]
_SECTIONS: list[dict[str, Any]] = [
    *({"data": data} for data in _OWN_DATA),
    *({"mechanism": mechanism} for mechanism in _MECHANISMS),
    {"budget": {"max_queries": 100, "sanitise": {"order": 8, "beta": 0.05, "sigma_ss": 4}}},
    {"budget": {"max_queries": 100, "query_selection": "uncertainty", "active_rounds": 5}},
    {"teachers": [{"name": "sklearn.svm.SVC", "grid": {"C": [1, 2], "gamma": [0.1, "scale"]}, "features": ["hog"]}]},
    {"ray": {"workers": 2, "cpus_per_worker": 0.5}},
]

_NUMBERS = st.one_of(
    st.sampled_from([0, -1, 1, 2, 10**9, 2**31, 2**63 - 1, 2**63, -(2**63), 10**400, 5e-324, 1e308, -0.0, 1e-300]),
    st.sampled_from([math.nan, math.inf, -math.inf]),
    st.integers(),
    st.floats(),
)
_WORDS = st.one_of(
    st.sampled_from(
        ["", ".", "..", "a.b", "os.system", "subprocess.Popen", "sklearn.svm.SVC", "pate.mechanisms.Mechanism"]
    ),
    st.sampled_from(
        ["pate.mechanisms.noisy_max.NoisyMax", "pate.config.Config", "nan", "1e5", "yes", "../" * 50, "s3://"]
    ),
    st.sampled_from(
        ["\x00", "\x1b[2J", "a\nb", "\u202e", "[bold]", "²", "$x_$", "gnmax", "uncertainty", "workers", "x" * 5000]
    ),
    st.text(max_size=20),
)
_HOSTILE = st.recursive(
    st.one_of(_NUMBERS, _WORDS, st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_WORDS, inner, max_size=4)),
    max_leaves=8,
)
_TEXT = (
    b"!!python/object/apply:os.getcwd [] !!binary !x &a *a <<: ? : - { } [ ] [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
    b" | > # % --- ... \xff \x00 \xc2\x85 .nan -.inf 1e999 0b_ 2001-99-99 yes ~ = ` @ ' \" x: :x ,"
)
_RAW = st.sampled_from([*_TEXT.split(b" "), b" ", b"\n", b"\t", b"\r", b"\n---\n", b"\n  ", b"9" * 400, b"1:" * 200])


def _places(content: Any, path: tuple[int | str, ...] = ()) -> Iterator[tuple[int | str, ...]]:
    """Where a plain value has something to change: everything inside of it."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


@st.composite
def _changed(draw: st.DrawFn) -> dict[str, Any]:
    """A shipped config, perhaps with another section, where a few values are replaced, added or gone."""
    content = copy.deepcopy(_CONTENT[draw(st.sampled_from(sorted(_CONTENT)))])
    if draw(st.booleans()):
        content |= copy.deepcopy(draw(st.sampled_from(_SECTIONS)))
    for _ in range(draw(st.integers(0, 3))):
        *parents, last = draw(st.sampled_from(sorted(_places(content), key=str)))
        place: Any = content
        for name in parents:
            place = place[name]
        what = draw(st.sampled_from(["replace", "replace", "add", "remove"]))
        if what == "remove" and len(content) > 1:
            del place[last]
        elif what == "add" and isinstance(place, dict):
            place[draw(_WORDS)] = draw(_HOSTILE)
        else:
            place[last] = draw(_HOSTILE)
    return content


@st.composite
def _spliced(draw: st.DrawFn) -> bytes:
    """The bytes of a shipped config, with pieces cut out, doubled, or other bytes put in."""
    content = draw(st.sampled_from(sorted(_FILES.values())))
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(content)))
        end = min(len(content), begin + draw(st.sampled_from([0, 0, 1, 5, 40, 400])))
        new = draw(st.one_of(_RAW, st.binary(max_size=6), st.just(content[begin:end] * 2)))
        content = content[:begin] + new + content[end:]
    return content


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    importlib.import_module("sklearn.svm")  # what is imported on first use is neither counted nor cut off
    folder = tmp_path_factory.mktemp("configs")
    in_process("plan", REPOSITORY / "configs" / "mnist.yaml", "--data-dir", folder)
    return folder / "config.yaml"


def _loading_survives(path: Path) -> None:
    """As either kind of run; settings that were accepted name their voters, and are read back as they were stored."""
    for load in (load_config, load_baseline_config):
        accepted: list[RunConfig] = []
        no_traceback(lambda load=load, accepted=accepted: accepted.append(load(path)), _MOST)
        for config in accepted:
            stored = path.with_name("stored.yaml")
            stored.write_text(config.to_yaml(), encoding="utf-8")
            assert load(stored).digest() == config.digest()
            if isinstance(config, Config):
                no_traceback(lambda config=config: voters_of(config).estimators(), _MOST)


@fuzz(30)
@given(content=_changed())
def test_changed_values(content: dict[str, Any], file: Path) -> None:
    file.write_text(dump_yaml(content), encoding="utf-8")
    _loading_survives(file)
    no_traceback(lambda: parse_config(content), _MOST)


@fuzz(30)
@given(content=_spliced())
def test_changed_bytes(content: bytes, file: Path) -> None:
    file.write_bytes(content)
    _loading_survives(file)


@fuzz(30)
@given(
    key=st.one_of(st.sampled_from([".".join(map(str, path)) for path in _places(_CONTENT["digits"])]), _WORDS),
    value=st.one_of(_HOSTILE.map(lambda value: dump_yaml(value).strip()), _WORDS),
)
def test_overrides(key: str, value: str) -> None:
    no_traceback(lambda: load_config(None, [f"{key}={value}"]), _MOST)


@fuzz(8)
@given(content=_spliced())
def test_the_command_says_one_line(content: bytes, file: Path) -> None:
    """`pate plan` of a config for another data set: it reads the config, and then misses the data."""
    file.write_bytes(content.replace(b"digits", b"mnist"))
    command_survives("plan", file, "--data-dir", file.parent)
