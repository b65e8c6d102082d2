"""`pate init`: from data files to a commented config that runs, and what was guessed on the way.

What goes into the config counts as public, and some of it is published with the student: columns, categories and forms
of dates come from the public file or from the user. Two things may come from the private file, and are said loudly
then, in the config too: the classes, where nobody listed them, and the number of records, rounded to one digit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pate.accounting import parameters
from pate.data.columns import canonical
from pate.data.dates import ABSOLUTE, offered
from pate.data.formats import USUAL, Dialect
from pate.data.problems import Problems
from pate.data.records import Table
from pate.errors import ConfigError, DataError
from pate.inspecting import Seen, guessed_dialect, missing_share, read, seen, source_of
from pate.planning.recommend import Choice, Recommendation, recommend, usual_delta

_LIKE_AN_ID = re.compile(
    r"(^|_|\b)(patient|pat|person|user|customer|cust|client|account|subject|subj|member|id|pid|uid|guid|mrn)"
    r"(_?(id|no|nr|number))?$"
)
_MOST_CLASSES = 20
_FEWEST_IDS = 20
_FEWEST_OF_A_CLASS = 10
_MOST_FEATURES_TO_BE_NEAR_IN = 100
_MANY_TO_LEARN_FROM = 200
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
    about_records: int
    target_epsilon: float
    delta: float
    found: Recommendation
    date_features: dict[str, list[str]] = field(default_factory=dict)
    guesses: list[str] = field(default_factory=list)
    loud: list[str] = field(default_factory=list)

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
    target_epsilon: float = 2.0,
    delta: float | None = None,
) -> Start:
    """Look at the files and choose everything that a config says."""
    for path in (private, public, *([test] if test else [])):
        if not path.is_file():
            raise DataError(f"{path}: no such file")
    for option, shown in (("public", public), ("test", test)):
        if shown is not None and shown.samefile(private):
            text = f"{{{option}}}: is the private file, and what is {option} is treated as known to everybody"
            raise DataError(text, **{option: str(shown)})
    source = source_of(private)
    if source_of(public) != source or (test is not None and source_of(test) != source):
        raise DataError(f"{public}: is not of the kind of {private}; save all as csv or all as parquet")
    files = [path for path in (public, private, test) if path is not None]
    dialect = guessed_dialect(files) if source == "csv" else USUAL
    inside, outside = read(private, dialect), read(public, dialect)
    tested = None if test is None else read(test, dialect)
    guesses: list[str] = []
    loud: list[str] = []
    if dialect != USUAL:
        guesses.append(f"csv files are {dialect}")
    label, id = _label_and_id(inside, outside, label, id, guesses)
    names = _classes(inside, outside, tested, label, classes, guesses, loud)
    special = {label, id}
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
    problems = Problems()
    for one in columns:
        with problems.gathered():
            if one.kind != "category":  # a private record that does not fit would silently cast no vote
                inside.columns[one.name].numbers(one.form or None)
    problems.tell()
    about = _about_records(inside, id, records, loud)
    delta = usual_delta(about) if delta is None else delta
    of_dates = _date_features(outside, columns, guesses)
    width = sum(max(1, len(one.values), len(of_dates.get(one.name, ()))) for one in columns)
    near = width <= _MOST_FEATURES_TO_BE_NEAR_IN
    found = recommend(about, len(names), target_epsilon, delta, len(outside), near)
    return Start(
        private, public, test, dialect, columns, shares, ignored, label, names, id, about, target_epsilon, delta, found,
        of_dates, guesses, loud,
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
    private: Table, public: Table, label: str | None, id: str | None, guesses: list[str]
) -> tuple[str, str | None]:
    """The columns that are named, else guessed: those that the public file has not."""
    for option, name in (("label", label), ("id", id)):
        if name is not None and name not in private.columns:
            from pate.naming import nearest

            text = f"{{{option}}}: {private.where} has no such column; {nearest(name, private.columns)}"
            raise DataError(text, **{option: name})
    own = [name for name in private.columns if name not in public.columns]
    if id is None:
        likely = [name for name in own if name != label and _LIKE_AN_ID.search(name.lower())]
        likely = likely or [name for name in own if name != label and label is not None and _repeats(private, name)]
        if likely:
            id = likely[0]
            guesses.append(f"{id!r} says whose record it is: the guarantee is per {id}, whatever number of records")
        else:
            guesses.append("PER ROW, not per person: no column says whose record it is; if one does, name it with --id")
    if label is None:
        left = [name for name in own if name != id]
        if len(left) != 1:
            some = ", ".join(left or list(private.columns))
            raise DataError(f"{{label}}: say which column is to be predicted, one of {some}", label=None)
        label = left[0]
        guesses.append(f"{label!r} is what is to be predicted: the public file has no such column")
    if label == id:
        raise ConfigError("{label}: names the same column as {id}", label=label, id=id)
    return label, id


def _repeats(table: Table, name: str) -> bool:
    """Whether a column that the public file has not may say whose record it is: many values, several records each.

    If it does not, to protect all records of a value together costs accuracy and no privacy.
    """
    texts = [text for text in table.columns[name].texts() if text]
    distinct = len(set(texts))
    return len(texts) / 50 < distinct < 0.95 * len(texts) and distinct >= _FEWEST_IDS


def _classes(
    private: Table,
    public: Table,
    test: Table | None,
    label: str,
    given: Sequence[str],
    guesses: list[str],
    loud: list[str],
) -> list[str]:
    """As the user lists them, else as a public file has them, else as the private one has: said loudly."""
    if given:
        if len(given) < 2:
            raise ConfigError("{classes}: at least two are needed, with a comma between", classes=",".join(given))
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
            if 2 <= len(names) <= _MOST_CLASSES:
                guesses.append(f"classes {', '.join(names)} are those of the {what} file")
                return names
    texts = [canonical(text) for text in private.columns[label].texts()]
    names = sorted(set(texts) - {""})
    rare = [name for name in names if texts.count(name) < _FEWEST_OF_A_CLASS] if len(names) <= _MOST_CLASSES else names
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
    if id is not None and rows < min(_FEWEST_IDS, len(private) / 10):
        raise DataError(f"{{id}}: column {id!r} has few different values, so it cannot say whose record it is", id=id)
    unit = 10 ** (len(str(rows)) - 1)
    about = max(1, round(rows / unit)) * unit
    what = "records" if id is None else f"different values of {id!r}"
    loud.append(f"about_records: the number of {what}, rounded to {about:,}; give a figure that anybody may know")
    return about


def config_text(found: Start, out: Path) -> str:
    """The config, with comments that say why."""
    names = {key: _shown_from(path, out) for key, path in (("private", found.private), ("public", found.public))}
    if found.test is not None:
        names["test"] = _shown_from(found.test, out)
    lines = [
        f"# Written by `pate init`. Run it with: pate run {out}",
        "# What it costs and can answer, before anything is trained: pate plan " + str(out),
        f"name: {_run_name(out)}",
        "seed: 0                        # of teachers and student, never of the noise",
        "data:",
        f"  source: {source_of(found.private)}",
        *(f"  {key}: {_plain(name)}" for key, name in names.items()),
        f"  label: {_plain(found.label)}",
        *_marked(f"  classes: {_plain(found.classes)}", found.loud, "classes"),
    ]
    if found.id is not None:
        lines.append(f"  id: {_plain(found.id):<25}# all records of one {found.id} are protected together")
        lines += [f"  id_type: {kind}" for kind in [_id_type(found)] if kind != "text"]
    else:
        lines.append("  # id: COLUMN                 # none: a person with several rows is protected row by row only")
    lines += _marked(f"  about_records: {found.about_records}", found.loud, "about_records")
    for key, value in vars(found.dialect).items():
        if value != getattr(USUAL, key):
            lines.append(f"  {key}: {_plain(value)}")
    categories = {one.name: list(one.values) for one in found.columns if one.kind == "category"}
    if categories:
        lines.append("  categories:                  # the values in the public file; others count as none of them")
        lines += [f"    {_plain(name)}: {_plain(values)}" for name, values in categories.items()]
    lines += _about_dates(found)
    lines.append(
        "  missing: indicator           # gaps get the public median, and a mark where the public file has gaps too"
    )
    if found.ignored:
        lines.append("  ignore:")
        lines += [f"    - {_plain(name):<25}# {why}" for name, why in found.ignored.items()]
    lines += _about_voters(found)
    return "\n".join(lines) + "\n"


def _about_dates(found: Start) -> list[str]:
    """Forms, and what dates become: what means the same in another year."""
    dates = {one.name: one.form for one in found.columns if one.kind == "date"}
    if not dates:
        return []
    lines = ["  dates:                       # their forms"]
    lines += [f"    {_plain(name)}: {_plain(form)}" for name, form in dates.items()]
    lines.append("  date_features:               # an absolute date means nothing in another year; or: years")
    return lines + [f"    {_plain(name)}: {_plain(list(made))}" for name, made in found.date_features.items()]


def _about_voters(found: Start) -> list[str]:
    choice, n = found.choice, len(found.classes)
    settings = choice.settings(found.delta)
    lines = [f"# {found.found.why}; `pate plan --records {found.about_records} --classes {n} --target-epsilon "]
    lines[0] += f"{found.target_epsilon:g}` shows alternatives"
    balanced = "class_weight: balanced"
    model = f"{{solver: newton-cholesky, {balanced}}}"
    if choice.voters == "neighbours":
        lines += [
            f"voters: neighbours             # every {found.id or 'record'} has one vote, near itself",
            "neighbours:",
            f"  queries: {choice.asked:<20}# cells of public examples, about {choice.records_each} votes each",
            "  standardise: true            # a column's unit does not matter",
            "  soft: true                   # cells have shares of classes, not one label",
            "  refine: 5                    # which examples of a cell those are, the student before says",
        ]
        student = f"{{estimator: sklearn.linear_model.LogisticRegression, params: {model}}}"
    else:
        scaled = "[scale, {name: sklearn.preprocessing.StandardScaler}]"
        logistic = f"[model, {{name: sklearn.linear_model.LogisticRegression, params: {model}}}]"
        lines += [
            f"n_teachers: {choice.n_teachers:<19}# about {choice.records_each} records each",
            "teachers:",
        ]
        lines += ["  - name: sklearn.pipeline.Pipeline", f"    params: {{steps: [{scaled}, {logistic}]}}"]
        if choice.records_each >= _MANY_TO_LEARN_FROM:
            lines += ["  - name: sklearn.ensemble.HistGradientBoostingClassifier", "    params: {max_iter: 50}"]
        student = f"{{estimator: sklearn.pipeline.Pipeline, params: {{steps: [{scaled}, {logistic}]}}}}"
    mechanism = ", ".join(f"{key}: {_plain(value)}" for key, value in settings["mechanism"].items())
    lines.append(f"mechanism: {{{mechanism}}}")
    lines.append("budget:                        # fixed before the first query")
    comments = {"epsilon": "at most this is spent", "delta": "well below one over the number of records"}
    for key, value in settings["budget"].items():
        line = f"  {key}: {_plain(value)}"
        lines.append(f"{line:<31}# {comments[key]}" if key in comments else line)
    lines += [
        "student:                       # class_weight: rare classes count as much as frequent ones; else drop it",
        "  name: supervised",
        f"  params: {student}",
        "backend: local                 # leave out to train on a Ray cluster",
    ]
    return lines


def _marked(line: str, loud: Sequence[str], key: str) -> list[str]:
    """A line that came from private data says so."""
    why = next((text for text in loud if text.startswith(f"{key}:")), None)
    return [line] if why is None else [f"  # {LOUD}: {why}", line]


def _id_type(found: Start) -> str:
    """Whole numbers, where a parquet file says so."""
    if source_of(found.private) == "csv":
        return "text"
    family = read(found.private).columns[found.id or ""].family
    return "integer" if family == "integer" else "text"


def _plain(value: Any) -> str:
    """A value as YAML writes it on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True).strip()
    return text.removesuffix("...").strip()


def _run_name(out: Path) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", out.stem)[:100] or "run"


def _shown_from(path: Path, out: Path) -> str:
    """A file by its name where it is in the config's folder or below, else by its whole path."""
    here = os.path.relpath(path.resolve(), out.resolve().parent)
    return str(path.resolve()) if here.startswith("..") else here
