"""The figures of papers about a baseline: one panel for each group of rows."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pate.reproduce.baseline_rows import BaselineStudy

_WIDE, _HIGH, _IN_A_LINE = 4.2, 3.4, 4


def draw(study: BaselineStudy, outcomes: Sequence[dict[str, Any]]) -> bytes:
    """All panels that have rows, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [name for name in study.panels if any(row["panel"] == name for row in outcomes)]
    across = min(len(shown), _IN_A_LINE)
    down = -(-len(shown) // across)
    size = (_WIDE * across, _HIGH * down)
    figure, axes = plt.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
    for place, name in zip(axes.flat, shown, strict=False):
        panel, rows = study.panels[name], [row for row in outcomes if row["panel"] == name]
        if "names" in panel:
            _named(place, rows, panel["names"])
        else:
            (_curves if panel.get("kind") == "curves" else _lines)(place, rows)
        ticks = {"xscale": panel["scale"]} if "scale" in panel else {}
        place.set(title=panel["title"], xlabel=panel["x"], ylabel="right, %", **ticks)
        if ticks:
            at = sorted({row["at"] for row in rows})
            place.set_xticks(at, [f"{value:g}" for value in at])
            place.minorticks_off()
        if place.get_legend_handles_labels()[0]:
            place.legend(fontsize="small")
    for place in axes.flat[len(shown) :]:
        place.axis("off")
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=130, format="png")
    plt.close(figure)
    return buffer.getvalue()


def _curves(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """Training and test over the epochs; the paper's figure is a dotted line."""
    for number, row in enumerate(row for row in rows if row["curve"]):
        planned = row["planned"]
        epochs = [step * planned["sampling_rate"] for step, _ in row["curve"]]
        for name, style in (("training", "--"), ("test", "-")):
            shares = [100 * found[name] for _, found in row["curve"]]
            label = row["line"] if name == "test" else None
            axes.plot(epochs, shares, style, color=f"C{number}", label=label)
        if row["paper"] is not None:
            axes.axhline(100 * row["paper"], linestyle=":", color=f"C{number}")


def _lines(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """Accuracy against what was changed, a line for each name; crosses are the paper's."""
    lines = dict.fromkeys(row["line"] for row in rows)
    for number, line in enumerate(lines):
        own = sorted((row for row in rows if row["line"] == line and row["at"] is not None), key=lambda row: row["at"])
        at, right = [row["at"] for row in own], [100 * row["accuracy"] for row in own]
        errors = [100 * (row["deviation"] or 0) for row in own]
        axes.errorbar(at, right, yerr=errors, fmt="o-", color=f"C{number}", label=line or None)
        papers = [(row["at"], 100 * row["paper"]) for row in own if row["paper"] is not None]
        if papers:
            axes.plot(*zip(*papers, strict=True), "x", color=f"C{number}")


def _named(axes: Axes, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """Accuracy on what has a name (`at` counts them from 1), lines side by side; crosses are the paper's."""
    lines = list(dict.fromkeys(row["line"] for row in rows))
    for number, line in enumerate(lines):
        own = [row for row in rows if row["line"] == line]
        at = [row["at"] + 0.2 * (number - (len(lines) - 1) / 2) for row in own]
        right, errors = ([100 * (row[name] or 0) for row in own] for name in ("accuracy", "deviation"))
        axes.errorbar(at, right, yerr=errors, fmt="o", capsize=3, color=f"C{number}", label=line)
        papers = [100 * row["paper"] if row["paper"] is not None else math.nan for row in own]
        axes.plot(at, papers, "x", color="black", zorder=3, label="the paper" if line == lines[-1] else None)
    axes.set_xticks(range(1, len(names) + 1), names)
    axes.set_xlim(0.5, len(names) + 0.5)
