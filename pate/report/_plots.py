"""The plots, as SVG and PNG files and within pages. Markers differ as well as colours (Okabe and Ito's, or darker)."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any
from unicodedata import category

import numpy as np
from numpy.typing import NDArray

from pate.report.schema import EpsilonCurves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, LINE = "#1a1d23", "#59616e", "#dcdfe5"
SERIES = ("#0072b2", "#d55e00", "#00805d", "#a8478a")
CSS_COLOURS = {
    INK: "--ink",
    MUTED: "--muted",
    LINE: "--line",
    **{c: f"--c{i + 1}" for i, c in enumerate(SERIES)},
}
"""Each colour of a plot and the CSS variable for it in a page, which differs between light and dark mode."""

_WITHOUT_PRIVACY = "without privacy"
_UNSEEN = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of others, ends of lines and paragraphs
_SOLID = ("o", "s", "D", "^", "v", "P")
_WIDTH = 4.6  # inches: on a phone, which is about as wide, text keeps its size
_LEGEND_WIDTH = 62  # characters in that width


@dataclass(frozen=True)
class Point:
    """One method in the accuracy–ε plane. `kind` says which ε it is; the marker is hollow if it is data-dependent.

    A line goes from the mark down to a smaller ε, `down_to`, that holds for fewer changes of the data.
    """

    label: str
    epsilon: float
    accuracy: float
    kind: str
    deviation: float | None = None
    hollow: bool = False
    own: bool = True
    down_to: float | None = None


def as_svg(figure: Figure, name: str) -> str:
    """The figure as an SVG file; text stays text. `name` keeps the ids of several plots in one page apart."""
    import matplotlib

    _lay_out(figure)
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def as_png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    _lay_out(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=220, facecolor="white")
    return buffer.getvalue()


def _lay_out(figure: Figure) -> None:
    """Once, for the SVG and the PNG: each time it is saved, Matplotlib would do it again and draw it twice."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def accuracy_by_class(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> Figure:
    """A dot for each class's accuracy, with its 95 % interval."""
    figure, axes = _empty(0.7 + 0.24 * len(classes))
    rows = class_accuracies(confusion)
    for place, (accuracy, low, high, _) in enumerate(rows):
        if accuracy is None:
            continue
        axes.plot([100 * low, 100 * high], [place, place], color=SERIES[0], alpha=0.45, linewidth=3)
        axes.plot(100 * accuracy, place, "o", color=SERIES[0], markersize=7, clip_on=False)
    known = [low for accuracy, low, _, _ in rows if accuracy is not None]
    axes.set_xlim(min(90.0, 10 * math.floor(10 * min(known, default=0.0))), 100.5)
    axes.set_yticks(range(len(classes)), _short(classes))
    axes.set_ylim(len(classes) - 0.4, -0.6)
    axes.set_xlabel("right on its test examples, %")
    axes.grid(axis="x", color=LINE)
    return figure


def class_accuracies(confusion: Sequence[Sequence[int]]) -> list[tuple[float | None, float, float, int]]:
    """For each class: accuracy, its Wilson 95 % interval, and the number of test examples.

    >>> [round(x, 2) for x in class_accuracies([[8, 2], [0, 0]])[0]]
    [0.8, 0.49, 0.94, 10]
    """
    from scipy.stats import binomtest

    found: list[tuple[float | None, float, float, int]] = []
    for place, row in enumerate(confusion):
        n = sum(row)
        share = row[place] / n if n else None
        low, high = binomtest(row[place], n).proportion_ci(method="wilson") if n else (0.0, 1.0)
        found.append((share, float(low), float(high), n))
    return found


def epsilon_by_queries(curves: EpsilonCurves, limit: int, epsilon: float, private: bool = False) -> Figure:
    """ε against the number of queries, one line per way of counting; the last point is what the run's limits cost."""
    figure, axes = _empty(2.9 + 0.22 * len(curves.epsilon))
    styles = ("-", "--", ":", "-.")
    for number, (name, values) in enumerate(curves.epsilon.items()):
        shown = [math.nan if value is None else value for value in values]
        axes.plot(curves.queries, shown, styles[number % 4], color=SERIES[number % 4], linewidth=2, label=plain(name))
    axes.plot(limit, epsilon, "o", color=SERIES[0], markersize=8, label=f"this run's limit: ε = {epsilon:.3g}")
    axes.set(xlabel="label queries", ylabel="ε", xlim=(0, None), ylim=(0, None))
    axes.grid(color=LINE)
    return _finished(figure, axes, private)


def accuracy_against_epsilon(points: Sequence[Point], nonprivate: float | None, private: bool = False) -> Figure:
    """The accuracy–ε plane: up and to the left is better, among ε of one kind."""
    labels = list(dict.fromkeys((point.label, point.kind) for point in points))
    figure, axes = _empty(2.9 + 0.21 * (len(labels) + (nonprivate is not None)))
    order = {label: number for number, label in enumerate(labels)}
    for point in points:
        number = order[point.label, point.kind]
        colour = SERIES[number % 4] if point.own else MUTED
        axes.errorbar(
            point.epsilon,
            100 * point.accuracy,
            yerr=None if point.deviation is None else 100 * point.deviation,
            xerr=None if point.down_to is None else np.array([[point.epsilon - point.down_to], [0.0]]),
            fmt=_SOLID[number % len(_SOLID)],
            color=colour,
            markerfacecolor="none" if point.hollow else colour,
            markeredgewidth=1.6,
            markersize=11 if point.own else 8,
            capsize=4,
            label=plain(f"{point.label}: {point.kind} ε"),
        )
    if nonprivate is not None:
        axes.axhline(100 * nonprivate, linestyle="--", color=MUTED, linewidth=1.2, label=_WITHOUT_PRIVACY)
    epsilons = [e for point in points for e in (point.epsilon, point.down_to) if e is not None and e > 0]
    if epsilons:
        axes.set_xscale("log")
        low, high = min(epsilons) / 1.6, max(epsilons) * 1.6
        axes.set_xlim(low, high)
        ticks = [t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000) if low <= t <= high]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.set(xlabel="ε (smaller is more private)", ylabel="right, %")
    axes.grid(color=LINE)
    axes.margins(y=0.18)
    return _finished(figure, axes, private)


def roc_curves(curves: Sequence[tuple[str, Sequence[tuple[float, float]]]], private: bool) -> Figure:
    """True against false positives, both logarithmic: a privacy leak is a curve that is high where few are accused."""
    least = min((false for _, points in curves for false, _ in points if false > 0), default=1e-3) / 2
    figure, axes = _empty(3.3 + 0.21 * len(curves))
    styles = ("-", "--", ":", "-.")
    for number, (name, points) in enumerate(curves):
        false, true = np.maximum(np.array(points, dtype=np.float64).T, least)
        style, colour = styles[(number + number // 4) % 4], SERIES[number % 4]
        axes.step(false, true, style, where="post", color=colour, linewidth=2, label=plain(name))
    axes.plot([least, 1], [least, 1], color=MUTED, linewidth=1, label="guessing")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set(xlabel="false positives", ylabel="true positives", xlim=(least, 1), ylim=(least, 1.05))
    axes.minorticks_off()
    axes.grid(color=LINE)
    return _finished(figure, axes, private)


def claimed_and_shown(rows: Sequence[tuple[str, float | None, float]], private: bool) -> Figure:
    """For each model the ε that it claims (a hollow mark; none where it claims nothing) and the most that was shown."""
    figure, axes = _empty(1.3 + 0.3 * len(rows))
    for place, (_, claimed, shown) in enumerate(rows):
        axes.plot([0, shown], [place, place], color=SERIES[1], alpha=0.45, linewidth=3)
        axes.plot(shown, place, "s", color=SERIES[1], markersize=7, clip_on=False, label="shown by the best attack")
        if claimed is not None:
            axes.plot(claimed, place, "o", color=SERIES[0], markerfacecolor="none", markersize=9, label="claimed")
    axes.set_yticks(range(len(rows)), [plain(name) for name, _, _ in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set(xlabel="ε", xlim=(0, None))
    axes.grid(axis="x", color=LINE)
    return _finished(figure, axes, private)


def histogram(values: NDArray[Any], xlabel: str, ylabel: str, bins: int = 30) -> Figure:
    """How often each value occurs."""
    figure, axes = _empty(3.2)
    axes.hist(values, bins=bins, color=SERIES[0])
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(axis="y", color=LINE)
    return _finished(figure, axes, private=True)


def _short(names: Sequence[str]) -> list[str]:
    return [plain(name if len(name) <= 16 else f"{name[:14]}…") for name in names]


def plain(text: str) -> str:
    r"""Text from a config or from data as Matplotlib shows it letter for letter: `$` begins no formula.

    What no picture can show, such as a line break, becomes a replacement character.

    >>> plain("$10_$20")
    '\\$10_\\$20'
    """
    shown = "".join("�" if category(letter) in _UNSEEN else letter for letter in text)
    return shown.replace("$", r"\$")


def _empty(height: float, width: float = _WIDTH) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_visible(False)
    axes = figure.add_subplot()
    axes.patch.set_visible(False)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=INK, labelsize=10, length=3, color=MUTED)
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set_color(INK)
    axes.title.set_fontsize(10)
    return figure, axes


def _finished(figure: Figure, axes: Axes, private: bool = False) -> Figure:
    """Add a legend below, where anything is labelled, and a warning above where it must not be published."""
    if private:
        axes.set_title("private: do not publish", color=SERIES[1])
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(sorted(zip(labels, handles, strict=True), key=lambda item: item[0] == _WITHOUT_PRIVACY))
    if unique:
        figure.legend(
            unique.values(),
            [fill(label, _LEGEND_WIDTH, subsequent_indent="  ") for label in unique],
            loc="outside lower left",
            frameon=False,
            labelcolor=INK,
            fontsize=9,
            handlelength=1.6,
            markerscale=0.75,
            borderpad=0.1,
            alignment="left",
        )
    return figure


def png_of(picture: NDArray[np.uint8]) -> bytes:
    """One image, grey or colour, pixel for pixel."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="png", optimize=True)
    return buffer.getvalue()
