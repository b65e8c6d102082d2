"""A saved student at work. It needs no Ray, and its folder may come from anybody: reading it runs no code.

python examples/use_student.py [RUN/student]      without a folder, a small one is made first
"""

import sys
import tempfile
from pathlib import Path

from sklearn.datasets import load_digits

import pate
from pate.runs.model_store import load_card, save_model
from pate.students.supervised import Supervised

IMAGES, DIGITS = load_digits().images, load_digits().target


def make_one(folder: Path) -> Path:
    """A student of 200 labels, as a run would save it; a run's card also says what it cost."""
    student = Supervised(estimator="sklearn.svm.SVC", params={"C": 10}).fit(IMAGES[:200], DIGITS[:200])
    save_model(student, folder, {"classes": [str(digit) for digit in range(10)], "epsilon": None})
    return folder


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else make_one(Path(scratch) / "student")
        student = pate.load_model(folder)
        card = load_card(folder)
    labels = student.predict(IMAGES[1000:1010])
    print("says:", [card["classes"][label] for label in labels])
    print("are: ", DIGITS[1000:1010].astype(str).tolist())
    print("ε to publish:", card["epsilon"])


if __name__ == "__main__":
    main()
