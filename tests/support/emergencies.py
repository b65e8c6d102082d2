"""A made-up emergency department: public visits of 2022, private ones of 2024, a test set of 2023.

Three classes, about 80/15/5; who is ill follows from age, how long ago it began, the hour and noisy measurements.
"""

from __future__ import annotations

import csv
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

FORM = "%d.%m.%Y %H:%M"
CLASSES = ["home", "ward", "ICU"]


def visits(n: int, year: int, seed: int) -> list[dict[str, str]]:
    """Visits of that year; a person comes about three times."""
    rng = np.random.default_rng(seed)
    born = [datetime(2018, 1, 1) - timedelta(days=365.25 * float(age)) for age in rng.uniform(5, 80, n // 3)]
    rows = []
    for person in rng.integers(0, len(born), n):
        arrived = datetime(year, 1, 1) + timedelta(minutes=float(rng.integers(0, 364 * 24 * 60)))
        ill = rng.normal() + ((arrived - born[person]).days / 365.25 - 50) / 20
        night = arrived.hour < 6 or arrived.hour > 21
        score = 1.5 * ill + 0.5 * night + 0.5 * rng.normal()
        onset = arrived - timedelta(hours=float(rng.exponential(20 * np.exp(-0.6 * ill))))
        booked, called = (arrived - timedelta(minutes=float(rng.integers(1, most))) for most in (20, 90))
        ways = [0.2, 0.3, 0.5] if score > 2 else [0.4, 0.4, 0.2]
        rows.append(
            {
                "patient_id": f"P{person:05d}",
                "born": f"{born[person]:%d.%m.%Y}",
                **{"arrived": f"{arrived:{FORM}}", "onset": f"{onset:{FORM}}"},
                **{"booked": f"{booked:{FORM}}", "called": f"{called:{FORM}}"},
                "way": str(rng.choice(["foot", "car", "ambulance"], p=ways)),
                "pulse": f"{80 + 6 * ill + 14 * rng.normal():.0f}",
                "oxygen": "" if rng.random() < 0.05 else f"{97 - 0.7 * ill + 2 * rng.normal():.0f}",
                "outcome": CLASSES[int(score > 2) + int(score > 4)],
            }
        )
    return rows


def write_emergencies(folder: Path, n_private: int = 2400, n_others: int = 600) -> None:
    """`private.csv`, `public.csv` without labels and ids, and `test.csv` without ids."""
    for name, year, n, left_out in (
        ("private", 2024, n_private, ()),
        ("public", 2022, n_others, ("patient_id", "outcome")),
        ("test", 2023, n_others, ("patient_id",)),
    ):
        rows = [{k: v for k, v in row.items() if k not in left_out} for row in visits(n, year, seed=year)]
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
