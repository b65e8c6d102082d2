"""How a model came to be: the way from records to it, who voted, what was released, and how to repeat it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.mechanisms import UNANSWERED
from pate.report import _plots as plots
from pate.report._pages import (
    Content,
    PageBlock,
    Section,
    describe_planned,
    describe_settings,
    percent,
    png_data_url,
    short_name,
)
from pate.report.schema import LEFT_OUT, AnyReport, BaselineReport, Report
from pate.storage._files import make_folder, write_atomically

if TYPE_CHECKING:
    from pate.data.public import PublicData
    from pate.students._posterior import Labelled

_EXAMPLES_SHOWN = 24


def summary(report: AnyReport) -> str:
    """What was done, in one or two sentences."""
    if isinstance(report, Report):
        return report.voters.summary
    return (
        f"One model was trained on the private records by {report.method['name']}, which adds noise while it "
        "learns; only that model left the trust boundary."
    )


def pipeline(report: AnyReport) -> Section:
    """The way from records to a model, and what of it is inside the trust boundary."""
    title, student = "From records to a model", report.student
    if isinstance(report, BaselineReport):
        facts = [("method", ", ".join(f"{key} {value}" for key, value in report.method.items()))]
        facts += [("planned", describe_planned(report.planned))] if report.planned else []
        steps = [
            (True, "Private records", "their number is not published"),
            (True, short_name(str(report.method["name"])), "trained with noise"),
            (False, "One model", f"ε = {report.privacy.epsilon:.3g}"),
        ]
    else:
        voters = report.voters
        facts = list(voters.figures)
        *inside, labels = voters.steps
        unlabelled = (report.public_examples or voters.labelled) - voters.labelled
        learned = f"{short_name(student.name)}, with {unlabelled:,} public examples unlabelled"
        steps = [*((True, *one) for one in inside), (False, *labels), (False, "One student", learned)]
    if student.accuracy is not None:
        steps.append((False, f"{percent(student.accuracy)} right", f"on {student.test_examples:,} test examples"))
    content: list[Content] = [PageBlock("steps", steps)]
    if isinstance(report, Report):
        content.append(f"Each query releases {report.description.releases}.")
    return Section(title, facts, content)


def teachers(report: AnyReport) -> Section:
    """The families of teachers, and how many there are of each."""
    kinds = report.voters.teachers if isinstance(report, Report) else ()
    bars = []
    for kind in kinds:
        features = f"on {', '.join(kind.features)}" if kind.features else ""
        details = " · ".join(part for part in (describe_settings(kind.params), features) if part)
        width = 100 * kind.teachers / max(one.teachers for one in kinds)
        bars.append((short_name(kind.name), details, kind.teachers, f"{width:.0f}"))
    text = "How many teachers a family has follows from the configuration alone. How good they are is private."
    return Section("Teachers", content=(text, PageBlock("families", bars)) if bars else ())


def released(report: AnyReport, examples: dict[str, NDArray[Any]] | None) -> Section:
    """Public examples with what was released about them."""
    title = "What was released"
    if examples is None:
        return Section(title)
    truth, labels = examples.get("truth"), examples["labels"]
    pictures = []
    for place, (image, row, label) in enumerate(zip(examples["images"], examples["rows"], labels, strict=True)):
        said = "⊥" if label == UNANSWERED else report.classes[label]
        true = said if truth is None else report.classes[truth[place]]
        kind, note, about = "", "", f"released label {said}"
        if label == UNANSWERED:
            kind, note, about = "unanswered", "no answer", "not answered"
        elif true != said:
            kind, note, about = "wrong", f"truly {true}", f"released label {said}, truly {true}"
        pictures.append(picture(image, said, f"public example {row}: {about}", note, kind))
    text = f"The first {len(pictures)} public examples that were asked about, with the label that noise and votes gave."
    if truth is not None:
        text += " A solid orange frame marks a wrong label: true labels are known here, as this is a benchmark."
    if (labels == UNANSWERED).any():
        text += " A dashed frame and ⊥ mark a question that was not answered."
    return Section(title, content=(text, PageBlock("pictures", pictures)))


def picture(image: NDArray[np.uint8], title: str, text: str, note: str = "", kind: str = "") -> dict[str, Any]:
    """An image for a page, with what stands below it, and a text in its place for who cannot see it."""
    height, width = image.shape[:2]
    shown = {"address": png_data_url(plots.png_of(image)), "width": width, "height": height}
    return {"title": title, "text": text, "note": note, "kind": kind, **shown}


def repetition(report: AnyReport, config_yaml: str) -> Section:
    """The configuration, as far as it may be published, and the versions of the software."""
    content: list[Content] = [
        "Save the configuration as config.yaml and run the command. The noise is fresh each time: labels and accuracy "
        "will differ a little, ε will not."
    ]
    if LEFT_OUT in config_yaml:
        text = (
            f"{LEFT_OUT} stands for what is not published here: names of files and places, of the columns of ids and "
            "of those that were ignored, and how files are written."
        )
        if report.data in ("csv", "parquet"):
            text += (
                " The columns that the model takes and their categories are published: they are on its card, as "
                "whoever uses it has to know them."
            )
        content.append(text)
    command = "pate run" if isinstance(report, Report) else "pate baseline"
    versions = [("pate", report.pate_version), *report.versions.items(), ("configuration digest", report.config_digest)]
    content += [
        PageBlock("code", f"{command} config.yaml"),
        PageBlock("folded", PageBlock("code", config_yaml), "Configuration"),
        PageBlock("heading", "Versions"),
        PageBlock("facts", versions),
    ]
    return Section("To repeat it", content=content)


def save_examples(path: Path, data: PublicData, labels: NDArray[np.int64], labelled: Labelled | None = None) -> None:
    """Keep the first public examples that have labels, if they are images, for the page's grid.

    Those are the first ones, or where cells gave the labels, those that `labelled` names, with their likeliest label.
    True labels are kept of benchmarks alone.
    """
    if labelled is not None:
        rows, labels = likeliest_labels(labelled)
        data = data.with_queries_first(rows)
    shown = min(_EXAMPLES_SHOWN, len(labels))
    images = as_images(data.X_public[:shown])
    if images is None:
        return
    content: dict[str, Any] = {
        "images": images,
        "rows": np.arange(shown) if data.public_rows is None else data.public_rows[:shown],
        "labels": labels[:shown],
    }
    if data.benchmark and data.y_public is not None:
        content["truth"] = data.y_public[:shown]

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            np.savez_compressed(file, **content)

    make_folder(path.parent)
    write_atomically(path, write, mode=0o644)


def likeliest_labels(labelled: Labelled) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each example that has labels, by its row, and the one with the largest weight."""
    order = np.lexsort((-labelled.weights, labelled.rows))
    rows, first = np.unique(labelled.rows[order], return_index=True)
    return rows, labelled.labels[order][first]


def load_examples(path: Path) -> dict[str, NDArray[Any]] | None:
    """What `save_examples` kept: images, rows, labels and, of benchmarks, the truth; None if there is nothing."""
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def as_images(X: NDArray) -> NDArray[np.uint8] | None:
    """Grey or colour images of bytes, uint8[n, height, width(, 3)]; None if these are no images."""
    if X.ndim == 4 and X.shape[-1] == 1:
        X = X[..., 0]
    if X.ndim not in (3, 4) or (X.ndim == 4 and X.shape[-1] != 3) or not len(X):
        return None
    if X.dtype == np.uint8:
        return np.ascontiguousarray(X)
    values = X.astype(np.float64)
    low, high = values.min(), values.max()
    if low < 0 or high > 1:  # not in the usual interval: as far as these examples reach
        values = (values - low) / max(high - low, 1e-12)
    return (255 * values).round().astype(np.uint8)
