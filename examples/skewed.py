"""Classes of 85 and 15 %: what it changes to weigh classes evenly, on the hospital table, at ε below 2.

python examples/skewed.py FOLDER [PATIENTS]
"""

import runpy
import sys
from pathlib import Path

import pate

DATA = {
    **{"source": "csv", "private": "visits.csv", "public": "volunteers.csv", "test": "test.csv"},
    **{"label": "readmitted", "classes": ["no", "yes"]},
    "id": "patient",  # all visits of a patient count as one
    "dates": {"visit": "%Y-%m-%d", "born": "%Y-%m-%d"},
    "missing_values": {"treatment": "indicator"},
    "categories": {
        "sex": ["f", "m"],
        "ward": ["cardiology", "surgery", "oncology", "general", "maternity"],
        "admission": ["emergency", "planned"],
        "smoker": ["yes", "no", "former"],
    },
}


def pipeline(**params: object) -> dict:
    """Logistic regression on scaled columns; a teacher's scaler sees its own part alone."""
    scale = ["scale", {"name": "sklearn.preprocessing.StandardScaler"}]
    model = ["model", {"name": "sklearn.linear_model.LogisticRegression", "params": {"C": 0.1, **params}}]
    return {"name": "sklearn.pipeline.Pipeline", "params": {"steps": [scale, model]}}


def recognised(out: Path, folder: Path, patients: int, **params: object) -> str:
    """Run with such teachers and such a student; the share of each class that the student recognises."""
    model = pipeline(**params)
    config = {
        "n_teachers": patients // 25,
        "data": DATA,
        "teachers": [model],
        "mechanism": {"name": "gnmax", "sigma": 25},
        "budget": {"max_queries": 100, "delta": 1e-5},
        "student": {"name": "supervised", "params": {"estimator": model["name"], "params": model["params"]}},
        "backend": "local",
    }
    report = pate.run(config, out, config_dir=folder, pages=False, force=True).report
    no, yes = (row[i] / sum(row) for i, row in enumerate(report.student.confusion))
    return f"ε {report.privacy.epsilon:.2f}; recognised: no {no:.1%}, yes {yes:.1%}; AUC {report.student.auc:.3f}"


if __name__ == "__main__":
    folder, patients = Path(sys.argv[1]), int((sys.argv[2:] or [5000])[0])
    sys.argv[2:] = [str(patients)]
    runpy.run_path(str(Path(__file__).parent / "hospital.py"), run_name="__main__")
    print("as frequent as they are:", recognised(folder / "plain", folder, patients))
    print("weighed evenly:         ", recognised(folder / "even", folder, patients, class_weight="balanced"))
