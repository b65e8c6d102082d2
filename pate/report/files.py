"""The files of a report, made from what a finished run has stored: no data, no Ray, no training."""

from __future__ import annotations

from pathlib import Path

from pate.config import read_yaml
from pate.errors import RunError
from pate.report.explanations import AnyReport
from pate.report.figures import load_examples
from pate.report.page import draw, render_page
from pate.report.plots import as_png, as_svg
from pate.report.private_page import render_private_page
from pate.report.published_config import published_yaml
from pate.report.reading import read_report
from pate.report.schema import Report
from pate.report.statement import render_statement
from pate.runs.files import RunFiles
from pate.storage.files import make_folder, write_atomically


def store_report(path: Path, report: AnyReport) -> None:
    """Write `report.json`: what a run publishes about itself, and what the pages are made from."""
    text = report.model_dump_json(indent=2) + "\n"
    write_atomically(RunFiles(path).report_file, lambda file: file.write_text(text, encoding="utf-8"), mode=0o644)


def write_pages(path: Path, images: bool = True) -> AnyReport:
    """`report.html`, `privacy.txt` and `plots/` from what is stored, and `private/report.html` if votes are.

    Without `images` the plots are there as SVG only: what can be drawn as one can be drawn as the other.
    """
    report, run = read_report(path), RunFiles(path)
    if not run.config_file.exists():
        raise RunError(f"{path}: has no {run.config_file.name}; name the directory of a finished run")
    config_yaml = published_yaml(read_yaml(run.config_file))
    examples = load_examples(run.examples_file)
    drawn = draw(report, examples)
    svg = {name: as_svg(figure, name) for name, figure in drawn.items()}
    if drawn:
        make_folder(run.plots)
    for name, figure in drawn.items():
        _write(run.plots / f"{name}.svg", svg[name].encode())
        if images:
            _write(run.plots / f"{name}.png", as_png(figure))
    _write(run.page, render_page(report, config_yaml, svg, examples).encode())
    _write(run.statement, render_statement(report).encode())
    if isinstance(report, Report) and run.private.is_dir():
        page = render_private_page(report, run)
        if page is not None:
            _write(run.private_page, page.encode(), mode=0o600)
    return report


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    write_atomically(path, lambda file: file.write_bytes(content), mode=mode, durable=False)
