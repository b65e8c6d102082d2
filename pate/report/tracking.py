"""A run's publishable figures for experiment trackers: flat names and values, and MLflow's file store.

All of it comes from `report.json`, the published part of the config and the files that may leave the run. Nothing of a
tracker is imported, and nothing is sent anywhere.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import yaml

from pate.config import read_yaml
from pate.report.explanations import AnyReport
from pate.report.published_config import LEFT_OUT, published_config
from pate.report.reading import read_report
from pate.report.schema import Report
from pate.report.who_pays import class_parts, group_parts
from pate.runs.files import RunFiles
from pate.storage.files import make_folder, write_atomically

_MAX_TEXT = 500  # signs of a parameter's value: the least that MLflow's stores take
_FINISHED, _LOCAL = 3, 4  # MLflow's numbers for the status of a run and for where its code is


def figures(report: AnyReport) -> dict[str, float]:
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
    found |= {f"recall/{one.value}": one.right for one in class_parts(report)}
    found |= {f"groups/{one.column}={one.value}": one.right for one in group_parts(report)}
    if report.benchmark is not None:
        for one in class_parts(report) + group_parts(report):
            if one.lost is not None:
                found[f"benchmark/lost/{one.column or 'class'}={one.value}"] = one.lost.share
        found["benchmark/label_accuracy"] = report.benchmark.label_accuracy
        found["benchmark/nonprivate_accuracy"] = report.benchmark.nonprivate_accuracy
    if isinstance(report, Report):
        found |= {"queries_asked": report.queries.asked, "queries_answered": report.queries.answered}
        if report.labels is not None:
            found |= {f"labels/{name}": n for name, n in zip(report.classes, report.labels.by_class, strict=True)}
    return {name: float(value) for name, value in found.items() if value is not None}


def settings(run: RunFiles) -> dict[str, Any]:
    """The published part of the config by dotted key."""
    return dict(_flat(published_config(read_yaml(run.config_file))))


def as_object(path: Path) -> dict[str, Any]:
    """One flat object for trackers that take JSON: `config`, `summary`, and the report as it is."""
    report, run = read_report(path), RunFiles(path)
    return {
        "name": report.name,
        "config": settings(run),
        "summary": figures(report),
        "warnings": list(report.warnings),
        "report": report.model_dump(mode="json"),
    }


def write_mlflow(path: Path, store: Path) -> Path:
    """Add the run to an MLflow file store (`mlflow ui --backend-store-uri DIR`); the folder that it has there.

    The experiment is the config's name. The same run is written to the same place again.
    """
    report, run = read_report(path), RunFiles(path)
    content = run.report_file.read_bytes()
    experiment = str(int.from_bytes(blake2b(report.name.encode(), digest_size=7).digest(), "big") + 10**17)
    number = blake2b(content + str(path.resolve()).encode(), digest_size=16).hexdigest()
    home, folder = store / experiment, store / experiment / number
    ended = int(1000 * run.report_file.stat().st_mtime)  # and no beginning: how long private work took is private
    if not (home / "meta.yaml").exists():
        times = {"creation_time": ended, "last_update_time": ended}
        names = {"experiment_id": experiment, "name": report.name, "lifecycle_stage": "active"}
        _write_meta(home, names | times | {"artifact_location": home.resolve().as_uri()})
    shutil.rmtree(folder, ignore_errors=True)
    about: dict[str, Any] = {
        "artifact_uri": (folder / "artifacts").resolve().as_uri(),
        "end_time": ended,
        "entry_point_name": "",
        "experiment_id": experiment,
        "lifecycle_stage": "active",
        "run_id": number,
        "run_name": path.resolve().name,
        "run_uuid": number,
        "source_name": "pate",
        "source_type": _LOCAL,
        "source_version": report.pate_version,
        "start_time": ended,
        "status": _FINISHED,
        "tags": [],
        "user_id": "",
    }
    _write_meta(folder, about)
    entries: dict[str, dict[str, str]] = {
        "metrics": {name: f"{ended} {value!r} 0\n" for name, value in figures(report).items()},
        "params": {name: _text(value) for name, value in settings(run).items()},
        "tags": {"mlflow.runName": about["run_name"], "mlflow.source.name": "pate", "pate.unit": report.privacy.unit},
    }
    for kind, values in entries.items():
        make_folder(folder / kind)
        for name, value in values.items():
            file = folder / kind / _allowed(name)
            make_folder(file.parent)
            _write(file, str(value))
    for name in run.may_leave():
        copy = folder / "artifacts" / name
        make_folder(copy.parent)
        write_atomically(copy, partial(shutil.copyfile, path / name), mode=0o644, durable=False)
    return folder


def _write_meta(folder: Path, content: Mapping[str, Any]) -> None:
    make_folder(folder)
    _write(folder / "meta.yaml", yaml.safe_dump(dict(content)))


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"), mode=0o644, durable=False)


def _allowed(name: str) -> str:
    """A name that trackers take: letters, digits and a few signs; a slash makes a group."""
    parts = [re.sub(r"[^A-Za-z0-9_. -]", "_", part).strip(". ") or "_" for part in name.split("/")]
    return "/".join([parts[0], "_".join(parts[1:])] if len(parts) > 1 else parts)[:200]


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif value != LEFT_OUT:
        yield path, value
