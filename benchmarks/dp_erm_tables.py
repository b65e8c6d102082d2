"""Tables and figure of benchmarks/dp_erm.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

LABELS = {"adult": "Adult", "kddcup99": "KDD'99", "logistic": "logistic", "huber": "Huber"}
COLOURS = {("logistic", "output"): "tab:orange", ("logistic", "objective"): "tab:blue",
           ("huber", "output"): "tab:red", ("huber", "objective"): "tab:green"}  # fmt: skip
MARKERS = {"kernel": "^", "tuned": "s"}
Results = Mapping[Any, dict[str, Any]]


def mean_and_error(result: dict[str, Any]) -> tuple[float, float]:
    """Mean, and its standard error over the repeats (NaN for a single one)."""
    errors = np.array(result["errors"])
    return float(errors.mean()), float(errors.std(ddof=1) / np.sqrt(len(errors))) if len(errors) > 1 else np.nan


def print_tables(results: Results) -> None:
    """As Markdown: one table against ε and one against the number of records for each data set."""
    for source in dict.fromkeys(cell.source for cell in results):
        here = {cell: result for cell, result in results.items() if cell.source == source}
        most = max(cell.records for cell in here)
        private = {cell: result for cell, result in here.items() if cell.method != "none"}
        print(f"\n### {LABELS[source]}, {most:,} records")
        for cell, result in here.items():
            if cell.method == "none":
                print(f"without privacy, {cell.model} {cell.loss}: {result['errors'][0]:.4f}, {_chosen(result)}")
        full = {cell: result for cell, result in private.items() if cell.records == most}
        _table("ε", "epsilon", full)
        _table("settings at ε", "epsilon", full, chosen=True)
        by_size = {c: r for c, r in private.items() if c.epsilon in {c.epsilon for c in private if c.records < most}}
        _table("records", "records", {c: r for c, r in by_size.items() if c.model == "linear"})
        print(f"processor time: {sum(result['cpu_seconds'] for result in here.values()):.0f} s")


def _table(title: str, along: str, results: Results, chosen: bool = False) -> None:
    columns = sorted({getattr(cell, along) for cell in results})
    rows = dict.fromkeys((cell.model, cell.loss, cell.method) for cell in results)
    print(f"\n| {title} | " + " | ".join(f"{value:,}" for value in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for row in rows:
        found = {
            getattr(cell, along): result
            for cell, result in results.items()
            if (cell.model, cell.loss, cell.method) == row
        }
        entries = [(_chosen if chosen else _entry)(found[value]) if value in found else "" for value in columns]
        print(f"| {', '.join(LABELS.get(word, word) for word in row)} | " + " | ".join(entries) + " |")


def _entry(result: dict[str, Any]) -> str:
    return "{:.3f} ± {:.3f}".format(*mean_and_error(result))


def _chosen(result: dict[str, Any]) -> str:
    return " ".join(f"{value:g}" for value in result["settings"].values())


def draw(results: Results, path: Path) -> None:
    """Error against ε above, against the number of records below; a column for each data set."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sources = list(dict.fromkeys(cell.source for cell in results))
    figure, axes = plt.subplots(2, len(sources), figsize=(5.5 * len(sources), 8), layout="constrained", squeeze=False)
    for (upper, lower), source in zip(axes.T, sources, strict=True):
        here = {cell: result for cell, result in results.items() if cell.source == source}
        most = max(cell.records for cell in here)
        epsilon = next(cell.epsilon for cell in here if cell.records < most)
        for (loss, method), colour in COLOURS.items():
            own = {cell: result for cell, result in here.items() if (cell.loss, cell.method) == (loss, method)}
            own = {cell: result for cell, result in own.items() if cell.method != "none"}
            name = f"{LABELS[loss]}, {method}"
            full = {cell: result for cell, result in own.items() if cell.records == most}
            _line(upper, "epsilon", {c: r for c, r in full.items() if c.model == "linear"}, "o-", colour, name)
            if method == "objective":
                for model, marker in MARKERS.items():
                    beside = {c: r for c, r in full.items() if c.model == model}
                    _line(upper, "epsilon", beside, marker, colour, f"{name}, {model}")
            sizes = {c: r for c, r in own.items() if c.epsilon == epsilon and c.model == "linear"}
            _line(lower, "records", sizes, "o-", colour, name)
        for cell, result in here.items():
            if cell.method == "none" and cell.model == "linear":
                style = "--" if cell.loss == "logistic" else "-."
                for panel in (upper, lower):
                    label = f"{LABELS[cell.loss]}, without privacy"
                    panel.axhline(result["errors"][0], linestyle=style, color="grey", label=label)
        upper.set(xscale="log", xlabel="ε", ylabel="error", title=f"{LABELS[source]}, {most:,} records")
        lower.set(xlabel="records", ylabel="error", title=f"{LABELS[source]}, ε = {epsilon:g}")
        for panel in (upper, lower):
            if source == "kddcup99":
                panel.set_yscale("log")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", fontsize=8, ncols=5)
    figure.savefig(path, dpi=110)


def _line(panel: Any, along: str, results: Results, style: str, colour: str, label: str) -> None:
    points = sorted((getattr(cell, along), *mean_and_error(result)) for cell, result in results.items())
    if points:
        x, mean, error = zip(*points, strict=True)
        apart = {"^": 1.08, "s": 0.92}.get(style, 1.0)  # so that marks at one ε can be told apart
        x = [value * apart for value in x]
        panel.errorbar(x, mean, yerr=error, fmt=style, color=colour, label=label, capsize=2, markersize=4)
