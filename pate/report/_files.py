"""The report of a run in its files and on a terminal, from what the run has stored: no data, no Ray, no training."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pate.config import read_yaml
from pate.errors import RunError
from pate.report._formats import percent, small
from pate.report._html import Fact, Page
from pate.report._papers import plane
from pate.report._plots import as_png, as_svg
from pate.report._private_page import private_page
from pate.report._published_config import published_yaml
from pate.report.schema import AnyReport, BaselineReport, Report
from pate.report.sections import _pipeline as pipeline
from pate.report.sections import _privacy as privacy
from pate.report.sections._groups import groups
from pate.report.sections._quality import classes, headline, quality, skewed
from pate.runs._files import RunFiles
from pate.storage._files import make_folder, write_atomically

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TERMINAL = (pipeline.pipeline, quality, classes, groups, privacy.guarantee, privacy.verification)
_STATEMENT = (
    privacy.published,
    privacy.protected,
    privacy.guarantee,
    privacy.mechanism,
    privacy.limits,
    privacy.coverage,
    privacy.verification,
)
_WIDTH = 78  # characters of a line of the privacy statement


def read_report(path: Path) -> AnyReport:
    """The stored report of a run or of a baseline."""
    try:
        content = json.loads(RunFiles(path).report_file.read_text(encoding="utf-8"))
        kind = BaselineReport if content.get("kind") == "baseline" else Report
        return kind.model_validate(content)
    except FileNotFoundError:
        raise RunError(f"{path}: has no report.json; name the directory of a finished run") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "it"
        raise RunError(f"{path}/report.json: {key}: {first['msg']}; was it made by another version?") from None
    except (OSError, ValueError, AttributeError) as error:
        raise RunError(f"{path}/report.json: cannot be read ({error})") from None


def store_report(path: Path, report: AnyReport) -> None:
    """Write `report.json`: what a run publishes about itself, and what the pages are made from."""
    _write(RunFiles(path).report_file, f"{report.model_dump_json(indent=2)}\n".encode(), durable=True)


def write_pages(path: Path, images: bool = True) -> AnyReport:
    """`report.html`, `privacy.txt` and `plots/` from what is stored, and `private/report.html` if votes are.

    Without `images` the plots are there as SVG only: what can be drawn as one can be drawn as the other.
    """
    report, files = read_report(path), RunFiles(path)
    if not files.config_file.exists():
        raise RunError(f"{path}: has no {files.config_file.name}; name the directory of a finished run")
    page = run_page(report, published_yaml(read_yaml(files.config_file)), pipeline.load_examples(files.examples_file))
    svg = {}
    for name, draw in page.drawings().items():
        figure = draw()
        svg[name] = as_svg(figure, name)
        make_folder(files.plots)
        _write(files.plots / f"{name}.svg", svg[name].encode())
        if images:
            _write(files.plots / f"{name}.png", as_png(figure))
    _write(files.page, page.render(svg).encode())
    _write(files.statement, render_statement(report).encode())
    if isinstance(report, Report) and files.private.is_dir():
        inside = private_page(report, files)
        if inside is not None:
            _write(files.private_page, inside.render().encode(), mode=0o600)
    return report


def _write(path: Path, content: bytes, mode: int = 0o644, durable: bool = False) -> None:
    write_atomically(path, lambda file: file.write_bytes(content), mode=mode, durable=durable)


def run_page(report: AnyReport, config_yaml: str, examples: dict[str, NDArray[Any]] | None = None) -> Page:
    """`report.html`; `config_yaml` may be published, and `examples` are those that the run kept for it."""
    tiles = [(f"ε to publish, at δ = {small(report.privacy.delta)}", f"{report.privacy.epsilon:.3g}")]
    student = report.student
    if student.accuracy is not None:
        right = [(f"right on {student.test_examples:,} test examples", percent(student.accuracy))]
        if skewed(student):
            right.append(("right on average over classes", percent(student.balanced_accuracy)))
        tiles = [*right, *tiles]
    if isinstance(report, Report):
        tiles += report.voters.counts
    marked = ", and figures marked as benchmark" if report.benchmark else ""
    return Page(
        title=f"pate: {report.name}",
        eyebrow=f"pate · {report.name}",
        heading=headline(report),
        lead=pipeline.summary(report),
        tiles=tiles,
        warnings=report.warnings,
        sections=(
            privacy.guarantee(report),
            pipeline.pipeline(report),
            pipeline.teachers(report),
            quality(report),
            classes(report),
            groups(report),
            pipeline.released(report, examples),
            privacy.cost_by_queries(report),
            plane(report),
            pipeline.repetition(report, config_yaml),
        ),
        footer=(
            "Nothing on this page depends on the private records except through what the guarantee "
            f"covers{marked}. Votes, teachers' accuracies and figures computed from them are not here. The guarantee "
            "in full is in privacy.txt, beside this page."
        ),
    )


def summary_rows(report: AnyReport) -> list[Fact]:
    """What a command shows at its end: what may be published, so nothing of how long private work took."""
    return [fact for section in _TERMINAL for fact in section(report).facts]


def render_statement(report: AnyReport) -> str:
    """`privacy.txt`: the guarantee for a data-protection officer. Everything in it may be published."""
    title = f"PRIVACY STATEMENT: {report.name}"
    made = f"pate {report.pate_version}, configuration {report.config_digest}"
    parts = ["\n".join([title, "=" * len(title), made])]
    for number, section in enumerate((make(report) for make in _STATEMENT), start=1):
        heading = f"{number}. {section.title}"
        wrapped = [
            textwrap.fill(text, _WIDTH, subsequent_indent="  " * text.startswith("- "), break_on_hyphens=False)
            for text in section.statement
        ]
        parts.append("\n".join([heading, "-" * len(heading), *wrapped]))
    return "\n\n".join(parts) + "\n"
