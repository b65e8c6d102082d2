"""A run's publishable figures for experiment trackers: flat names and values, and MLflow.

All of it comes from `report.json`, the published part of the config and the files that may leave the run. MLflow is
imported only where it is asked for.
"""

from __future__ import annotations

import json
import os
import re
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pate.config import read_yaml
from pate.errors import RunError
from pate.report._files import read_report
from pate.report._published_config import published_settings
from pate.report.schema import AnyReport, Report
from pate.report.sections._groups import class_parts, group_parts
from pate.runs._files import RunFiles

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
        found |= {f"benchmark/lost/{one.column or 'class'}={one.value}": one.lost for one in classes + groups}
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
        return _write(MlflowClient(uri), path)
    except (MlflowException, ImportError, OSError) as error:
        raise RunError("{mlflow}: " + str(error).partition("\n")[0], mlflow=store) from None
    finally:
        os.umask(others)


def _write(client: Any, path: Path) -> str:
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
