"""Attacks on small models of MNIST, SVHN (gradient histograms) and Adult: the figures of docs/audit.md.

python benchmarks/audit_figures.py FOLDER [--part models|overfitting|regularised|draw] [--data mnist …]

Every part is resumed where it was: runs, shadow models and findings are kept in FOLDER. Data from $PATE_DATA. Models
learn from 3,000 records (2,000 without privacy), so that everything takes some twenty minutes on two cores; figures
for whole data sets come from `pate audit` itself. No setting was chosen by looking at what an attack gained.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pate import pipeline
from pate.audit._target import NonprivateTrainer, Subject, TargetExamples
from pate.audit.membership import CorrectnessGap, LossThreshold
from pate.audit.results import AttackResult, Audit, Options
from pate.audit.runner import audit
from pate.audit.shadow_models import RMIA, LiRA
from pate.baselines._run import run_baseline
from pate.config import BaselineConfig, parse_config
from pate.data._settings import BenchmarkData
from pate.data._sources import load
from pate.data.private import Records, records_of
from pate.data.public import PublicData
from pate.errors import DataError
from pate.features import build_features
from pate.networks._process import one_thread
from pate.runs._console import Console
from pate.teachers import Recipe

SETS = ("mnist", "svhn", "adult")
RECORDS, ASKED, SHADOWS = 3_000, 2_000, 16
FIGURES = Path(__file__).parents[1] / "docs" / "figures"
NETWORK = {"architecture": "mlp", "hidden": 128, "steps": 1500, "batch_size": 64, "learning_rate": 2e-3}
ATTACKS = ("threshold", "correctness", "label-only", "lira", "rmia")
SIZES = (100, 200, 400, 800, 1600, 3000)
SHOKRI = (  # Shokri et al. 2017, Table II: data, accuracy in training, in test, precision of the attack
    ("Adult", 0.848, 0.842, 0.503),
    ("MNIST", 0.984, 0.928, 0.517),
    ("Location", 1.000, 0.673, 0.678),
    ("Purchase (2)", 0.999, 0.984, 0.505),
    ("Purchase (10)", 0.999, 0.866, 0.550),
    ("Purchase (20)", 1.000, 0.781, 0.590),
    ("Purchase (50)", 1.000, 0.693, 0.860),
    ("Purchase (100)", 0.999, 0.659, 0.935),
    ("TX hospital stays", 0.668, 0.517, 0.657),
)


def small_data(name: str, folder: Path) -> tuple[PublicData, Records, dict[str, Any]]:
    """3,000 private records, 2,000 public examples and 2,000 outside, from the benchmark; and their data section.

    Members and outsiders are drawn from all of the benchmark together: so they are of one kind.
    """
    path = folder / f"{name}.npz"
    if not path.exists():
        source = BenchmarkData(source=name)  # type: ignore[arg-type]
        whole, private = load(source, None, folder)
        records = records_of(private)
        assert whole.X_test is not None
        assert whole.y_test is not None
        X, y = np.concatenate([records.X, whole.X_test]), np.concatenate([records.y, whole.y_test])
        chosen = np.random.default_rng(0).permutation(len(X))[: RECORDS + 2 * ASKED]
        X, y = X[chosen], y[chosen]
        if name == "svhn":
            with one_thread():
                X = build_features([{"name": "hog"}], "features").transform(X).astype(np.float32)
        inside, public, outside = np.split(np.arange(len(X)), [RECORDS, RECORDS + ASKED])
        parts = {"private": inside, "public": public, "test": outside}
        arrays = {f"{key}_{part}": values[rows] for part, rows in parts.items() for key, values in (("X", X), ("y", y))}
        np.savez(path, **arrays)
    n_classes = 2 if name == "adult" else 10
    section = {"source": "npz", "file": path.name, "classes": list(range(n_classes))}
    with np.load(path) as arrays:
        records = Records(arrays["X_private"], arrays["y_private"])
        data = PublicData(
            X_public=arrays["X_public"],
            X_test=arrays["X_test"],
            y_test=arrays["y_test"],
            classes=tuple(map(str, range(n_classes))),
        )
    return data, records, section


def configs(name: str, section: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Two runs of PATE and two of DP-SGD on the same records; the first is the one that is audited."""
    learner = "sklearn.linear_model.LogisticRegression"
    student = {"name": "supervised", "params": {"estimator": learner, "params": {"C": 1, "max_iter": 300}}}
    nonprivate = {"name": "network", "params": NETWORK}
    shared = {"data": section, "backend": "local", "nonprivate": nonprivate, "student": student}
    yield {
        **shared,
        "name": "PATE",
        "n_teachers": 60,
        "teachers": [{"name": learner, "params": {"C": 1, "max_iter": 200}}],
        "mechanism": {"name": "gnmax", "sigma": 12},
        "budget": {"max_queries": 150, "delta": 1e-5},
    }
    yield {
        **shared,
        "name": "neighbours",
        "voters": "neighbours",
        "neighbours": {"cells": 60, "min_vote_share": 0.4},
        "mechanism": {"name": "histogram", "scale": 2},
        "budget": {"delta": 1e-5},
    }
    for epsilon in (8, 2):
        params = {"model": "mlp", "model_params": {"hidden": 128}, "lot_size": 500, "epochs": 30, "clip_norm": 1.0}
        yield {
            "name": f"DP-SGD {epsilon}",
            "data": section,
            "baseline": {"name": "dp_sgd", "params": {**params, "learning_rate": 0.5}},
            "budget": {"epsilon": epsilon, "delta": 1e-5},
            "records": RECORDS,
        }


def models(name: str, folder: Path, console: Console) -> None:
    """Train, and audit all of them together."""
    result = folder / f"{name}-audit.json"
    if result.exists():
        return
    *_, section = small_data(name, folder)
    places = []
    for content in configs(name, section):
        content = {**content, "name": content["name"].replace(" ", "-")}
        place = folder / f"{name}-{content['name']}"
        places.append(place)
        if not (place / "report.json").exists():
            resume = place.exists()
            if "baseline" in content:
                config = parse_config(content, BaselineConfig)
                run_baseline(config, place, data_dir=folder, resume=resume, console=console)
            else:
                pipeline.run(parse_config(content), place, data_dir=folder, resume=resume, console=console, pages=False)
    options = Options.of(True, examples=ASKED, records=ASKED, shadows=SHADOWS, console=console, work=folder / "shadows")
    found = audit(places[0], places[1:], ATTACKS, options, data_dir=folder)
    _keep(result, found.to_json())


def subject_of(data: PublicData, records: Records, n: int, trainer: NonprivateTrainer, seed: int = 0) -> Subject:
    """A model of the first `n` private records, without privacy."""
    assert data.X_test is not None
    assert data.y_test is not None
    members = TargetExamples(records.X[:n], records.y[:n], np.arange(n))
    n_out = min(ASKED, max(n, 400))
    outsiders = TargetExamples(data.X_test[:n_out], data.y_test[:n_out], np.arange(n_out))
    content = next(configs("", {"source": "npz", "file": "x.npz", "classes": [0, 1]}))
    return Subject(
        name=trainer.description,
        kind="without privacy",
        method=trainer.description,
        model=trainer.train(members.X, members.y, seed),
        trainer=trainer,
        reference=trainer,
        members=members,
        outsiders=outsiders,
        data=data,
        records=records,
        config=parse_config(content),
        epsilon=None,
        delta=1e-5,
    )


def overfitting(name: str, folder: Path) -> None:
    """How much the simple attacks gain as fewer records are learned by heart, or as a network is trained for longer."""
    result = folder / f"{name}-overfitting.json"
    if result.exists():
        return
    (data, records, _), rows = small_data(name, folder), []
    for size in SIZES:
        for steps in (150, 1500):
            trainer = NonprivateTrainer(Recipe("network", {**NETWORK, "steps": steps}), data.n_classes)
            subject = subject_of(data, records, size, trainer)
            found = {
                f.attack: f
                for attack in (LossThreshold, CorrectnessGap)
                for f in attack().run(subject, Options.of(False))
            }
            gap = _gap(subject)
            rows.append({"records": size, "steps": steps, "gap": gap, **{k: f.to_json() for k, f in found.items()}})
            print(f"{name}: {size} records, {steps} steps: gap {gap:.3f}, AUC {found['loss threshold'].auc:.3f}")
    _keep(result, rows)


def regularised(name: str, folder: Path, console: Console) -> None:
    """Dropout and ℓ2 beside the plain network: gap, accuracy, and what shadow models of the same kind gain."""
    result = folder / f"{name}-regularised.json"
    if result.exists():
        return
    (data, records, _), rows = small_data(name, folder), []
    dropout = {**NETWORK, "architecture": "audit_figures.Dropout", "module_params": {"share": 0.5}}
    kinds = {
        "plain": NETWORK,
        "dropout 0.5": dropout,
        "ℓ2 0.003": {**NETWORK, "weight_decay": 3e-3},
        "dropout 0.5 and ℓ2 0.003": {**dropout, "weight_decay": 3e-3},
    }
    options = Options.of(True, examples=1000, shadows=8, processes=1, console=console, work=folder / "shadows")
    for kind, params in kinds.items():
        subject = subject_of(data, records, 1000, NonprivateTrainer(Recipe("network", params), data.n_classes))
        subject = replace(subject, outsiders=subject.outsiders.some(1000, 0))
        found: list[AttackResult] = [
            f for attack in (LossThreshold, LiRA, RMIA) for f in attack().run(subject, options)
        ]
        right = float((subject.model.predict(subject.outsiders.X) == subject.outsiders.y).mean())
        rows.append({"kind": kind, "gap": _gap(subject), "right": right, "findings": [f.to_json() for f in found]})
        told = ", ".join(f"{f.attack} {f.auc:.3f}" for f in found)
        print(f"{name}, {kind}: right {right:.3f}, gap {rows[-1]['gap']:.3f}; {told}", flush=True)
    _keep(result, rows)


def _gap(subject: Subject) -> float:
    """Accuracy on members less that on others."""
    groups = (subject.members, subject.outsiders)
    inside, outside = (float((subject.model.predict(group.X) == group.y).mean()) for group in groups)
    return inside - outside


def _keep(path: Path, content: Any) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1))
    partial.rename(path)


class _Lazy:
    """`audit_figures.Dropout`, made where torch is needed."""

    def __call__(self, shape: tuple[int, ...], n_classes: int, share: float) -> Any:
        from torch import nn

        width = int(np.prod(shape))
        return nn.Sequential(
            nn.Flatten(),
            nn.Dropout(share / 2),
            nn.Linear(width, 128),
            nn.ReLU(),
            nn.Dropout(share),
            nn.Linear(128, n_classes),
        )


Dropout = _Lazy()


def draw(folder: Path) -> None:
    """The pictures, and the tables as Markdown on standard output."""
    from pate.report._plots import MUTED, SERIES, as_png

    audits = {name: _read(folder / f"{name}-audit.json") for name in SETS}
    found = {name: Audit.from_json(content) for name, content in audits.items() if content is not None}
    for name, one in found.items():
        print(f"\n{name}\n")
        print("| model | right on its records / on others | ε claimed | best AUC | found at 1 % | ε shown |")
        print("|---|---|---|---|---|---|")
        for model in one.models:
            rows = [f for f in one.findings if f.model == model.name]
            best = max(rows, key=lambda f: f.auc or 0)
            most = max(f.epsilon_lower or 0 for f in rows)
            claimed = "none" if model.epsilon is None else f"{model.epsilon:.3g}"
            at = max(f.tpr_at_1_percent or 0 for f in rows)
            right = f"{100 * model.right_on_members:.1f} / {100 * model.right_on_outsiders:.1f} %"
            auc = f"{best.auc:.3f} ± {best.auc_error:.3f} ({best.attack})"
            print(f"| {model.name} | {right} | {claimed} | {auc} | {100 * at:.1f} % | {most:.2f} |")
    if found:
        _save(_models_figure(found), FIGURES / "audit_models.png", as_png)
    rows_of = {name: _read(folder / f"{name}-overfitting.json") for name in SETS}
    if any(rows_of.values()):
        figure, axes = _figure(1, 1)
        for number, (name, rows) in enumerate(rows_of.items()):
            for row in rows or ():
                gain = 0.5 + row["loss threshold"]["advantage"] / 2
                axes[0].plot(row["gap"], gain, "osD"[number], color=SERIES[number], label=name, alpha=0.8)
        for _, train, test, precision in SHOKRI:
            axes[0].plot(train - test, precision, "x", color=MUTED, label="precision in Shokri et al. 2017, Table II")
        line = np.linspace(0, 0.8, 2)
        axes[0].plot(
            line, 0.5 + line / 2, "--", color=MUTED, linewidth=1, label="the gap alone: ½ + gap/2 (Yeom et al.)"
        )
        axes[0].set(xlabel="accuracy on members less on others", ylabel="best accuracy of the loss threshold")
        _legend(axes[0])
        _save(figure, FIGURES / "audit_overfitting.png", as_png)
    kinds = {name: _read(folder / f"{name}-regularised.json") for name in SETS}
    for name, rows in kinds.items():
        for row in rows or ():
            told = " | ".join(f"{f['auc']:.3f}" for f in row["findings"])
            print(f"| {name} | {row['kind']} | {100 * row['right']:.1f} % | {100 * row['gap']:.1f} | {told} |")


def _models_figure(found: dict[str, Audit]) -> Any:
    from pate.report._plots import MUTED, SERIES

    figure, axes = _figure(2, len(found))
    for column, (name, one) in enumerate(found.items()):
        top, bottom = axes[column], axes[len(found) + column]
        for place, model in enumerate(one.models):
            rows = [f for f in one.findings if f.model == model.name]
            best = max(rows, key=lambda f: f.auc or 0)
            top.errorbar(place, best.auc, yerr=2 * (best.auc_error or 0), fmt="o", color=SERIES[0], capsize=3)
            bottom.plot(place, max(f.epsilon_lower or 0 for f in rows), "s", color=SERIES[1], label="shown")
            if model.epsilon is not None:
                bottom.plot(place, model.epsilon, "o", color=SERIES[0], markerfacecolor="none", label="claimed")
        names = [model.name for model in one.models]
        top.axhline(0.5, color=MUTED, linewidth=1, linestyle="--")
        top.set(title=name, ylabel="best AUC ± 2 standard errors" if column == 0 else "", ylim=(0.45, 1.0))
        bottom.set(ylabel="ε" if column == 0 else "", ylim=(-0.3, None))
        top.set_xticks(range(len(names)), [])
        bottom.set_xticks(range(len(names)), names, rotation=40, ha="right")
    _legend(axes[len(found)])
    return figure


def _figure(rows: int, columns: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.9 * columns + (2.4 if columns == 1 else 0), 2.6 * rows + 1), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for one in axes:
        one.grid(alpha=0.3)
        for side in ("top", "right"):
            one.spines[side].set_visible(False)
    return figure, axes


def _legend(axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.legend(unique.values(), unique.keys(), frameon=False, fontsize=8)


def _save(figure: Any, path: Path, as_png: Any) -> None:
    path.write_bytes(as_png(figure))
    print(f"written: {path}")


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", choices=("models", "overfitting", "regularised", "draw"))
    parser.add_argument("--data", choices=SETS, nargs="*", default=SETS)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    console, started = Console(), time.perf_counter()
    if not os.environ.get("PATE_DATA"):
        raise DataError("PATE_DATA: name the folder of the benchmarks")
    for name in asked.data:
        if asked.part in (None, "models"):
            models(name, asked.folder, console)
        if asked.part in (None, "overfitting"):
            overfitting(name, asked.folder)
        if asked.part in (None, "regularised"):
            regularised(name, asked.folder, console)
    print(f"{time.perf_counter() - started:.0f} s")
    draw(asked.folder)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))  # `audit_figures.Dropout`, here and in processes of shadow models
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    main()
