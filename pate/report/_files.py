"""The report of a run in its files, on a terminal and in experiment trackers, from what the run has stored.

Neither data nor Ray nor training is needed. A tracker is given what may leave the run alone; MLflow is imported only
where it is asked for. `private/report.html` has votes, data-dependent costs and teachers' accuracies: for the operator.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from pate.config import read_yaml
from pate.errors import RunError
from pate.report import _plots as plots
from pate.report._pages import Content, Fact, Page, PageBlock, PageTable, Plot, Section, percent, small
from pate.report._plots import as_png, as_svg
from pate.report.schema import AnyReport, BaselineReport, EpsilonCurves, Report, published_settings, published_yaml
from pate.report.sections import _pipeline as pipeline
from pate.report.sections import _privacy as privacy
from pate.report.sections._groups import class_parts, group_parts, groups
from pate.report.sections._privacy import curves_table
from pate.report.sections._quality import classes, headline, plane, quality, skewed
from pate.runs._files import RunFiles
from pate.storage._files import make_folder, write_atomically

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TERMINAL = (pipeline.pipeline, quality, classes, groups, privacy.guarantee, privacy.verification)
_STATEMENT = (
    privacy.published,
    privacy.protected,
    privacy.guarantee,
    privacy.mechanism,
    privacy.limits,
    privacy.coverage,
    privacy.verification,
)
_WIDTH = 78  # characters of a line of the privacy statement


def read_report(path: Path) -> AnyReport:
    """The stored report of a run or of a baseline."""
    try:
        content = json.loads(RunFiles(path).report_file.read_text(encoding="utf-8"))
        kind = BaselineReport if content.get("kind") == "baseline" else Report
        return kind.model_validate(content)
    except FileNotFoundError:
        raise RunError(f"{path}: has no report.json; name the directory of a finished run") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "it"
        raise RunError(f"{path}/report.json: {key}: {first['msg']}; was it made by another version?") from None
    except (OSError, ValueError, AttributeError) as error:
        raise RunError(f"{path}/report.json: cannot be read ({error})") from None


def store_report(path: Path, report: AnyReport) -> None:
    """Write `report.json`: what a run publishes about itself, and what the pages are made from."""
    _write(RunFiles(path).report_file, f"{report.model_dump_json(indent=2)}\n".encode(), durable=True)


def write_pages(path: Path, images: bool = True) -> AnyReport:
    """`report.html`, `privacy.txt` and `plots/` from what is stored, and `private/report.html` if votes are.

    Without `images` the plots are there as SVG only: what can be drawn as one can be drawn as the other.
    """
    report, files = read_report(path), RunFiles(path)
    if not files.config_file.exists():
        raise RunError(f"{path}: has no {files.config_file.name}; name the directory of a finished run")
    page = run_page(report, published_yaml(read_yaml(files.config_file)), pipeline.load_examples(files.examples_file))
    svg = {}
    for name, draw in page.drawings().items():
        figure = draw()
        svg[name] = as_svg(figure, name)
        make_folder(files.plots)
        _write(files.plots / f"{name}.svg", svg[name].encode())
        if images:
            _write(files.plots / f"{name}.png", as_png(figure))
    _write(files.page, page.render(svg).encode())
    _write(files.statement, render_statement(report).encode())
    if isinstance(report, Report) and files.private.is_dir():
        inside = private_page(report, files)
        if inside is not None:
            _write(files.private_page, inside.render().encode(), mode=0o600)
    return report


def _write(path: Path, content: bytes, mode: int = 0o644, durable: bool = False) -> None:
    write_atomically(path, lambda file: file.write_bytes(content), mode=mode, durable=durable)


def run_page(report: AnyReport, config_yaml: str, examples: dict[str, NDArray[Any]] | None = None) -> Page:
    """`report.html`; `config_yaml` may be published, and `examples` are those that the run kept for it."""
    tiles = [(f"ε to publish, at δ = {small(report.privacy.delta)}", f"{report.privacy.epsilon:.3g}")]
    student = report.student
    if student.accuracy is not None:
        right = [(f"right on {student.test_examples:,} test examples", percent(student.accuracy))]
        if skewed(student):
            right.append(("right on average over classes", percent(student.balanced_accuracy)))
        tiles = [*right, *tiles]
    if isinstance(report, Report):
        tiles += report.voters.counts
    marked = ", and figures marked as benchmark" if report.benchmark else ""
    return Page(
        title=f"pate: {report.name}",
        eyebrow=f"pate · {report.name}",
        heading=headline(report),
        lead=pipeline.summary(report),
        tiles=tiles,
        warnings=report.warnings,
        sections=(
            privacy.guarantee(report),
            pipeline.pipeline(report),
            pipeline.teachers(report),
            quality(report),
            classes(report),
            groups(report),
            pipeline.released(report, examples),
            privacy.cost_by_queries(report),
            plane(report),
            pipeline.repetition(report, config_yaml),
        ),
        footer=(
            "Nothing on this page depends on the private records except through what the guarantee "
            f"covers{marked}. Votes, teachers' accuracies and figures computed from them are not here. The guarantee "
            "in full is in privacy.txt, beside this page."
        ),
    )


def summary_rows(report: AnyReport) -> list[Fact]:
    """What a command shows at its end: what may be published, so nothing of how long private work took."""
    return [fact for section in _TERMINAL for fact in section(report).facts]


def render_statement(report: AnyReport) -> str:
    """`privacy.txt`: the guarantee for a data-protection officer. Everything in it may be published."""
    title = f"PRIVACY STATEMENT: {report.name}"
    made = f"pate {report.pate_version}, configuration {report.config_digest}"
    parts = ["\n".join([title, "=" * len(title), made])]
    for number, section in enumerate((make(report) for make in _STATEMENT), start=1):
        heading = f"{number}. {section.title}"
        wrapped = [
            textwrap.fill(text, _WIDTH, subsequent_indent="  " * text.startswith("- "), break_on_hyphens=False)
            for text in section.statement
        ]
        parts.append("\n".join([heading, "-" * len(heading), *wrapped]))
    return "\n\n".join(parts) + "\n"


_RARE = 0.5  # of the share of its votes: a class that is first less often is outvoted
WARNING = "Private: do not publish. These figures depend on the private records and have no guarantee."


def private_page(report: Report, run: RunFiles) -> Page | None:
    """The page; None where no votes are stored (any more)."""
    if not run.votes_file.exists():
        return None
    with np.load(run.votes_file, allow_pickle=False) as archive:
        counts: NDArray[np.int64] = archive["counts"]
    if not len(counts):
        return None
    seconds = [(stage, f"{value:.1f} s") for stage, value in _read(run.seconds_file).items()]
    return Page(
        title=f"private: {report.name}",
        eyebrow=f"pate · {report.name} · private",
        heading="Inside the trust boundary",
        warnings=(WARNING,),
        sections=(
            _cost(report, _read(run.epsilon_file)),
            _agreement(counts),
            _classes(report, counts),
            _teachers(_read(run.evaluation_file), _read(run.failures_file)),
            Section("Time", content=[PageBlock("facts", seconds)] if seconds else ()),
        ),
        footer=WARNING,
    )


def _cost(report: Report, found: dict[str, Any]) -> Section:
    """Every ε of the run, with its kind; where it was computed, the exact one after so many queries."""
    rows = [("for every data set (the one to publish)", f"{report.privacy.epsilon:.4g}")]
    if report.privacy.sanitised is not None:
        rows.append(("sanitised (may be published)", f"{report.privacy.sanitised.epsilon:.4g}"))
    for name, key in (("exact, RDP (private)", "by_rdp"), ("exact, PLD (private)", "by_pld")):
        if key in found:
            rows.append((name, "∞" if found[key] is None else f"{found[key]:.4g}"))
    if found.get("why"):
        rows.append(("exact (private)", f"none: {found['why']}"))
    title, table = "What it really cost", PageTable((f"ε at δ = {report.privacy.delta:g}", "all queries"), rows)
    after = found.get("by_rdp_after")
    if after is None or report.curves is None:
        return Section(title, content=[table])
    known = {
        name: tuple(
            np.interp(after["queries"], report.curves.queries, [np.nan if v is None else v for v in values]).tolist()
        )
        for name, values in report.curves.epsilon.items()
    }
    exact = {"exact, RDP: depends on the votes (private)": tuple(after["epsilon"])}
    curves = EpsilonCurves(queries=tuple(after["queries"]), epsilon=known | exact)
    limit, epsilon = report.queries.max_queries, report.privacy.epsilon
    plot = Plot(
        "private-epsilon",
        "ε against the number of queries, for every data set and for these votes.",
        "The exact cost of these votes beside the publishable one.",
        curves_table(curves),
        partial(plots.epsilon_by_queries, curves, limit, epsilon, private=True),
    )
    return Section(title, content=[table, plot])


def _agreement(counts: NDArray[np.int64]) -> Section:
    """How far the first class leads, over the queries."""
    ordered = np.sort(counts, axis=1)
    gaps, teachers = ordered[:, -1] - ordered[:, -2], int(counts[0].sum())
    edges = np.linspace(0, teachers, 11)
    numbers, _ = np.histogram(gaps, edges)
    shares = [(f"{low:.0f} – {high:.0f}", str(n)) for (low, high), n in zip(pairwise(edges), numbers, strict=True)]
    least, median, most = np.quantile(gaps, (0, 0.5, 1))
    plot = Plot(
        "gaps",
        f"Histogram of the gap between first and second over {len(gaps)} queries; median {median:.0f}.",
        f"Gap between the first and the second class, of {teachers} votes: from {least:.0f} to {most:.0f}, median "
        f"{median:.0f}.",
        PageTable(("gap", "queries"), shares),
        partial(plots.histogram, gaps, "votes between first and second", "queries"),
    )
    return Section("How much the teachers agree", content=[plot])


def _classes(report: Report, counts: NDArray[np.int64]) -> Section:
    """What teachers think of each class: how often it is first or second, and how many votes it ever has.

    With a note where some class hardly ever wins though it has votes.
    """
    order = np.argsort(-counts, axis=1, kind="stable")
    first, second = (np.bincount(order[:, place], minlength=len(report.classes)) for place in (0, 1))
    shares = counts.sum(axis=0) / max(1, counts.sum())
    released = None if report.labels is None else report.labels.by_class
    rows = [
        (
            name,
            percent(shares[i]),
            f"{first[i]:,}",
            f"{second[i]:,}",
            f"{np.median(counts[:, i]):.0f}",
            f"{counts[:, i].max()}",
            "–" if released is None else f"{released[i]:,}",
        )
        for i, name in enumerate(report.classes)
    ]
    header = ("class", "of all votes", "first in", "second in", "votes, median", "votes, most", "labels released")
    content: list[Content] = [
        "Over all queries that were voted on. The last column may be published, the others may not.",
        PageTable(header, rows),
    ]
    outvoted = [name for i, name in enumerate(report.classes) if first[i] < _RARE * shares[i] * len(counts)]
    if outvoted:
        text = (
            f"{', '.join(map(repr, outvoted[:5]))}: first far less often than votes for it would suggest. Teachers see "
            "it and are outvoted, as each of them goes by how frequent classes are in its part. Teachers that weigh "
            "classes evenly (`class_weight: balanced`, or the teacher `balanced`) let it win where it is likely; see "
            "docs/students.md."
        )
        content.append(PageBlock("note", text))
    return Section("What teachers think of each class", content=content)


def _teachers(evaluation: dict[str, Any], failures: dict[str, Any]) -> Section:
    rows = []
    if evaluation:
        rows.append(("each teacher, on average", percent(evaluation["mean_teacher_accuracy"])))
        rows.append(("their plurality", percent(evaluation["plurality_accuracy"])))
    if failures:
        rows.append(("teachers that failed to train", str(len(failures["teachers"]))))
    return Section("Teachers on the public examples", content=[PageBlock("facts", rows)] if rows else ())


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content


_MAX_TEXT = 500  # signs of a parameter's value: the least that MLflow's stores take


def tracked_figures(report: AnyReport) -> dict[str, float]:
    """Numbers to plot and compare, by name."""
    student, privacy = report.student, report.privacy
    found: dict[str, float | None] = {
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "accuracy": student.accuracy,
        "balanced_accuracy": student.balanced_accuracy,
        "auc": student.auc,
        "commonest_share": student.commonest_share,
        "calibration_error": None if student.calibration is None else student.calibration.error,
        "agreement": None if student.agreement is None else student.agreement.share,
        "agreement_error": None if student.agreement is None else student.agreement.error,
        "epsilon_sanitised": None if privacy.sanitised is None else privacy.sanitised.epsilon,
    }
    classes, groups = class_parts(report), group_parts(report)
    found |= {f"recall/{one.value}": one.right for one in classes}
    found |= {f"groups/{one.column}={one.value}": one.right for one in groups}
    if report.benchmark is not None:
        found |= {
            f"benchmark/lost/{one.column or 'class'}={one.value}": one.lost.share if one.lost else None
            for one in classes + groups
        }
        found["benchmark/label_accuracy"] = report.benchmark.label_accuracy
        found["benchmark/nonprivate_accuracy"] = report.benchmark.nonprivate_accuracy
    if isinstance(report, Report):
        found |= {"queries_asked": report.queries.asked, "queries_answered": report.queries.answered}
        if report.labels is not None:
            found |= {f"labels/{name}": n for name, n in zip(report.classes, report.labels.by_class, strict=True)}
    return {name: float(value) for name, value in found.items() if value is not None}


def tracked_object(path: Path) -> dict[str, Any]:
    """One flat object for trackers that take JSON: `config`, `summary`, and the report as it is."""
    report = read_report(path)
    return {
        "name": report.name,
        "config": published_settings(read_yaml(RunFiles(path).config_file)),
        "summary": tracked_figures(report),
        "warnings": list(report.warnings),
        "report": report.model_dump(mode="json"),
    }


def write_mlflow(path: Path, store: str) -> str:
    """Add the run to MLflow and return the id that it has there; a run that is there already is left as it is.

    Parameters
    ----------
    path : Path
        Directory of a finished run.
    store : str
        A tracking URI, or a folder for MLflow's file store. The experiment is the config's name.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing is sent but where the store is
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise RunError("{mlflow} needs the package mlflow-skinny: pip install 'pate[mlflow]'", mlflow=None) from None
    uri = store if ":/" in store or store == "databricks" else Path(store).resolve().as_uri()
    others = os.umask(0o022)
    os.umask(others | 0o022)  # nobody else writes to a store of files
    try:
        return _add_to_mlflow(MlflowClient(uri), path)
    except (MlflowException, ImportError, OSError) as error:
        raise RunError("{mlflow}: " + str(error).partition("\n")[0], mlflow=store) from None
    finally:
        os.umask(others)


def _add_to_mlflow(client: Any, path: Path) -> str:
    report, run = read_report(path), RunFiles(path)
    content = run.report_file.read_bytes()
    experiment = client.get_experiment_by_name(report.name)
    number = client.create_experiment(report.name) if experiment is None else experiment.experiment_id
    digest = blake2b(content + str(path.resolve()).encode(), digest_size=16).hexdigest()
    known = client.search_runs([number], f"tags.`pate.report` = '{digest}' and attributes.status = 'FINISHED'")
    if known:
        return str(known[0].info.run_id)
    ended = int(1000 * run.report_file.stat().st_mtime)  # and no beginning: how long private work took is private
    tags = {"mlflow.source.name": "pate", "pate.unit": report.privacy.unit, "pate.report": digest}
    created = client.create_run(number, start_time=ended, tags=tags, run_name=path.resolve().name)
    key: str = created.info.run_id
    for name, value in tracked_figures(report).items():
        client.log_metric(key, _allowed(name), value, timestamp=ended)
    for name, setting in published_settings(read_yaml(run.config_file)).items():
        text = setting if isinstance(setting, str) else json.dumps(setting, ensure_ascii=False)
        client.log_param(key, _allowed(name), text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…")
    for file in run.may_leave():
        folder = Path(file).parent.as_posix()
        client.log_artifact(key, str(path / file), None if folder == "." else folder)
    client.set_terminated(key, end_time=ended)
    return key


def _allowed(name: str) -> str:
    """A name that trackers take: letters, digits and a few signs; a slash makes a group."""
    parts = [re.sub(r"[^A-Za-z0-9_. -]", "_", part).strip(". ") or "_" for part in name.split("/")]
    return "/".join([parts[0], "_".join(parts[1:])] if len(parts) > 1 else parts)[:200]
