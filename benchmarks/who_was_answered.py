"""Whose public examples a benchmark's run got labels for, and right ones: by class, and by class within each group.

    python benchmarks/who_was_answered.py RUN [RUN ...] --data-dir DIR

Where a student is worse on some than on others, this tells whether the votes were. It looks at true labels of public
examples, which only benchmarks have.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from pate.config import Config
from pate.data._sources import load
from pate.data.public import groupings
from pate.mechanisms import UNANSWERED
from pate.runs.run import Run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--data-dir", type=Path, required=True)
    options = parser.parse_args()
    for place in options.runs:
        print(f"{place}")
        for name, asked, answered, right in figures(place, options.data_dir):
            print(f"  {name:40} {asked:4} asked {answered:4} answered {right:4} rightly")


def figures(place: str, data_dir: Path) -> list[tuple[str, int, int, int]]:
    """For each class, and each class of each group: how many were asked about, answered, and answered rightly."""
    with Run.load(place) as run:
        config, published = run.config, run.labels
    assert isinstance(config, Config)
    assert published is not None
    data, _ = load(config.data, data_dir, Path())
    assert data.benchmark
    assert data.y_public is not None
    rows, labels = published.rows, published.labels
    truth = data.y_public[rows]
    public = replace(data, X_test=data.X_public[rows], y_test=truth)
    parts = [("", np.ones(len(rows), dtype=bool))]
    for grouping in groupings(public, config.report.groups):
        parts += [(f"{grouping.column} = {v}, ", grouping.members == i) for i, v in enumerate(grouping.values)]
    found = []
    for name, members in parts:
        for label, called in enumerate(data.classes):
            own = members & (truth == label)
            answered = own & (labels != UNANSWERED)
            right = int((labels[own] == label).sum())
            found.append((f"{name}class {called}", int(own.sum()), int(answered.sum()), right))
    return found


if __name__ == "__main__":
    main()
