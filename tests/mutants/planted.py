"""The planted bugs: how they are written down, and what must hold of every one.

`<part>.yaml` holds a list of entries with these keys:

    id: a short name, once in all files
    file: the file that the bug is planted in
    old: text that occurs exactly once in it
    new: what stands there instead
    why: the promise that breaks, in one sentence
    tests: [the narrowest files or pytest node ids that notice]
    equivalent: why no test can notice; such an entry is not run and needs no tests
    hangs: true, if it is noticed by never coming to an end
    at_import: true, if it is noticed when the tests are loaded

Text that begins with spaces or has several lines is a block: `old: |2-`, then the lines as in the file, four columns
to the right.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

PARTS = (
    "privacy_core",
    "partition",
    "neighbours",
    "audit",
    "ledger",
    "aggregator",
    "leaks",
    "ensemble",
    "students",
    "baselines",
    "config",
    "report",
    "data",
    "cli",
    "classifier",
    "runs",
    "clusters",
)
STRICT = {"privacy_core", "partition", "neighbours", "ledger", "aggregator", "leaks"}
"""Parts in which no planted bug may be missed."""


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    part: str
    id: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...] = ()
    equivalent: str = ""
    hangs: bool = False
    at_import: bool = False

    def planted_in(self, text: str) -> str:
        """The file's text with the bug in it."""
        return text.replace(self.old, self.new)


class BrokenEntry(ValueError):
    """An entry that cannot be read."""


def load(folder: Path) -> list[Mutant]:
    """All planted bugs of a folder, by part in the order of their files' names."""
    return [_mutant(path, entry) for path in sorted(folder.glob("*.yaml")) for entry in _entries(path)]


def _entries(path: Path) -> list[Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), Loader=loader) or []


def _mutant(path: Path, entry: Any) -> Mutant:
    try:
        return Mutant(part=path.stem, **{**entry, "tests": tuple(entry.get("tests", ()))})
    except (TypeError, AttributeError) as error:
        raise BrokenEntry(f"{path.name}: {entry!r:.200}: {error}") from error


def problems(mutants: Sequence[Mutant], root: Path) -> list[str]:
    """What is wrong with the entries themselves, a line for each: texts that no longer match, tests that are gone."""
    twice = [f"{name}: {n} entries have this id" for name, n in Counter(m.id for m in mutants).items() if n > 1]
    return twice + [f"{m.part}/{m.id}: {fault}" for m in mutants for fault in _faults(m, root)]


def _faults(mutant: Mutant, root: Path) -> list[str]:
    if mutant.part not in PARTS:
        return [f"no part is called {mutant.part}"]
    found = []
    if not mutant.why.strip():
        found.append("does not say why it matters")
    if not mutant.tests and not mutant.equivalent:
        found.append("names no tests")
    found += [f"{test} does not exist" for test in mutant.tests if not (root / test.split("::")[0]).is_file()]
    return found + _faults_of_text(mutant, root / mutant.file)


def _faults_of_text(mutant: Mutant, path: Path) -> list[str]:
    if not path.is_file():
        return [f"{mutant.file} does not exist"]
    text = _text(path)
    if mutant.old == mutant.new:
        return ["old and new text are the same"]
    if (times := text.count(mutant.old)) != 1:
        return [f"its old text occurs {times} times in {mutant.file}"]
    try:
        ast.parse(mutant.planted_in(text) if path.suffix == ".py" else "")
    except SyntaxError as error:
        return [f"{mutant.file} cannot be compiled with it: {error}"]
    return []


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
