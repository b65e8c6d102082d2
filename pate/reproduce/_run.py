"""Run the rows: teachers are trained once per seed, then every row is an ordinary run on their votes.

Rows in which records vote themselves are ordinary runs on the records; what is slow about those, the records' public
features, is computed once for all seeds. Rows of baselines are ordinary runs too. What is finished is not run again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pate import pipeline
from pate.baselines import nonprivate_accuracy
from pate.baselines._run import run_baseline
from pate.boundary._aggregator import Aggregator, query_ids, votes_collected
from pate.cluster._session import joined
from pate.config import BaselineConfig, Config, Model
from pate.data._sources import load
from pate.data.private import PrivateData, Records, Votes, prepare_data, records_of
from pate.data.public import PublicData
from pate.errors import DataError, RunError
from pate.ledger import Ledger
from pate.planning.costs import published_epsilon
from pate.reproduce import Row, Study
from pate.reproduce import _table as table
from pate.runs._console import Console
from pate.runs._files import RESULTS, TABLE, RunFiles
from pate.runs.context import RunContext, RunOptions, begin_run
from pate.storage._files import locked, make_folder, write_arrays, write_atomically
from pate.teachers import recipe_of
from pate.voters import voters_of
from pate.voters.teachers import TeachersConfig

FIGURE = "figure.png"
_FIGURE_EXAMPLES = 1000
_PRIVATE = "do not publish"

_Both = tuple[PublicData, PrivateData]
"""The data of a row."""


@dataclass(frozen=True)
class Reproduction:
    """All figures: `public` may leave, `private` may not."""

    public: dict[str, Any]
    private: dict[str, Any]


def reproduce(
    study: Study, out: Path, seeds: int, *, data_dir: Path | None, address: str | None, console: Console
) -> Reproduction:
    """Run what is missing in `out`, and collect all results there; after a stop, call it again to go on."""
    make_folder(out)
    if study.panels:
        return Reproduction(_baselines(study, out, seeds, data_dir, address, console), {})
    private = out / "private"
    make_folder(private, 0o700)
    loaded: dict[str, _Both] = {}

    def data_of(config: Config) -> _Both:
        key, voters = f"{config.voters} {config.data.model_dump_json()}", voters_of(config)
        if key not in loaded:
            found = voters.load(data_dir, Path(), by_workers=False)
            data, records = prepare_data(*found, voters.keeps_unusable_records)
            if not data.benchmark or data.y_public is None or data.y_test is None:
                raise DataError(f"{study.data}: is not a benchmark with labels, there is nothing to compare")
            loaded[key] = data, records
        return loaded[key]

    with ExitStack() as stack:
        stack.enter_context(_locked(private / "lock", out))
        first = study.rows[0].config(0) if study.rows else study.teachers(study.figure_teachers[0], 0)
        data, records = data_of(first)
        stack.enter_context(joined(address, first.ray))

        @cache
        def start_ray() -> None:
            from pate.cluster._session import ray_session

            with console.working("starting Ray"):
                stack.enter_context(ray_session(address, first.ray))

        nonprivate = _nonprivate(study, data, records, private, console)
        outcomes: dict[str, list[dict[str, Any]]] = {row.name: [] for row in study.rows}
        ensembles: list[dict[str, Any]] = []
        for seed in range(seeds):
            known = _Votes(study, data, records, seed, private, start_ray, console)
            for row in study.rows:
                console.info(f"— {study.data}: {row.name}, seed {seed} ({seed + 1} of {seeds})")
                outcomes[row.name].append(_run_row(row, row.config(seed), known, data_of, out, console))
            ensembles += known.figures()
        result = _collect(study, outcomes, ensembles, nonprivate, data.notes, seeds)
        _write(result, out, private, study.data)
        return result


@contextmanager
def _locked(lock: Path, out: Path) -> Iterator[None]:
    try:
        with locked(lock, wait=False):
            yield
    except BlockingIOError:
        raise RunError(f"{out}: another pate is at work there; wait for it or choose another place") from None


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


def _run_row(
    row: Row, config: Config, known: _Votes, data_of: Callable[[Config], _Both], out: Path, console: Console
) -> dict[str, Any]:
    """The figures of the row's run, finished now if it was not before; and of the votes that it was on, if any."""
    own = config if row.has_own_config else row.config_on_votes(config.seed)
    data, private = data_of(config) if row.has_own_config else (known.data, known.votes(config))
    folder = out / "rows" / f"{row.name}-seed-{own.seed}-{own.digest()[:8]}"
    run = RunFiles(folder)
    if not run.report_file.exists():
        kept = out / "private" / "features"
        pipeline.run(own, folder, public=data, private=private, console=console, resume="auto", feature_cache=kept)
    report, seconds = (json.loads(file.read_text()) for file in (run.report_file, run.seconds_file))
    found = {"folder": str(folder.relative_to(out)), "report": report}
    if row.has_own_config:  # nothing of it depends on votes but what is noisy
        return found | {"epsilon": None, "published_bound": None, "seconds": seconds, "votes": {}}
    assert isinstance(private, Votes)
    assert data.y_public is not None
    asked = known.asked[config.name][: report["queries"]["asked"]]
    votes = private.counts[asked]
    return found | {
        "epsilon": json.loads(run.epsilon_file.read_text()).get("epsilon_data_dependent"),
        "published_bound": published_epsilon(config.build_mechanism(), votes, config.budget.delta),
        "seconds": known.seconds(config) | seconds,
        "votes": table.vote_figures(votes, data.y_public[asked]),
    }


def _collect(
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
        first = reports[0]
        selection = None if row.has_own_config else row.content["budget"].get("query_selection", "given")
        public_rows.append(
            {
                "row": row.name,
                "paper": row.paper,
                "differs": "; ".join([row.differs, *notes]),
                "mechanism": first["mechanism"],
                "teachers": first["voters"]["n_teachers"],
                "query_selection": selection,
                "delta": first["privacy"]["delta"],
                "epsilon": first["privacy"]["epsilon"],
                "epsilon_added_or_removed": first["privacy"].get("epsilon_added_or_removed"),
                "epsilon_sanitised": _spread([(r["privacy"]["sanitised"] or {}).get("epsilon") for r in reports]),
                "asked": _spread([r["queries"]["asked"] for r in reports]),
                "answered": _spread([r["queries"]["answered"] for r in reports]),
                "label_accuracy": _spread([r["benchmark"]["label_accuracy"] for r in reports]),
                "student_accuracy": _spread([r["student"]["accuracy"] for r in reports]),
                "test_examples": first["student"]["test_examples"],
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
    return Reproduction(head | public, {"private": _PRIVATE} | head | {"rows": private_rows, "ensembles": ensembles})


def _spread(values: list[Any]) -> dict[str, Any] | None:
    """Mean and standard deviation over the seeds, and each of them."""
    if any(value is None for value in values):
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "deviation": deviation, "each": values}


def _write(result: Reproduction, out: Path, private: Path, data: str) -> None:
    _write_tables(out, result.public, table.public_lines(result.public), 0o644)
    _write_tables(private, result.private, table.private_lines(result.public, result.private), 0o600)
    if result.private["ensembles"]:
        shown = [ensemble for ensemble in result.private["ensembles"] if ensemble.get("seed", 0) == 0]
        plot = table.draw(shown, data)
        write_atomically(private / "figures_2_and_3.png", lambda path: path.write_bytes(plot))


def _write_tables(folder: Path, content: dict[str, Any], lines: Sequence[str], mode: int) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_atomically(folder / RESULTS, lambda path: path.write_text(text), mode=mode)
    write_atomically(folder / TABLE, lambda path: path.write_text("\n".join(lines) + "\n"), mode=mode)


# Votes


class _Ensemble(NamedTuple):
    """Which teachers voted: how many, and the share of the records that each saw if they were sampled."""

    n_teachers: int
    rate: float | None = None


def _ensemble(config: Any) -> _Ensemble:
    return _Ensemble(config.n_teachers, config.build_mechanism().split(config.n_teachers).rate)


class _Votes:
    """The votes of one seed's teachers on every example that some row asks about.

    `asked` are the public examples that each row's run asks about, by the name of its config, in their order.
    """

    def __init__(
        self,
        study: Study,
        data: PublicData,
        known: PrivateData,
        seed: int,
        private: Path,
        start_ray: Callable[[], None],
        console: Console,
    ) -> None:
        self.data, self._known, self._seed = data, known, seed
        self._private, self._start_ray, self._console = private, start_ray, console
        self.asked: dict[str, NDArray[np.int64]] = {}
        self._wanted: dict[_Ensemble, NDArray[np.int64]] = {}
        self._taught: dict[_Ensemble, Any] = {}
        first = np.arange(min(_FIGURE_EXAMPLES, len(data.X_public)))
        numbered = replace(data, public_rows=np.arange(len(data.X_public)))
        configs: list[Any] = [row.config(seed) for row in study.rows if not row.has_own_config]
        for config in configs:
            order = voters_of(config).order_public(numbered).public_rows
            assert order is not None
            self.asked[config.name] = order[: config.budget.max_queries]
            ensemble = _ensemble(config)
            self._wanted[ensemble] = np.union1d(self._wanted.get(ensemble, first), self.asked[config.name])
            self._taught[ensemble] = study.teachers(config.n_teachers, seed) if ensemble.rate is None else config
        for n_teachers in study.figure_teachers if seed == 0 else ():  # ensembles that only the figures need
            self._wanted.setdefault(_Ensemble(n_teachers), first)
            self._taught.setdefault(_Ensemble(n_teachers), study.teachers(n_teachers, seed))

    def votes(self, config: Config) -> Votes:
        """The votes of the config's teachers; those that no row asks about stay empty."""
        if isinstance(self._known, Votes):
            return self._known
        votes = np.zeros((len(self.data.X_public), self.data.n_classes), dtype=np.int64)
        votes[self._wanted[_ensemble(config)]] = self._count(_ensemble(config))[0]
        return Votes(votes)

    def seconds(self, config: Config) -> dict[str, float]:
        """How long it took to train the config's teachers and to count their votes."""
        return {} if isinstance(self._known, Votes) else self._count(_ensemble(config))[1]

    def figures(self) -> list[dict[str, Any]]:
        """Figures 2 and 3 on the first public examples, for each size of ensemble."""
        y = self.data.y_public
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
        """Histograms int[rows, classes] of the ensemble on the examples that are wanted, and the seconds it took.

        Counted once and stored below `private/`, under a digest of what the teachers depend on; an interrupted
        training is continued.
        """
        config, rows = self._taught[ensemble], self._wanted[ensemble]
        folder = self._private / f"teachers-{config.n_teachers}-seed-{config.seed}-{_digest(config, rows)}"
        stored, times = folder / "votes.npy", folder / "seconds.json"
        if not (stored.exists() and times.exists()):
            self._start_ray()
            X, known = self.data.X_public[rows], records_of(self._known)
            votes, seconds = _collect_votes(config, self.data, known, X, folder, self._console)
            text = json.dumps({"private": _PRIVATE, **seconds})
            write_atomically(times, lambda path: path.write_text(text))
            write_arrays(stored, votes)
        seconds = json.loads(times.read_text())
        return np.load(stored, allow_pickle=False), {name: seconds[name] for name in ("train", "vote")}


def _digest(config: TeachersConfig, rows: NDArray[np.int64]) -> str:
    content = config.model_dump(
        mode="json",
        include={"data", "teachers", "n_teachers", "seed"},
        exclude={"teachers": {"__all__": {"resources"}}},
    )
    if (split := config.build_mechanism().split(config.n_teachers)).rate is not None:  # records are sampled
        content["split"] = [split.rate, split.max_parts]
    text = json.dumps(content, sort_keys=True).encode()
    return hashlib.sha256(text + rows.astype("<i8").tobytes()).hexdigest()[:12]


def _collect_votes(
    config: TeachersConfig, data: PublicData, known: Records, X: NDArray, folder: Path, console: Console
) -> tuple[NDArray[np.int64], dict[str, float]]:
    """Votes on `X`, by the stage of a run that trains teachers and collects them; and the seconds of that.

    It ends before anything is released.
    """
    context = RunContext(config, folder, RunOptions(resume="auto"), console, data)
    voters: Any = voters_of(config)
    with begin_run(folder, config, context.options) as run:
        context.run = run
        aggregator = Aggregator(config.build_mechanism(), _no_ledger, run.private, run.key, config.n_teachers)
        is_done = votes_collected(X, run.private, run.key)
        voters.collect_votes(context, known, aggregator, X, is_done)
        votes = np.array([aggregator._votes[query] for query in query_ids(X, run.key)])
        for done in run.teacher_folders():
            shutil.rmtree(done / "teachers", ignore_errors=True)
    return votes, {name: context.clock.seconds.get(name, 0.0) for name in ("train", "vote")}


def _no_ledger() -> Ledger:
    raise AssertionError("nothing is released here")


# Papers about baselines


def _baselines(
    study: Study, out: Path, seeds: int, data_dir: Path | None, address: str | None, console: Console
) -> dict[str, Any]:
    loaded: dict[str, _Both] = {}

    def data_of(config: BaselineConfig) -> _Both:
        key = config.data.model_dump_json()
        if key not in loaded:
            loaded.clear()  # one at a time: some take gigabytes
            loaded[key] = load(config.data, data_dir, Path(), keep_missing=True)
        data, private = loaded[key]
        if not data.benchmark or data.y_test is None:
            raise DataError(f"{study.data}: {config.data.source} is no benchmark with labels")
        return (replace(data, y_public=None) if study.public_was_seen else data), private

    reports: dict[str, list[dict[str, Any]]] = {row.name: [] for row in study.rows}
    with _locked(out / "lock", out):
        for seed in range(seeds):
            for number, row in enumerate(study.rows, start=1):
                console.info(f"— {study.data}: {row.name} ({number} of {len(study.rows)}), seed {seed + 1} of {seeds}")
                config = row.config(seed)
                folder = out / "rows" / f"{row.name}-seed-{seed}-{config.digest()[:8]}"
                if not RunFiles(folder).report_file.exists():
                    data, private = data_of(config)
                    run_baseline(
                        config,
                        folder,
                        address=address,
                        resume="auto",
                        console=console,
                        public=data,
                        private=private,
                        curve=row.curve,
                    )
                report = json.loads(RunFiles(folder).report_file.read_text())
                reports[row.name].append(report | {"folder": str(folder.relative_to(out))})
    outcomes = [_baseline_outcome(row, reports[row.name]) for row in study.rows]
    result = {"study": study.data, "source": study.source, "seeds": seeds, "rows": outcomes}
    _write_tables(out, result, table.baseline_lines(result), 0o644)
    picture = table.draw_baselines(study.panels, outcomes)
    write_atomically(out / FIGURE, lambda path: path.write_bytes(picture), mode=0o644)
    return result


def _baseline_outcome(row: Row, reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a row: accuracy on all examples that were not trained on; public ones may have labels too."""
    first, right = reports[0], []
    n_test, n_public = first["student"]["test_examples"], first["benchmark"].get("public_examples") or 0
    for report in reports:
        accuracy, public = report["student"]["accuracy"], report["benchmark"]["public_accuracy"]
        right.append(accuracy if public is None else (n_public * public + n_test * accuracy) / (n_public + n_test))
    return {
        "row": row.name,
        "panel": row.panel,
        "line": row.line,
        "at": row.at,
        "paper": row.paper,
        "differs": row.differs,
        "epsilon": first["privacy"]["epsilon"],
        "delta": first["privacy"]["delta"],
        "planned": first["planned"],
        "accuracy": statistics.fmean(right),
        "deviation": statistics.stdev(right) if len(right) > 1 else None,
        "each": right,
        "tested_on": n_public + n_test,
        "curve": first["benchmark"].get("curve"),
        "runs": [report["folder"] for report in reports],
    }
