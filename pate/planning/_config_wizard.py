"""`pate init`: from data files to a commented config that runs, and what was guessed on the way.

What goes into the config counts as public, and some of it is published with the student: columns, categories, markers
of missing values and forms of dates come from the public file or from the user. Two things may come from the private
file, and are said loudly then, in the config too: the classes, where nobody listed them, and the number of records,
rounded to one digit. What private cells hold is for the operator at a
terminal: elsewhere an error about them says that there is one, and no more.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pate.accounting import _parameters as parameters
from pate.config._settings import check_delta
from pate.data._column_inference import (
    Seen,
    check_header,
    guess_dialect,
    missing_share,
    named_or_guessed_markers,
    offered,
    person_columns,
    read,
    seen,
    source_of,
    with_markers_as_missing,
)
from pate.data._columns import ABSOLUTE, canonical
from pate.data._formats import USUAL, Dialect, Problems, SeveralErrors, Table
from pate.errors import ConfigError, DataError
from pate.planning.plan import Choice, Recommendation, recommend, shared_budget, usual_delta
from pate.runs._console import Console, Quiet, printable

_MAX_CLASSES = 20
_MIN_IDS = 20
_MIN_OF_A_CLASS = 10
_MAX_FEATURES_TO_BE_NEAR_IN = 100
_MAX_SHOWN = 3
_LONGEST_SHOWN = 50  # signs
LOUD = "FOUND IN PRIVATE DATA"


@dataclass
class Start:
    """What `pate init` found and chose."""

    private: Path
    public: Path
    test: Path | None
    dialect: Dialect
    columns: list[Seen]
    private_missing: dict[str, float | None]
    ignored: dict[str, str]
    label: str
    classes: list[str]
    id: str | None
    public_record_count: int
    target_epsilon: float
    delta: float
    found: Recommendation
    markers: list[str] = field(default_factory=list)
    candidates: list[str] = field(default_factory=list)
    """Columns that may say whose record it is, where none is taken: only the private file has them."""
    date_features: dict[str, list[str]] = field(default_factory=dict)
    guesses: list[str] = field(default_factory=list)
    loud: list[str] = field(default_factory=list)
    """What was found in private data: key of the config, colon, what it is."""

    def is_private(self, key: str) -> bool:
        """Whether what the config says under a key was found in private data."""
        return any(text.startswith(f"{key}: ") for text in self.loud)

    @property
    def choice(self) -> Choice:
        """What is recommended."""
        return self.found.choice


def start(
    private: Path,
    public: Path,
    *,
    test: Path | None = None,
    label: str | None = None,
    id: str | None = None,
    classes: Sequence[str] = (),
    records: int | None = None,
    markers: Sequence[str] = (),
    target_epsilon: float = 2.0,
    delta: float | None = None,
    encoding: str | None = None,
    console: Console | None = None,
) -> Start:
    """Look at the files and choose everything that a config says; `console` is told what is private."""
    console = console or Quiet()
    if len(classes) == 1:
        raise ConfigError("{classes}: at least two are needed, with a comma between", classes=classes[0])
    parameters.epsilon(target_epsilon, "target_epsilon")
    if delta is not None:
        check_delta(parameters.delta(delta), None, key="delta")
    if absent := [str(path) for path in (private, public, test) if path is not None and not path.is_file()]:
        raise DataError(f"{', '.join(absent)}: no such file{'s' * (len(absent) > 1)}")
    for option, shown in (("public", public), ("test", test)):
        if shown is not None and shown.samefile(private):
            text = f"{{{option}}}: is the private file, and what is {option} is treated as known to everybody"
            raise DataError(text, **{option: str(shown)})
    source = source_of(private)
    if source_of(public) != source or (test is not None and source_of(test) != source):
        raise DataError(f"{public}: is not of the kind of {private}; save all as csv or all as parquet")
    guesses: list[str] = []
    loud: list[str] = []
    known = [path for path in (public, test) if path is not None]
    dialect = guess_dialect(known, encoding) if source == "csv" else USUAL
    outside, tested = read(public, dialect), None if test is None else read(test, dialect)
    if dialect != USUAL:
        guesses.append(f"csv files are {dialect}")
    if source == "csv":
        check_header(private, dialect)
    with private_errors(private, known, console):
        inside = read(private, dialect)
    label, id, candidates = _label_and_id(inside, outside, tested, label, id, guesses)
    with private_errors(private, known, console, "classes"):
        names = _classes(inside, outside, tested, label, classes, guesses, loud)
    special = {label, id}
    found_markers = named_or_guessed_markers(outside, special, markers, guesses)
    inside, outside = (with_markers_as_missing(table, special, found_markers) for table in (inside, outside))
    columns = [
        seen(name, column) for name, column in outside.columns.items() if name not in special and name in inside.columns
    ]
    ignored = {one.name: one.wrong for one in columns if one.kind == "ignored"}
    for table, others, where in ((inside, outside, "public"), (outside, inside, "private")):
        for name in table.columns:
            if name not in others.columns and name not in special:
                ignored[name] = f"not in the {where} file"
    if tested is not None:
        lacking = [one.name for one in columns if one.kind != "ignored" and one.name not in tested.columns]
        if lacking:
            raise DataError(f"{test}: column {lacking[0]!r} is missing, which the other files have")
        ignored |= {n: "in the test file only" for n in tested.columns if n not in inside.columns and n not in special}
    for table in (inside, outside, *([tested] if tested else [])):
        if "" in table.header:
            ignored[""] = "has no name: an index?"
    columns = [one for one in columns if one.kind != "ignored"]
    if not columns:
        raise DataError(
            f"{public}: no column is left to learn from: {'; '.join(f'{k}: {v}' for k, v in ignored.items())}"
        )
    guesses += [f"column {one.name!r}: {one.wrong}" for one in columns if one.wrong]
    shares = {one.name: missing_share(inside.columns[one.name], one.kind, one.form) for one in columns}
    with private_errors(private, known, console):
        _check_private_cells(inside, columns, console)
        about = _about_records(inside, id, records, loud)
    delta = usual_delta(about) if delta is None else delta
    of_dates = _date_features(outside, columns, guesses)
    width = sum(max(1, len(one.values), len(of_dates.get(one.name, ()))) for one in columns)
    near = width <= _MAX_FEATURES_TO_BE_NEAR_IN
    with private_errors(private, known, console, "records") if records is None else nullcontext():
        found = recommend(about, len(names), target_epsilon, delta, len(outside), near)
    for name in candidates:
        with suppress(DataError):  # of dates and the like, which are no ids
            distinct = len({text for text in inside.columns[name].texts() if text})
            console.info_private(f"column {name!r}: {distinct:,} different values in {len(inside):,} private rows")
    return Start(
        private, public, test, dialect, columns, shares, ignored, label, names, id, about, target_epsilon, delta, found,
        found_markers, candidates, of_dates, guesses, loud,
    )  # fmt: skip


def _date_features(public: Table, columns: Sequence[Seen], guesses: list[str]) -> dict[str, list[str]]:
    """What columns of dates become, by the public file: nothing that another year lies beyond, where that can be."""
    made = offered({one.name: public.columns[one.name].years(one.form) for one in columns if one.kind == "date"})
    for name, features in made.items():
        if features and ABSOLUTE not in features:
            guesses.append(f"column {name!r} becomes {', '.join(features)}: what another year has too")
        elif features:
            guesses.append(
                f"column {name!r} stays an absolute date, since no other date tells an age; in another year it means "
                "something else"
            )
    return made


def _label_and_id(
    private: Table, public: Table, test: Table | None, label: str | None, id: str | None, guesses: list[str]
) -> tuple[str, str | None, list[str]]:
    """The columns that are named, else guessed by their names and by which files have them; and other candidates."""
    for option, name in (("label", label), ("id", id)):
        if name is not None and name not in private.columns:
            from pate.components._registry import nearest

            text = f"{{{option}}}: {private.where} has no such column; {nearest(name, private.columns)}"
            raise DataError(text, **{option: name})
    own = [name for name in private.columns if name not in public.columns]
    shared = [name for name in private.columns if name in public.columns]
    likely = [name for name in person_columns(own, shared) if name != label] if id is None else []
    if likely:
        id = likely[0]
        guesses.append(f"{id!r} says whose record it is: the guarantee is per {id}, whatever number of records")
        guesses += [f"{name!r} is called so too: if it does, add --id {shlex.quote(name)}" for name in likely[1:]]
    if label is None:
        left = [name for name in own if name != id]
        tested = [name for name in left if test is not None and name in test.columns]
        left = tested if len(tested) == 1 else left
        if len(left) != 1:
            some = ", ".join(left or list(private.columns))
            raise DataError(f"{{label}}: say which column is to be predicted, one of {some}", label=None)
        label = left[0]
        guesses.append(f"{label!r} is what is to be predicted: the public file has no such column")
    if label == id:
        raise ConfigError("{label}: names the same column as {id}", label=label, id=id)
    return label, id, [] if id is not None else [name for name in own if name != label]


def _classes(
    private: Table,
    public: Table,
    test: Table | None,
    label: str,
    given: Sequence[str],
    guesses: list[str],
    loud: list[str],
) -> list[str]:
    """The classes: as the user lists them, else those of a public file, else, with a warning, of the private one."""
    if given:
        known = {canonical(name) for name in given}
        if {canonical(text) for text in private.columns[label].texts()} - known - {""}:
            raise DataError(
                f"{private.where}: column {label!r} holds labels that are not among data.classes; "
                "list all with {classes}",
                classes=None,
            )
        return list(given)
    for table, what in ((test, "test"), (public, "public")):
        if table is not None and label in table.columns:
            names = sorted({canonical(text) for text in table.columns[label].texts()} - {""})
            if 2 <= len(names) <= _MAX_CLASSES:
                guesses.append(f"classes {', '.join(names)} are those of the {what} file")
                return names
    texts = [canonical(text) for text in private.columns[label].texts()]
    names = sorted(set(texts) - {""})
    rare = [name for name in names if texts.count(name) < _MIN_OF_A_CLASS] if len(names) <= _MAX_CLASSES else names
    if len(names) < 2 or rare:
        raise DataError(
            f"{private.where}: column {label!r} has {'fewer than two' if len(names) < 2 else 'too many or too rare'} "
            "values to be classes; list the classes with {classes}, or name another {label}",
            classes=None,
            label=None,
        )
    loud.append(f"classes: the values of {label!r} in the private file; check that anybody may know the list")
    return names


def _about_records(private: Table, id: str | None, given: int | None, loud: list[str]) -> int:
    """How many records or persons there are, as anybody may know."""
    if given is not None:
        return parameters.whole(given, "records", least=1)
    rows = len(private) if id is None else len({text for text in private.columns[id].texts() if text})
    if rows < 1:
        raise DataError(f"{private.where}: holds no records")
    if id is not None and rows < min(_MIN_IDS, len(private) / 10):
        raise DataError(f"{{id}}: column {id!r} has few different values, so it cannot say whose record it is", id=id)
    unit = 10 ** (len(str(rows)) - 1)
    about = max(1, round(rows / unit)) * unit
    what = "records" if id is None else f"different values of {id!r}"
    loud.append(f"public_record_count: the number of {what}, rounded to {about:,}; give a figure that anybody may know")
    return about


def config_text(found: Start, out: Path) -> str:
    """The config, with comments that say why."""
    lines = [
        f"# Written by `pate init`. Run it with: pate run {out}",
        "# What it costs and can answer, before anything is trained: pate plan " + str(out),
        f"name: {_run_name(out)}",
        "seed: 0                        # of teachers and student, never of the noise",
        "data:",
        f"  source: {source_of(found.private)}",
    ]
    for key, path in (("private", found.private), ("public", found.public), ("test", found.test)):
        if path is not None:  # by its name where it is in the config's folder or below
            here = os.path.relpath(path.resolve(), out.resolve().parent)
            lines.append(f"  {key}: {_plain(str(path.resolve()) if here.startswith('..') else here)}")
    lines.append(f"  label: {_plain(found.label)}")
    lines += _marked(f"  classes: {_plain(found.classes)}", found.loud, "classes")
    why = "none: a person with several rows is protected row by row only"
    if found.id is not None:
        lines.append(f"  id: {_plain(found.id):<25}# all records of one {found.id} are protected together")
        if source_of(found.private) != "csv" and read(found.private).columns[found.id].family == "integer":
            lines.append("  id_type: integer")
    elif not found.candidates:
        lines.append(f"  # id: COLUMN                 # {why}")
    for name in found.candidates:
        remedy = "if this says whose row it is, take the first # and its line in ignore away"
        lines.append(f"  # id: {_plain(name):<23}# {why}; {remedy}")
    lines += _marked(f"  public_record_count: {found.public_record_count}", found.loud, "public_record_count")
    for key, value in vars(found.dialect).items():
        if value != getattr(USUAL, key):
            lines += _marked(f"  {key}: {_plain(value)}", found.loud, key)
    categories = {one.name: list(one.values) for one in found.columns if one.kind == "category"}
    if categories:
        lines.append("  categories:                  # the values in the public file; others count as none of them")
        lines += [f"    {_plain(name)}: {_plain(values)}" for name, values in categories.items()]
    dates = {one.name: one.form for one in found.columns if one.kind == "date"}
    if dates:
        lines.append("  dates:                       # their forms")
        lines += [f"    {_plain(name)}: {_plain(form)}" for name, form in dates.items()]
        lines.append("  date_features:               # an absolute date means nothing in another year; or: years")
        lines += [f"    {_plain(name)}: {_plain(list(made))}" for name, made in found.date_features.items()]
    lines.append("  missing_values:")
    if found.markers:
        written = f"    markers: {_plain(found.markers)}"
        lines.append(f'{written:<31}# mean "missing" in every column, besides empty cells, NA and the like')
    lines.append(
        "    treatment: indicator       # the public median, and a mark where the public file has some missing too"
    )
    if found.ignored:
        lines.append("  ignore:")
        lines += [f"    - {_plain(name):<25}# {why}" for name, why in found.ignored.items()]
    return "\n".join([*lines, *_about_voters(found, out)]) + "\n"


def per_row_warning(found: Start, out: Path) -> str:
    """What to do where no id is taken: each column that may be one, with the lines to change."""
    text = "PER ROW, not per person: no column is called like a person's number, so somebody with several rows is "
    text += "protected row by row only"
    if not found.candidates:
        return f"{text}. If a column says whose record it is, name it with --id"
    lines = [
        f"  if {name!r}, which only the private file has, says whose row it is, add --id {shlex.quote(name)} --force, "
        f"or write `id: {_plain(name)}` in {out} where `# id: {_plain(name)}` is, and delete `- {_plain(name)}` there"
        for name in found.candidates
    ]
    return "\n".join([f"{text}:", *lines])


def _about_voters(found: Start, out: Path) -> list[str]:
    choice, n = found.choice, len(found.classes)
    settings = choice.settings(found.delta)
    lines = [f"# {found.found.why}; `pate plan --records {found.public_record_count} --classes {n} --target-epsilon "]
    lines[0] += f"{found.target_epsilon:g}` shows alternatives"
    lines += choice.written(found.id or "record")
    mechanism = ", ".join(f"{key}: {_plain(value)}" for key, value in settings["mechanism"].items())
    lines.append(f"mechanism: {{{mechanism}}}")
    lines.append("budget:                        # fixed before the first query")
    comments = {"epsilon": "at most this is spent", "delta": "well below one over the number of records"}
    for key, value in settings["budget"].items():
        line = f"  {key}: {_plain(value)}"
        lines.append(f"{line:<31}# {comments[key]}" if key in comments else line)
    lines += _about_ledger(found, out)
    lines += [
        "student:",
        "  name: supervised",
        "  params:",
        "    estimator: sklearn.linear_model.LogisticRegression",
        "    params: {solver: newton-cholesky}",
        "    standardise: true          # a column's unit does not matter",
        "    decision: balanced         # rare classes are recognised as well as frequent ones; else drop it",
        "backend: local                 # leave out to train on a Ray cluster",
    ]
    return lines


def _about_ledger(found: Start, out: Path) -> list[str]:
    """How several runs on the same records keep to one budget, as comments: the command, and the line to take in."""
    budget = shared_budget(found.choice, found.delta, runs=2)
    if budget is None:
        return []
    name = f"{_run_name(out)}-ledger"
    options = f"--epsilon {budget.epsilon:g} --delta {budget.delta:g} --order {budget.order:g}"
    return [
        "  # Runs on the same records add up. A ledger that they share keeps all of them to one ε; this one",
        "  # has room for two runs like this, and is made once:",
        f"  #   pate ledger create {shlex.quote(str(out.parent / name))} {options}",
        "  # Then take in the next line, with the id that this has printed:",
        f"  # ledger: {{path: {_plain(name)}, id: ledger-…}}",
    ]


def _marked(line: str, loud: Sequence[str], key: str) -> list[str]:
    """A line that came from private data says so."""
    why = next((text for text in loud if text.startswith(f"{key}:")), None)
    return [line] if why is None else [f"  # {LOUD}: {why}", line]


def _plain(value: Any) -> str:
    """A value as YAML writes it on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True).strip()
    return text.removesuffix("...").strip()


def _run_name(out: Path) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", out.stem)[:100] or "run"


@contextmanager
def private_errors(
    private: Path, public: Iterable[Path], console: Console, argument: str | None = None
) -> Iterator[None]:
    """Within it, errors are raised as they are at a terminal alone.

    Elsewhere those about `public` files are, and instead of others one that says that something is wrong with the
    private file, and perhaps which argument would do without a look at it.
    """
    problems, places = Problems(), tuple(f"{path}: " for path in public)
    text = (
        f"{private}: no config can be written for it as it is; what is wrong depends on private records, and is said "
    )
    text += "at a terminal only: run this command at one" + (f", or give {{{argument}}}" if argument else "")
    try:
        yield
    except (ConfigError, DataError) as error:
        if console.at_terminal:
            raise
        for one in error.found if isinstance(error, SeveralErrors) else [error]:
            if isinstance(one, DataError) and one.text().startswith(places):
                problems.add(one)
            else:
                problems.add(DataError(text, **({argument: None} if argument else {})))
    try:
        problems.raise_all()
    except DataError as error:
        raise error from None  # no traceback shows the one before


def _check_private_cells(private: Table, columns: Sequence[Seen], console: Console) -> None:
    """Raise DataError where private cells are no numbers or dates: such a record would silently cast no vote.

    The operator at a terminal is told what they hold, as it may be another marker of missing values.
    """
    problems = Problems()
    for one in columns:
        if one.kind == "category":
            continue
        column = private.columns[one.name]
        with problems.gathered():
            wrong = np.flatnonzero(np.isinf(column.numbers(one.form or None, lenient=True)))
            if len(wrong) and isinstance(column.values, list):
                common = Counter(column.values[row] for row in wrong).most_common(_MAX_SHOWN)
                told = ", ".join(f"{printable(text[:_LONGEST_SHOWN])!r} ({times:,} times)" for text, times in common)
                console.info_private(
                    f"{private.where}: column {one.name!r} holds {told}; what means missing, and may be known to, "
                    "can be named with --marker"
                )
            column.numbers(one.form or None)
    problems.raise_all()
