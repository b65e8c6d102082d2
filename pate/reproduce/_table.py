"""The tables in plain text, and the figures: what may be published, and apart from it what may not."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.mechanisms import LNMax
from pate.report._pages import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PRIVATE = "private: do not publish"


def public_lines(public: dict[str, Any]) -> list[str]:
    """Rows of the papers and ours, with the ε that holds for every data set."""
    if not public["rows"]:
        return [f"{public['data']}: no rows, figures 2 and 3 alone"]
    halves = any(row["epsilon_added_or_removed"] is not None for row in public["rows"])
    cells: list[tuple[str, ...]] = [
        (
            *("row", "paper: ε", "right", "ours: ε"),
            *(["added/removed"] if halves else []),
            *("sanitised", "δ", "asked", "answered", "labels right", "student"),
        )
    ]
    for row in public["rows"]:
        paper = row["paper"]
        cells.append(
            (
                row["row"],
                _epsilon(paper["epsilon"]) if paper else "ours",
                percent(paper["accuracy"]) if paper else "",
                _epsilon(row["epsilon"]),
                *([_epsilon(row["epsilon_added_or_removed"])] if halves else []),
                _number(row["epsilon_sanitised"], 2),
                f"{row['delta']:g}",
                _number(row["asked"], 0),
                _number(row["answered"], 0),
                _share(row["label_accuracy"]),
                _share(row["student_accuracy"]),
            )
        )
    own, papers = public["nonprivate_accuracy"], public["nonprivate_accuracy_of_the_paper"]
    if own is not None or papers is not None:
        known = "" if own is None else percent(own)
        unknown = [""] * (5 + halves)
        cells.append(("without privacy", "∞", "" if papers is None else percent(papers), "∞", *unknown, known))
    size = public["rows"][0]["test_examples"]
    seeds = public["seeds"]
    return [
        f"{public['data']}: the papers' rows and ours ({_of_seeds(seeds)}; {size:,} test examples)",
        "",
        *columns(cells),
        "",
        *_about_epsilon(public["rows"]),
        public["note"],
        *(f"{row['row']}: {row['differs']}." for row in public["rows"]),
    ]


def private_lines(public: dict[str, Any], private: dict[str, Any]) -> list[str]:
    """The table with data-dependent ε, as the papers print it, and figures 2 and 3."""
    cells: list[tuple[str, ...]] = [
        ("row", "paper: ε", "by its bound", "exact ε", "student", "votes right", "lead", "seconds")
    ]
    for row, inside in zip(public["rows"], private["rows"], strict=True):
        paper = row["paper"]
        cells.append(
            (
                row["row"],
                _epsilon(paper["epsilon"]) if paper else "ours",
                _number(inside["epsilon_by_the_paper's_bound"], 2),
                _number(inside["epsilon_data_dependent"], 3),
                _share(row["student_accuracy"]),
                _share(inside["vote_accuracy"]),
                _share(inside["vote_gap"]),
                f"{sum(s['mean'] for s in inside['seconds'].values() if s):.0f}",
            )
        )
    lines = [f"{public['data']}, {_PRIVATE}: figures that depend on the votes", ""]
    lines += [*columns(cells), ""] if public["rows"] else []
    lines.append(
        "by its bound: our votes, the paper's accounting; exact: the same labels, by the exact accountant. Seconds "
        "include teachers, which rows share."
    )
    if private["ensembles"]:
        gammas = [f"{point['epsilon_per_query']:g}" for point in private["ensembles"][0]["noisy_vote"]]
        cells = [("teachers", "each teacher", "plurality", "lead", *(f"ε {gamma}" for gamma in gammas))]
        cells += [
            (
                f"{found['teachers']}" + (f", seed {found['seed']}" if "seed" in found else ""),
                percent(found["mean_teacher_accuracy"]),
                percent(found["plurality_accuracy"]),
                percent(found["gap"]),
                *(percent(point["accuracy"]) for point in found["noisy_vote"]),
            )
            for found in private["ensembles"]
        ]
        lines += [
            "",
            f"Figures 2 and 3 of the 2017 paper, {_PRIVATE}: how often the noisy vote is right, by ε per query",
            "",
        ]
        lines += columns(cells)
    return lines


def columns(cells: list[tuple[str, ...]]) -> list[str]:
    """Cells padded to columns of equal width."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _about_epsilon(rows: list[dict[str, Any]]) -> list[str]:
    """What must be known to set one ε beside another."""
    lines = ["ours: ε is the cost of limits fixed beforehand, for every data set."]
    if any((row["paper"] or {}).get("kind") == "data-dependent" for row in rows):
        lines[0] = lines[0].rstrip(".") + "; the PATE papers' ε depends on the votes."
    if any(row["epsilon_added_or_removed"] is not None for row in rows):
        lines.append(
            "Where records vote themselves (asked: cells), ε holds for a record added, removed or changed; "
            "added/removed: if none is ever changed."
        )
    return lines


def _epsilon(value: float | None) -> str:
    """Three digits that count.

    >>> _epsilon(0.05), _epsilon(2.0412), _epsilon(133.3)
    ('0.0500', '2.04', '133')
    """
    return "" if value is None else f"{value:#.3g}".rstrip(".")


def _of_seeds(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"mean ± standard deviation of {seeds} seeds"


def _number(spread: dict[str, Any] | None, digits: int) -> str:
    return "" if spread is None else f"{spread['mean']:.{digits}f}"


def _share(spread: dict[str, Any] | None) -> str:
    if spread is None:
        return ""
    deviation = f" ± {100 * spread['deviation']:.1f}" if spread["deviation"] is not None else ""
    return f"{percent(spread['mean']).removesuffix(' %')}{deviation} %"


_GAMMAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The paper's γ, the inverse of the Laplace scale; a label costs ε = 2γ at most."""


def vote_figures(votes: NDArray[np.int64], y: NDArray[np.int64]) -> dict[str, Any]:
    """Figures of one ensemble: mean accuracy of teachers, plurality and noisy vote, and the plurality's lead."""
    rows, n_teachers = np.arange(len(votes)), int(votes[0].sum())
    ordered = np.sort(votes, axis=1)
    return {
        "teachers": n_teachers,
        "examples": len(votes),
        "mean_teacher_accuracy": float(votes[rows, y].mean() / n_teachers),
        "plurality_accuracy": float((votes.argmax(1) == y).mean()),
        "gap": float((ordered[:, -1] - ordered[:, -2]).mean() / n_teachers),
        "noisy_vote": [
            {"epsilon_per_query": 2 * gamma, "accuracy": noisy_accuracy(votes, y, 1 / gamma)} for gamma in _GAMMAS
        ],
    }


def noisy_accuracy(votes: NDArray[np.int64], y: NDArray[np.int64], scale: float) -> float:
    """How often LNMax answers right, exactly, on average over its noise."""
    return float(np.exp(LNMax(scale).log_outcomes(votes)[np.arange(len(votes)), y]).mean())


def draw(figures: list[dict[str, Any]], data: str) -> bytes:
    """Both figures side by side, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for ensemble, style in zip(figures, cycle(("o-", "s--", "^:", "d-.", "v-")), strict=False):
        at = [point["epsilon_per_query"] for point in ensemble["noisy_vote"]]
        accuracy = [100 * point["accuracy"] for point in ensemble["noisy_vote"]]
        left.plot(at, accuracy, style, label=f"{ensemble['teachers']} teachers")
    left.set(xscale="log", xlabel="ε per query", ylabel="noisy vote right, %", ylim=(0, 101))
    left.legend()
    sizes = [ensemble["teachers"] for ensemble in figures]
    right.bar([str(n) for n in sizes], [100 * ensemble["gap"] for ensemble in figures], color="C0")
    right.set(xlabel="teachers", ylabel="lead of the plurality, % of the teachers", ylim=(0, 100))
    figure.suptitle(f"{data}: figures 2 and 3 of Papernot et al. 2017 (private: do not publish)")
    return _png(figure, 150)


def _png(figure: Figure, dpi: int) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi, format="png")
    return buffer.getvalue()


# Papers about baselines


def baseline_lines(result: dict[str, Any]) -> list[str]:
    """The table in plain text."""
    cells: list[tuple[str, ...]] = [("row", "ε", "δ", "σ", "steps", "paper", "right", "of")]
    for row in result["rows"]:
        planned = row["planned"]
        cells.append(
            (
                row["row"],
                f"{row['epsilon']:.3g}",
                f"{row['delta']:g}",
                f"{planned['sigma']:.3g}" if "sigma" in planned else "",
                f"{planned['steps']:,}" if "steps" in planned else "",
                "" if row["paper"] is None else percent(row["paper"]),
                _share({"mean": row["accuracy"], "deviation": row["deviation"]}),
                f"{row['tested_on']:,}",
            )
        )
    return [
        f"{result['study']}: {result['source']} ({_of_seeds(result['seeds'])})",
        "",
        *columns(cells),
        "",
        "ε holds for every data set, for a record added or removed. Each row stands by itself: runs on the same data "
        "add up.",
        *(f"{row['row']}: {row['differs']}." for row in result["rows"] if row["differs"]),
    ]


_WIDE, _HIGH, _IN_A_LINE = 4.2, 3.4, 4


def draw_baselines(panels: Mapping[str, dict[str, Any]], outcomes: Sequence[dict[str, Any]]) -> bytes:
    """All panels that have rows, as a PNG."""
    from matplotlib.figure import Figure

    shown = [name for name in panels if any(row["panel"] == name for row in outcomes)]
    across = min(len(shown), _IN_A_LINE)
    down = -(-len(shown) // across)
    size = (_WIDE * across, _HIGH * down)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(down, across, squeeze=False)
    for place, name in zip(axes.flat, shown, strict=False):
        panel, rows = panels[name], [row for row in outcomes if row["panel"] == name]
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
    return _png(figure, 130)


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
