"""Run the rows: teachers are trained once per seed, then every row is an ordinary run on their votes.

Rows in which records vote themselves are ordinary runs on the records; what is slow about those, the records' public
features, is worked out once for all seeds.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pate import pipeline
from pate.baselines.nonprivate import nonprivate_accuracy
from pate.cluster.session import joined
from pate.config import Config, Model, RaySettings
from pate.data.private import PrivateData, Records, Votes, records_of
from pate.data.public import PublicData
from pate.errors import DataError, RunError
from pate.planning.costs import published_epsilon
from pate.reproduce import table
from pate.reproduce.rows import Row, Study
from pate.reproduce.teaching import votes_of
from pate.runs.console import Console
from pate.runs.files import RESULTS, TABLE, RunFiles
from pate.storage.files import locked, make_folder, write_atomically
from pate.teachers import recipe_of
from pate.voters import voters_of

_FIGURE_EXAMPLES = 1000
PRIVATE = "do not publish"


@dataclass(frozen=True)
class Reproduction:
    """All figures: `public` may leave, `private` may not."""

    public: dict[str, Any]
    private: dict[str, Any]


def reproduce(
    study: Study, out: Path, seeds: int, *, data_dir: Path | None, address: str | None, console: Console
) -> Reproduction:
    """Run what is missing in `out`, and collect all results there; after a stop, call it again to go on."""
    private = out / "private"
    make_folder(out)
    make_folder(private, 0o700)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(private / "lock", wait=False))
        except BlockingIOError:
            raise RunError(f"{out}: another pate is at work there; wait for it or choose another place") from None
        sources = _Sources(study, data_dir)
        first = study.rows[0].config(0) if study.rows else study.teachers(study.figure_teachers[0], 0)
        (data, records), settings = sources.of(first), first.ray
        stack.enter_context(joined(address, settings))
        session = _Session(stack, address, settings, console)
        nonprivate = _nonprivate(study, data, records, private, console)
        outcomes: dict[str, list[dict[str, Any]]] = {row.name: [] for row in study.rows}
        ensembles: list[dict[str, Any]] = []
        for seed in range(seeds):
            known = _Votes(study, data, records, seed, private, session)
            for row in study.rows:
                console.info(f"— {study.data}: {row.name}, seed {seed} ({seed + 1} of {seeds})")
                if row.has_own_config:
                    outcome = _run_on_records(row, seed, sources.of(row.config(seed)), out, console)
                else:
                    outcome = _run_on_votes(row, seed, known, out, session)
                outcomes[row.name].append(outcome)
            ensembles += known.figures()
        result = _together(study, outcomes, ensembles, nonprivate, data.notes, seeds)
        _write(result, out, private, study.data)
        return result


class _Session:
    """Ray, started when something first needs it and kept for all the rest."""

    def __init__(self, stack: ExitStack, address: str | None, settings: RaySettings, console: Console) -> None:
        self._stack, self._address, self._settings, self._up = stack, address, settings, False
        self.console = console

    def start(self) -> None:
        from pate.cluster.session import ray_session

        if not self._up:
            with self.console.working("starting Ray"):
                self._stack.enter_context(ray_session(self._address, self._settings))
            self._up = True


class _Ensemble(NamedTuple):
    """Which teachers voted: how many, and the share of the records that each saw if they were sampled."""

    n_teachers: int
    rate: float | None = None


def _ensemble(config: Any) -> _Ensemble:
    return _Ensemble(config.n_teachers, config.build_mechanism().split(config.n_teachers).rate)


class _Votes:
    """The votes of one seed's teachers on every example that some row asks about."""

    def __init__(
        self, study: Study, data: PublicData, known: PrivateData, seed: int, private: Path, session: _Session
    ) -> None:
        self._study, self._data, self._known, self._seed = study, data, known, seed
        self.data = data
        self._private, self._session = private, session
        self._asked: dict[str, NDArray[np.int64]] = {}
        self._wanted: dict[_Ensemble, NDArray[np.int64]] = {}
        self._taught: dict[_Ensemble, Any] = {}
        first = np.arange(min(_FIGURE_EXAMPLES, len(data.X_public)))
        configs: list[Any] = [row.config(seed) for row in study.rows if not row.has_own_config]
        for config in configs:
            order = voters_of(config).order_public(_numbered(data)).public_rows
            assert order is not None
            self._asked[config.name] = order[: config.budget.max_queries]
            ensemble = _ensemble(config)
            before = self._wanted.get(ensemble, first)
            self._wanted[ensemble] = np.union1d(before, self._asked[config.name])
            self._taught[ensemble] = study.teachers(config.n_teachers, seed) if ensemble.rate is None else config
        for n_teachers in study.figure_teachers if seed == 0 else ():  # ensembles that only the figures need
            self._wanted.setdefault(_Ensemble(n_teachers), first)
            self._taught.setdefault(_Ensemble(n_teachers), study.teachers(n_teachers, seed))

    def votes(self, config: Config) -> Votes:
        """The votes of the config's teachers; those that no row asks about stay empty."""
        if isinstance(self._known, Votes):
            return self._known
        rows = self._wanted[_ensemble(config)]
        votes = np.zeros((len(self._data.X_public), len(self._data.classes)), dtype=np.int64)
        votes[rows] = self._count(_ensemble(config))[0]
        return Votes(votes)

    def asked(self, config: Config, most: int) -> NDArray[np.int64]:
        """Which public examples the row's run asked about, the first `most`."""
        return self._asked[config.name][:most]

    def seconds(self, config: Config) -> dict[str, float]:
        return {} if isinstance(self._known, Votes) else self._count(_ensemble(config))[1]

    def figures(self) -> list[dict[str, Any]]:
        """Figures 2 and 3 on the first public examples, for each size of ensemble."""
        y = self._data.y_public
        if y is None or not self._wanted:
            return []
        first = min(_FIGURE_EXAMPLES, len(y))
        if isinstance(self._known, Votes):
            return [table.vote_figures(self._known.counts[:first], y[:first])] if self._seed == 0 else []
        return [
            {"seed": self._seed, **table.vote_figures(self._count(ensemble)[0][:first], y[:first])}
            for ensemble in sorted(one for one in self._wanted if one.rate is None)
        ]  # the first rows of the union are the first examples

    def _count(self, ensemble: _Ensemble) -> tuple[NDArray[np.int64], dict[str, float]]:
        config, rows = self._taught[ensemble], self._wanted[ensemble]
        known = records_of(self._known)
        return votes_of(config, self._data, known, rows, self._private, self._session.start, self._session.console)


def _numbered(data: PublicData) -> PublicData:
    return replace(data, public_rows=np.arange(len(data.X_public)))


class _Sources:
    """The data of rows, each source loaded once."""

    def __init__(self, study: Study, data_dir: Path | None) -> None:
        self._study, self._data_dir, self._loaded = study, data_dir, dict[str, tuple[PublicData, PrivateData]]()

    def of(self, config: Config) -> tuple[PublicData, PrivateData]:
        key = f"{config.voters} {config.data.model_dump_json()}"
        if key not in self._loaded:
            data, private = voters_of(config).load(self._data_dir, Path(), by_workers=False)
            if not data.benchmark or data.y_public is None or data.y_test is None:
                raise DataError(f"{self._study.data}: is not a benchmark with labels, there is nothing to compare")
            self._loaded[key] = data, private
        return self._loaded[key]


def _nonprivate(study: Study, data: PublicData, known: PrivateData, private: Path, console: Console) -> float | None:
    """Accuracy without privacy, trained once."""
    if not study.nonprivate or not isinstance(known, Records):
        return None
    model = Model.model_validate(study.nonprivate)
    digest = hashlib.sha256(model.model_dump_json().encode()).hexdigest()[:12]
    stored = private / f"nonprivate-{digest}.json"
    if not stored.exists():
        accuracy = nonprivate_accuracy(recipe_of(model, "nonprivate"), data, known, 0, console)
        write_atomically(stored, lambda path: path.write_text(json.dumps({"accuracy": accuracy})))
    return float(json.loads(stored.read_text())["accuracy"])


def _finished(
    row: Row, config: Config, data: PublicData, private: PrivateData, out: Path, console: Console
) -> tuple[RunFiles, dict[str, Any]]:
    """The row's run in a directory of its own, finished now if it was not before, and what every row tells of it."""
    folder = out / "rows" / f"{row.name}-seed-{config.seed}-{config.digest()[:8]}"
    run = RunFiles(folder)
    if not run.report_file.exists():
        kept = out / "private" / "features"
        pipeline.run(config, folder, public=data, private=private, console=console, resume="auto", feature_cache=kept)
    return run, {"folder": str(folder.relative_to(out)), "report": json.loads(run.report_file.read_text())}


def _run_on_records(
    row: Row, seed: int, data: tuple[PublicData, PrivateData], out: Path, console: Console
) -> dict[str, Any]:
    """The figures of a run by a config of its own: nothing of it depends on votes but what is noisy."""
    run, told = _finished(row, row.config(seed), *data, out, console)
    seconds = json.loads(run.seconds_file.read_text())
    return told | {"epsilon": None, "published_bound": None, "seconds": seconds, "votes": {}}


def _run_on_votes(row: Row, seed: int, known: _Votes, out: Path, session: _Session) -> dict[str, Any]:
    """The figures of a run on the votes of teachers, and of those votes."""
    config = row.config(seed)
    data, private = known.data, known.votes(config)
    run, told = _finished(row, row.config_on_votes(seed), data, private, out, session.console)
    report = told["report"]
    epsilon, seconds = (json.loads(file.read_text()) for file in (run.epsilon_file, run.seconds_file))
    rows = known.asked(config, report["queries"]["asked"])
    assert data.y_public is not None
    votes = private.counts[rows]
    return told | {
        "epsilon": epsilon.get("epsilon_data_dependent"),
        "published_bound": published_epsilon(config.build_mechanism(), votes, config.budget.delta),
        "seconds": known.seconds(config) | seconds,
        "votes": table.vote_figures(votes, data.y_public[rows]),
    }


def _together(
    study: Study,
    outcomes: dict[str, list[dict[str, Any]]],
    ensembles: list[dict[str, Any]],
    nonprivate: float | None,
    notes: Sequence[str],
    seeds: int,
) -> Reproduction:
    public_rows, private_rows = [], []
    for row in study.rows:
        found = outcomes[row.name]
        reports = [outcome["report"] for outcome in found]
        public_rows.append(
            {
                "row": row.name,
                "paper": row.paper,
                "differs": "; ".join([row.differs, *notes]),
                "mechanism": reports[0]["mechanism"],
                "teachers": reports[0]["voters"]["n_teachers"],
                "query_selection": None
                if row.has_own_config
                else row.content["budget"].get("query_selection", "given"),
                "delta": reports[0]["privacy"]["delta"],
                "epsilon": reports[0]["privacy"]["epsilon"],
                "epsilon_added_or_removed": reports[0]["privacy"].get("epsilon_added_or_removed"),
                "epsilon_sanitised": _spread([(r["privacy"]["sanitised"] or {}).get("epsilon") for r in reports]),
                "asked": _spread([r["queries"]["asked"] for r in reports]),
                "answered": _spread([r["queries"]["answered"] for r in reports]),
                "label_accuracy": _spread([r["benchmark"]["label_accuracy"] for r in reports]),
                "student_accuracy": _spread([r["student"]["accuracy"] for r in reports]),
                "test_examples": reports[0]["student"]["test_examples"],
                "runs": [outcome["folder"] for outcome in found],
            }
        )
        private_rows.append(
            {
                "row": row.name,
                "epsilon_data_dependent": _spread([outcome["epsilon"] for outcome in found]),
                "epsilon_by_the_paper's_bound": _spread([outcome["published_bound"] for outcome in found]),
                "vote_accuracy": _spread([outcome["votes"].get("plurality_accuracy") for outcome in found]),
                "vote_gap": _spread([outcome["votes"].get("gap") for outcome in found]),
                "seconds": {name: _spread([o["seconds"].get(name) for o in found]) for name in found[0]["seconds"]},
            }
        )
    head = {"data": study.data, "seeds": seeds}
    public = {
        "note": "Public data plays private here. Each row stands by itself: runs on the same private data add up.",
        "nonprivate_accuracy": nonprivate,
        "nonprivate_accuracy_of_the_paper": study.nonprivate_of_paper,
        "rows": public_rows,
    }
    return Reproduction(head | public, {"private": PRIVATE} | head | {"rows": private_rows, "ensembles": ensembles})


def _spread(values: list[Any]) -> dict[str, Any] | None:
    """Mean and standard deviation over the seeds, and each of them."""
    if any(value is None for value in values):
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "deviation": deviation, "each": values}


def _write(result: Reproduction, out: Path, private: Path, data: str) -> None:
    for folder, content, mode in ((out, result.public, 0o644), (private, result.private, 0o600)):
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        write_atomically(folder / RESULTS, lambda path, t=text: path.write_text(t), mode=mode)  # type: ignore[misc]
    lines = "\n".join(table.public_lines(result.public)) + "\n"
    write_atomically(out / TABLE, lambda path: path.write_text(lines), mode=0o644)
    inside = "\n".join(table.private_lines(result.public, result.private)) + "\n"
    write_atomically(private / TABLE, lambda path: path.write_text(inside))
    if result.private["ensembles"]:
        shown = [ensemble for ensemble in result.private["ensembles"] if ensemble.get("seed", 0) == 0]
        plot = table.draw(shown, data)
        write_atomically(private / "figures_2_and_3.png", lambda path: path.write_bytes(plot))
