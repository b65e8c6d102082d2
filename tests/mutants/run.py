"""Plant bugs one at a time in a copy of the project and see whether the tests notice.

    python tests/mutants/run.py [--part NAME]… [--id ID]… [--random N --seed S] [--jobs J] [--everything]

What an entry holds is said in planted.py. Exit status: 0 if enough bugs were caught, 1 if not, 2 if entries are broken:
their text no longer matches, a test is gone or cannot be loaded, or the tests fail without any bug.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from planted import PARTS, STRICT, BrokenEntry, Mutant, load, problems

COPIED = [
    *("pate", "tests", "configs", "cluster", "docs", "examples", "benchmarks", ".ci"),
    *("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "mkdocs.yml", "LICENSE"),
]
NOT_COPIED = shutil.ignore_patterns("__pycache__", ".hypothesis", ".pytest_cache")
ENOUGH = 0.95
PYTEST = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", "--tb=line"]
SAME_EXAMPLES = "--hypothesis-seed=0"  # a bug is caught every time or never
NEEDED = [
    *("numpy", "scipy.special", "scipy.stats", "scipy.optimize", "scipy.signal", "sklearn.linear_model", "sklearn.svm"),
    *("hypothesis", "hypothesis.extra.numpy", "pytest", "mpmath", "pydantic", "typer", "rich.console", "yaml", "xdist"),
    *("sklearn.neighbors", "sklearn.naive_bayes", "threadpoolctl", "jinja2"),
]
CAUGHT, MISSED, BROKEN, EQUIVALENT = "caught", "missed", "broken", "equivalent"


@dataclass(frozen=True)
class Outcome:
    """What became of one planted bug."""

    mutant: Mutant
    verdict: str
    seconds: float
    said: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; the exit status."""
    asked = _parser().parse_args(arguments)
    try:
        known = load(asked.folder)
    except BrokenEntry as error:
        return _complain([str(error)])
    if faults := problems(known, asked.root):
        return _complain(faults)
    chosen = choose(known, asked)
    if not chosen:
        return _complain(["no such entries"])
    with tempfile.TemporaryDirectory(prefix="mutants") as scratch:
        copies = [_copy(asked.root, Path(scratch) / str(job)) for job in range(min(asked.jobs, len(chosen)))]
        if not asked.no_clean and (said := _fails_clean(chosen, copies[0], asked.limit)):
            return _complain(["the tests fail without any bug:", said])
        outcomes = list(_try_all(chosen, copies, asked))
    return _judge(outcomes)


def _parser() -> argparse.ArgumentParser:
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description="Plant bugs one at a time and see whether the tests notice.")
    parser.add_argument("--part", action="append", default=[], choices=PARTS)
    parser.add_argument("--id", action="append", default=[])
    parser.add_argument("--random", type=int, metavar="N", help="only N of them, drawn by --seed")
    parser.add_argument("--seed", type=int, help="printed, if not given")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="copies that work at the same time")
    parser.add_argument("--everything", action="store_true", help="all default tests for what the named ones miss")
    parser.add_argument("--no-clean", action="store_true", help="do not run the tests without a bug first")
    parser.add_argument("--limit", type=float, default=600, help="seconds for the named tests of one bug")
    parser.add_argument("--root", type=Path, default=here.parents[1], help="the project")
    parser.add_argument("--folder", type=Path, default=here, help="where the entries are")
    return parser


def _complain(lines: Sequence[str]) -> int:
    print(*lines, sep="\n", file=sys.stderr)
    return 2


def choose(known: Sequence[Mutant], asked: argparse.Namespace) -> list[Mutant]:
    """The entries that the options select; a random choice takes none that no test can notice."""
    chosen = [m for m in known if m.part in (asked.part or PARTS) and m.id in (asked.id or [m.id])]
    if asked.random is None:
        return chosen
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    print(f"{asked.random} at random: --random {asked.random} --seed {seed}", flush=True)
    chosen = [m for m in chosen if not m.equivalent]
    return random.Random(seed).sample(chosen, min(asked.random, len(chosen)))


def _copy(root: Path, copy: Path) -> Path:
    """What the tests need of the project."""
    copy.mkdir()
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, copy / name, ignore=NOT_COPIED)
        elif (root / name).exists():
            shutil.copy2(root / name, copy / name)
    compileall.compile_dir(copy / "pate", quiet=2)
    return copy


def _fails_clean(chosen: Sequence[Mutant], copy: Path, limit: float) -> str:
    """What the named tests say if they fail as the project stands; nothing if they pass."""
    named = sorted({test for m in chosen if not m.equivalent for test in m.tests})
    status, said = _pytest(copy, named, limit * len(named)) if named else (0, "")
    return said if status != 0 else ""


def _try_all(chosen: Sequence[Mutant], copies: Sequence[Path], asked: argparse.Namespace) -> Iterator[Outcome]:
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def try_one(mutant: Mutant) -> Outcome:
        copy = free.get()
        try:
            return try_mutant(mutant, copy, asked.limit, everything=asked.everything)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        for outcome in pool.map(try_one, chosen):
            tail = f"  {outcome.said}" if outcome.verdict in (MISSED, BROKEN) else ""
            name = f"{outcome.mutant.part}/{outcome.mutant.id}"
            print(f"{outcome.verdict:10}  {outcome.seconds:5.1f} s  {name}{tail}", flush=True)
            yield outcome


def try_mutant(mutant: Mutant, copy: Path, limit: float, *, everything: bool) -> Outcome:
    """Plant a bug in the copy, run the tests it names, and take it out again."""
    if mutant.equivalent:
        return Outcome(mutant, EQUIVALENT, 0.0, mutant.equivalent)
    started = time.monotonic()
    with _planted(mutant, copy):
        status, said = _pytest(copy, mutant.tests, limit)
        if everything and _verdict(mutant, status) == MISSED:
            status, said = _pytest(copy, [], 20 * limit)
    return Outcome(mutant, _verdict(mutant, status), time.monotonic() - started, said)


@contextmanager
def _planted(mutant: Mutant, copy: Path) -> Iterator[None]:
    """The bug is in the copy. The file gets another time, or Python might take the compiled text without the bug."""
    path = copy / mutant.file
    text, before = path.read_text(encoding="utf-8"), path.stat().st_mtime
    path.write_text(mutant.planted_in(text), encoding="utf-8")
    os.utime(path, (before + 10, before + 10))
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")
        os.utime(path, (before, before))


def _verdict(mutant: Mutant, status: int | None) -> str:
    """Caught if a test failed. Tests that cannot be loaded, or that never end, count only where that was said."""
    if status is None:
        return CAUGHT if mutant.hangs else BROKEN
    if status in (0, 1):
        return CAUGHT if status else MISSED
    return CAUGHT if mutant.at_import else BROKEN


def _pytest(copy: Path, tests: Sequence[str], limit: float) -> tuple[int | None, str]:
    """pytest's status in the copy (None: out of time) and the end of what it said."""
    warm = _warm_process(copy)
    assert warm.stdin is not None
    assert warm.stdout is not None
    arguments = [*PYTEST, SAME_EXAMPLES, *tests]
    print(json.dumps({"cwd": str(copy), "arguments": arguments, "limit": limit}), file=warm.stdin, flush=True)
    answer = json.loads(warm.stdout.readline())
    if answer["status"] is None:
        return None, f"not finished after {limit:.0f} s"
    return answer["status"], " | ".join(answer["said"].strip().splitlines()[-3:])


@cache
def _warm_process(copy: Path) -> subprocess.Popen[str]:
    """One for each copy; see warm.py. It ends with this process, when its standard input does."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    needed = NEEDED if (copy / "pyproject.toml").exists() else ()
    command = [sys.executable, str(Path(__file__).with_name("warm.py")), *needed]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _judge(outcomes: Sequence[Outcome]) -> int:
    """Print the table; the exit status."""
    table = {part: Counter(o.verdict for o in outcomes if o.mutant.part == part) for part in PARTS}
    print(f"\n{'part':14}{'planted':>8}{CAUGHT:>8}{EQUIVALENT:>12}{MISSED:>8}{BROKEN:>8}")
    for part, n in [*table.items(), ("all", Counter(o.verdict for o in outcomes))]:
        if n:
            print(f"{part:14}{n.total():8}{n[CAUGHT]:8}{n[EQUIVALENT]:12}{n[MISSED]:8}{n[BROKEN]:8}")
    if any(n[BROKEN] for n in table.values()):
        return 2
    missed = sum(n[MISSED] for n in table.values())
    share = 1 - missed / max(1, sum(n[MISSED] + n[CAUGHT] for n in table.values()))
    return int(share < ENOUGH or any(table[part][MISSED] for part in STRICT))


if __name__ == "__main__":
    sys.exit(main())
