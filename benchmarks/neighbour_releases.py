"""What of a cell's votes to release, at which ε: how many public examples get the right label, all ways side by side.

python benchmarks/neighbour_releases.py --data-dir DIR [--data mnist|svhn] [--cells 100,500]

The same cells and votes for every way (gradient histograms, 50 components); only the noise differs, scaled so that each
costs the ε of its row for a record added, removed or changed. Labels of whole cells, none left out; for histograms also
the share that is right among the surer half of the labelled examples, which argmax alone cannot tell apart. Mean of
five draws. Public labels of a benchmark say what is right; nothing is chosen by test labels.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from pate.config._components import listed
from pate.data._benchmarks import load_images
from pate.mechanisms import GNMax, Histogram, LNMax, PermuteAndFlip
from pate.mechanisms._cell_costs import Round
from pate.students import _posterior as posterior
from pate.voters.neighbours._cells import Cells, CellVote, RecordFeatures, Space
from pate.voters.neighbours._choice import with_target

_WAYS = {"histogram": Histogram(4), "lnmax": LNMax(4), "permute_and_flip": PermuteAndFlip(4), "gnmax": GNMax(8)}
_FEATURES = {"mnist": ["upright", "hog"], "svhn": [{"name": "hog", "params": {"signed": False, "softness": 0.1}}]}
_DRAWS, _DELTA = 5, 1e-5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--data", choices=sorted(_FEATURES), default="mnist")
    parser.add_argument("--cells", default="100,500")
    asked = parser.parse_args()
    data, records = load_images(asked.data, [asked.data_dir])
    features = RecordFeatures(
        [{"name": s["name"], "params": s.get("params", {})} for s in listed(_FEATURES[asked.data])]
    )
    seen, private = features(data.X_public), features(records.X)
    truth, n_classes = data.y_public, len(data.classes)
    assert truth is not None
    for n_cells in map(int, asked.cells.split(",")):
        cells = Cells.of(Space.of(seen, 50), seen, n_cells, seed=0)
        votes = CellVote(lambda X: X, cells, 1, n_classes).count(private, records.y)
        members = cells.nearest(seen)[:, 0]
        print(f"{asked.data}, {n_cells} cells; without noise {100 * (votes.argmax(1)[members] == truth).mean():.1f} %")
        for epsilon in (0.05, 0.1, 0.5, 1.0):
            shown = []
            for name, way in _WAYS.items():
                noisy = with_target([Round(n_cells, way)], 1, epsilon, _DELTA, n_classes)[0].mechanism
                right, surer = [], []
                for _ in range(_DRAWS):
                    if noisy.releases_counts:
                        shares = posterior.shares(noisy.release_counts(votes), noisy.noise)  # type: ignore[attr-defined]
                        labels, sure = shares.argmax(1)[members], shares.max(1)[members]
                        surer.append((labels == truth)[sure >= np.median(sure)].mean())
                    else:
                        labels = noisy.release(votes)[members]
                    right.append((labels == truth).mean())
                more = f" (surer half {100 * np.mean(surer):.1f})" if surer else ""
                shown.append(f"{name} {100 * np.mean(right):.1f}{more}")
            print(f"  ε = {epsilon:<5g}" + ", ".join(shown))


if __name__ == "__main__":
    main()
