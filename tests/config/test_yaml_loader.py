"""Text that no hand writes is refused at once, in one line; what a hand writes is read as it was meant."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from pate.config import load_baseline_config, load_config, parse_config, read_yaml
from pate.config._yaml_loader import MAX_BYTES, MAX_VALUES, dump_yaml, parse_yaml
from pate.errors import ConfigError

_LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}, *a{i}]\n" for i in range(40))

_HOSTILE = {
    "billion laughs": (_LAUGHS, ["line 2", "a1.0", "aliases ('*a0')"]),
    "an alias of itself": ("a: &a [*a]", ["a.0", "aliases"]),
    "merge keys": ("b: &b {x: 1}\nc:\n  <<: *b", ["c.<<", "aliases"]),
    "a merge without alias": ("c:\n  <<: {x: 1}", ["line 2", "c:", "merge keys"]),
    "deep lists": ("a: " + "[" * 100_000, ["line 1", "a.0.0", "nested more than 40"]),
    "deep sections": ("".join(f"{' ' * i}k{i}:\n" for i in range(900)), ["nested more than 40"]),
    "python objects": ("a: !!python/object/apply:os.system ['true']", ["a:", "tags", "python/object/apply"]),
    "a standard tag": ("a: !!binary aGVsbG8=", ["a:", "tags", "binary"]),
    "a set": ("a: !!set {x, y}", ["a:", "tags"]),
    "a tag on all": ("!!omap\n- a: 1", ["line 1", "tags"]),
    "a tagged key": ("!!str a: 1", ["line 1", "tags"]),
    "a key twice": ("a:\n  b: 1\n  c: 2\n  b: 3", ["line 4", "a: key 'b' is given twice"]),
    "a list for a key": ("a:\n  ? [1]\n  : 2", ["line 2", "not a name for a key"]),
    "a section for a key": ("a:\n  ? {x: 1}\n  : 2", ["not a name for a key"]),
    "truth for a key": ("yes: 1", ["'yes'", "not a name for a key", "quotes"]),
    "nothing for a key": ("~: 1", ["not a name for a key"]),
    "a broken number for a key": ("1.5: 1", ["not a name for a key"]),
    "no number": ("a: [1, .nan]", ["a.1", "'.nan'", "not a finite number"]),
    "endless": ("a: -.inf", ["a:", "not a finite number"]),
    "endless by exponent": ("a: 1e999", ["a:", "not a finite number"]),
    "a large whole number": (f"a: {2**63}", ["a:", "too large"]),
    "a very large whole number": ("a: " + "9" * 100_000, ["a:", "too large"]),
    "many values": ("a: [" + "1," * (MAX_VALUES + 1) + "]", ["more than 20,000 values"]),
    "two documents": ("a: 1\n---\na: 2", ["another document"]),
    "control characters": ("a: \x00", ["not valid YAML"]),
    "a date that is none": ("a: 2001-99-99\nb: [", ["not valid YAML"]),
}


@pytest.mark.parametrize("case", _HOSTILE)
def test_what_no_hand_writes_is_refused_at_once(case: str, tmp_path: Path) -> None:
    text, words = _HOSTILE[case]
    path = tmp_path / "c.yaml"
    path.write_text(text)
    _refused(path, [str(path), *words])


def _refused(path: Path, words: list[str]) -> None:
    for load in (load_config, load_baseline_config):
        with pytest.raises(ConfigError) as caught:
            load(path)
        said = str(caught.value)
        assert said.isprintable(), said
        assert len(said) < 600
        for word in words:
            assert word in said, said


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["this is empty"]),
        (b"- 1", ["list"]),
        (b"\xff\xfe\x00", ["UTF-8"]),
        (b"\x80\x03csubprocess\n", ["UTF-8"]),
        (b"#" * (MAX_BYTES + 1), ["larger than 1,000,000 bytes"]),
    ],
)
def test_what_is_no_config_is_refused(content: bytes, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    _refused(path, [str(path), *words])


def test_folders_devices_and_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (tmp_path, Path("/dev/zero"), tmp_path / "pipe", tmp_path / "link"):
        _refused(path, [str(path), "not a regular file"])


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    _refused(tmp_path / ("n" * 300), ["cannot be read"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("-1E5", -1e5),
        ("1_000", 1000),
        (".5", 0.5),
        ("0", 0),
        ("010", "010"),
        ("1:30", "1:30"),
        ("0b_", "0b_"),
        ("2001-01-01", "2001-01-01"),
        ("2001-99-99", "2001-99-99"),
        ("=", "="),
        ("yes", True),
        ("~", None),
        ("{0: 1, 1: 2}", {0: 1, 1: 2}),
    ],
)
def test_values_are_read_as_they_were_meant(text: str, value: object) -> None:
    assert parse_yaml(text, "here") == value
    assert type(parse_yaml(text, "here")) is type(value)


def test_what_is_written_is_read_back() -> None:
    words = ["1e-5", "010", "2001-01-01", "yes", "~", "<<", "=", "", "1_0", "*a", "&a", "!x", ".nan", "\x1b", "a: b"]
    content = {"words": words, "again": words, "numbers": [1e-5, 3, 1e300, -0.5, True, None], "keys": {"1": 2, 1: 3}}
    assert parse_yaml(dump_yaml(content), "here") == content


_CONFIG = {
    "data": {"source": "digits"},
    "n_teachers": 10,
    "teachers": [{"name": "sklearn.svm.SVC", "params": {"C": 1.0}}],
    "mechanism": {"name": "gnmax", "sigma": 4},
    "student": {"name": "supervised"},
}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("n_teachers=1000000000", ["n_teachers = 1000000000", "100000"]),
        ("budget.max_queries=1000000000", ["budget.max_queries = 1000000000", "10000000"]),
        ("budget.active_rounds=1000000000", ["budget.active_rounds"]),
        ("ray.workers=1000000000", ["ray.workers"]),
        ("seed=-1", ["seed = -1"]),
        ("seed=yes", ["seed = True", "whole number"]),
        ("n_teachers=yes", ["n_teachers = True", "whole number"]),
        ("n_teachers='20'", ["n_teachers = '20'", "whole number"]),
        ("n_teachers=2.5", ["n_teachers = 2.5", "whole number"]),
        ("budget.delta='1e-5'", ["budget.delta = '1e-5'", "number"]),
        ("budget.delta=.nan", ["budget.delta", "finite"]),
        ("budget.epsilon=.inf", ["budget.epsilon", "finite"]),
        ("teachers.0.weight=.nan", ["teachers.0.weight", "finite"]),
        ("teachers.0.weight=1e300", ["teachers.0.weight"]),
        ("teachers.0.params.C=.nan", ["teachers.0.params.C", "finite"]),
        ("mechanism.sigma=.nan", ["mechanism.sigma", "finite"]),
        ("mechanism.sigma=yes", ["mechanism.sigma = True", "number"]),
        ("mechanism.sigma='40'", ["mechanism.sigma = '40'", "number"]),
        ("mechanism.sigma=[1]", ["mechanism.sigma = [1]", "number"]),
        ("mechanism={name: msvec, epsilon: 1, delta: 1e-6, unstable: 1e300, max_queries: 1e305}", ["mechanism"]),
        ("mechanism.name=pate.mechanisms.Mechanism", ["mechanism.name = 'pate.mechanisms.Mechanism'"]),
        ("mechanism.name=pate.mechanisms.noisy_max.NoisyMax", ["mechanism.name"]),
        ("data={source: csv, label: y, classes: [yes, no]}", ["data.classes.0 = True", "quotes"]),
        ("data={source: npz, file: f, classes: [a, b], ids: 1}", ["data.ids = 1", "boolean"]),
        ("data={source: [1]}", ["data.source = [1]"]),
        ("data=5", ["data = 5"]),
        ("data.source.deep=1", ["data.source.deep", "there is no 'deep'"]),
        ("mechanism.5=1", ["mechanism.5"]),
        ("teachers.².weight=1", ["teachers", "there is no '²'"]),
        ("teachers." + "9" * 5000 + ".weight=1", ["there is no '999"]),
        (".".join("a" * 5000) + "=1", ["nested"]),
        ("seed=!!python/name:os.system", ["overrides='seed'", "tags"]),
        ("seed=[&a x, *a]", ["overrides='seed'", "aliases"]),
        ("a\nb=1", ["'a\\nb'", "unknown key"]),
        ("name=" + "n" * 300, ["name = 'nnn", "100 characters"]),
    ],
)
def test_a_hostile_setting_is_one_clear_line(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 600
    for word in words:
        assert word in said


@pytest.mark.parametrize("kind", ["NaN", "infinite", "long"])
def test_numbers_from_python_are_checked_in_parameters_too(kind: str) -> None:
    value, words = {"NaN": (math.nan, "finite"), "infinite": (-math.inf, "finite"), "long": (10**5000, "too large")}[
        kind
    ]
    for section in ({"teachers": [{"name": "network", "params": {"deep": [{"C": value}]}}]}, {"seed": value}):
        with pytest.raises(ConfigError, match=words):
            parse_config(_CONFIG | section)


def test_parameters_that_vary_are_not_multiplied_without_end() -> None:
    family = {"name": "sklearn.svm.SVC", "grid": {f"p{i}": list(range(100)) for i in range(12)}}
    with pytest.raises(ConfigError, match=r"teachers\.0\.grid.* 1,000 are the most"):
        parse_config(_CONFIG | {"teachers": [family]})


def test_a_whole_number_may_have_an_exponent() -> None:
    assert load_config(None, ["budget.max_queries=1e2", "n_teachers=20.0"]).budget.max_queries == 100


def test_text_that_looks_like_a_number_survives_being_stored(tmp_path: Path) -> None:
    config = load_config(None, ["name='1e5'", "student.params={a: '1e5', b: '010', c: 2001-01-01}"])
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert parse_config(read_yaml(tmp_path / "config.yaml")) == config
