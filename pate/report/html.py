"""From values to pages: templates in `templates/` hold the HTML. Pages have no script and nothing from elsewhere.

Whatever a template is given is text and is escaped, so that a run, a class or a teacher may be called anything. Only
what is of type `Markup` counts as HTML, and it is made here alone: drawings and the style sheet.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pate.report.formats import TOO_FEW, percent, small

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class HtmlTable:
    """Cells of plain text. Columns of numbers are aligned right, and the first `own` rows are emphasised."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    own: int = 0

    @property
    def is_figure(self) -> list[bool]:
        """For each column, whether it holds nothing but numbers."""
        return [bool(self.rows) and all(_is_figure(row[i]) for row in self.rows) for i in range(len(self.header))]


@dataclass(frozen=True)
class Plot:
    """A drawing with its text alternative, and its figures as a table."""

    drawing: Markup
    caption: str
    table: HtmlTable


def render(template: str, **values: Any) -> str:
    """The template filled with values; one that it names and is not given is an error, never a gap."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"percent": percent, "small": small}
    environment.globals["style"] = Markup((_TEMPLATES / "style.css").read_text(encoding="utf-8"))
    return environment


def inline_svg(svg: str, name: str, alternative: str) -> Markup:
    """An SVG file as part of a page: in the page's colours and font, with a text alternative and ids of its own."""
    from pate.report.plots import CSS_COLOURS

    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="(?![mp][0-9a-f]{10}"|C\d)[\w.]+"', "", svg)  # names of groups, the same in every plot
    for hexadecimal, variable in CSS_COLOURS.items():
        svg = svg.replace(hexadecimal, f"var({variable})")
    svg = re.sub(r"(font: (?:\d+ )?[\d.]+px) [^;\"]*", r"\1 var(--font)", svg)
    opening = svg[: svg.index(">")]
    view_box = re.search(r'viewBox="([^"]+)"', opening)
    assert view_box is not None
    width, height = view_box.group(1).split()[2:]
    head = render(
        "svg_head.html.j2",
        name=name,
        alternative=alternative,
        view_box=view_box.group(1),
        width=width,
        height=height,
    )
    return Markup(head.rstrip("\n") + svg[len(opening) + 1 :])


def png_data_url(png: bytes) -> str:
    """A PNG as a data: address, which holds the whole image."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _is_figure(cell: str) -> bool:
    return cell == TOO_FEW or bool(re.fullmatch(r"[-−±∞–\d.,\s%e+]*", cell))
