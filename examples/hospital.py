"""A made-up hospital table: 5,000 patients with several visits each; who was back within 30 days (15 % of visits)?

python examples/hospital.py FOLDER [PATIENTS]

It writes visits.csv (private), volunteers.csv (public, without outcomes) and test.csv (volunteers whose outcome is
known): categories, dates, gaps that are no accident, and classes of 85 and 15 %. docs/tutorial.md goes on from there.
"""

import csv
import sys
from pathlib import Path

import numpy as np

WARDS = {"cardiology": 0.7, "surgery": 0.0, "oncology": 1.1, "general": 0.2, "maternity": -0.6}  # and their risk
COLUMNS = ("patient", "visit", "born", "sex", "ward", "admission", "smoker", "bmi", "systolic", "glucose")
COLUMNS += ("creatinine", "stay_days", "earlier_visits", "readmitted")


def visits_of(patient: str, rng: np.random.Generator) -> list[tuple[object, ...]]:
    """All visits of one patient."""
    ward = rng.choice(list(WARDS), p=[0.22, 0.25, 0.13, 0.3, 0.1])
    mother, frail, rows = ward == "maternity", rng.normal(), []
    born = np.datetime64("1980-01-01" if mother else "1930-01-01") + rng.integers(0, 365 * (24 if mother else 75))
    sex, smoker = "f" if mother else rng.choice(["f", "m"]), rng.choice(["yes", "no", "former"], p=[0.2, 0.55, 0.25])
    visit = np.datetime64("2021-01-01") + rng.integers(0, 300)
    for earlier in range(1 + min(rng.poisson(2.2), 7)):
        visit += rng.integers(15, 200)
        age, admission = (visit - born).astype(int) / 365.25, rng.choice(["emergency", "planned"], p=[0.4, 0.6])
        urgent, bmi, systolic = admission == "emergency", 26 + 4 * rng.normal() + frail, 118 + 0.3 * age
        glucose, creatinine = np.exp((1.7, 0) + np.array([0.12, 0.35]) * frail + (0.2, 0.3) * rng.normal(size=2))
        stay = 1 + rng.poisson(np.exp(0.8 + 0.35 * frail + 0.4 * urgent))
        risk = 0.035 * (age - 55) + WARDS[str(ward)] + 0.9 * urgent + 0.5 * (smoker == "yes") + 0.28 * (stay - 3)
        risk += 0.35 * earlier + 1.1 * np.log(creatinine) + 0.9 * (glucose > 7) + 0.04 * (bmi - 26)
        back = rng.random() < 1 / (1 + np.exp(5.4 - 1.5 * risk))
        known = rng.random(3) < (0.93, 0.8, 0.9 if urgent else 0.55)  # glucose is measured where it is urgent
        row = (patient, visit, born, sex, ward, admission, smoker if known[0] else "", f"{bmi:.1f}" if known[1] else "")
        row += (f"{systolic + 14 * rng.normal():.0f}", f"{glucose:.1f}" if known[2] else "", f"{creatinine:.2f}")
        rows.append((*row, stay, earlier, "yes" if back else "no"))
    return rows


def write(path: Path, columns: slice, patients: int, seed: int) -> int:
    """A file of all visits of so many patients; how many these are."""
    rng = np.random.default_rng(seed)
    rows = [row[columns] for n in range(patients) for row in visits_of(f"P{seed}{n:05d}", rng)]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS[columns], *rows])
    return len(rows)


if __name__ == "__main__":
    folder, n = Path((sys.argv[1:] or ["hospital"])[0]), int((sys.argv[2:] or [5000])[0])
    folder.mkdir(parents=True, exist_ok=True)
    private = write(folder / "visits.csv", slice(None), n, seed=0)
    public = write(folder / "volunteers.csv", slice(1, -1), n // 4, seed=1)
    test = write(folder / "test.csv", slice(1, None), n // 4, seed=2)
    print(f"{folder}: {private:,} private visits, {public:,} public ones, {test:,} to test")
