"""Pages of sections, and how figures and settings are written for people. A page has no script and loads nothing.

Whatever the template `templates/page.html.j2` is given is text and is escaped, so that a run, a class or a teacher may
be called anything. Only what is of type `Markup` counts as HTML, made here alone: drawings and the style sheet.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup
    from matplotlib.figure import Figure

TOO_FEW = "too few"
"""Stands in place of a figure that too few examples cannot tell."""


def small(delta: float) -> str:
    """A probability such as δ, for people.

    >>> small(1e-5), small(2.5e-6), small(0)
    ('10⁻⁵', '2.5e-06', '0')
    """
    power = round(math.log10(delta)) if delta > 0 else 0
    if power < 0 and math.isclose(delta, 10.0**power):
        return "10" + f"{power}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{delta:g}"


def percent(share: float | None) -> str:
    """A share in percent, for people.

    >>> percent(0.8651)
    '86.5 %'
    """
    return "not measured" if share is None else f"{100 * share:.1f} %"


def points(share: float, error: float) -> str:
    """A difference of shares in percentage points, with its standard error.

    >>> points(0.0321, 0.0049), points(-0.012, 0.003), points(-0.0001, 0.002)
    ('3.2 ± 0.5', '−1.2 ± 0.3', '0.0 ± 0.2')
    """
    shown = f"{100 * share:.1f}".replace("-", "−")
    return f"{'0.0' if shown == '−0.0' else shown} ± {100 * error:.1f}"


def format_change(share: float, error: float) -> str:
    """A loss in percentage points, in words.

    >>> format_change(0.0321, 0.0049), format_change(-0.012, 0.003)
    ('lost 3.2 ± 0.5', 'gained 1.2 ± 0.3')
    """
    return f"lost {points(share, error)}" if share >= 0 else f"gained {points(-share, error)}"


def short_name(name: str) -> str:
    """The last part of a dotted path.

    >>> short_name("sklearn.svm.SVC")
    'SVC'
    """
    return name.rpartition(".")[2]


def describe_settings(settings: Mapping[str, Any]) -> str:
    """Parameters beside a name, short ones only.

    >>> describe_settings({"C": 10, "name": "x", "steps": [{"deep": 1}]})
    'C 10'
    """
    shown = []
    for key, value in settings.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        if key != "name" and "{" not in text and len(text) <= 40:
            shown.append(f"{key.replace('_', ' ')} {text}")
    return ", ".join(shown)


def describe_planned(planned: Mapping[str, Any]) -> str:
    """What was computed before training; numbers of steps are whole, however many.

    >>> describe_planned({"sigma": 1.23456, "steps": 12_345})
    'sigma 1.235, steps 12345'
    """
    return ", ".join(f"{key} {f'{value:.4g}' if isinstance(value, float) else value}" for key, value in planned.items())


_TEMPLATES = Path(__file__).parent / "templates"

Fact = tuple[str, str]
"""A name and a value, for people."""


@dataclass(frozen=True)
class PageTable:
    """Cells of plain text. Columns of numbers are aligned right, and the first `own` rows are emphasised."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    own: int = 0
    kind: ClassVar[str] = "table"

    @property
    def is_figure(self) -> list[bool]:
        """For each column, whether it holds nothing but numbers."""
        return [bool(self.rows) and all(_is_figure(row[i]) for row in self.rows) for i in range(len(self.header))]


@dataclass(frozen=True)
class Plot:
    """A drawing by the name of its file, with a text alternative, and its figures as a table."""

    name: str
    alternative: str
    caption: str
    table: PageTable
    draw: Callable[[], Figure]
    open: bool = False
    kind: ClassVar[str] = "plot"


@dataclass(frozen=True)
class PageBlock:
    """Another part of a page: `kind` is what the template draws it as, and `content` what is drawn."""

    kind: str
    content: Any
    title: str = ""
    open: bool = False


Content = str | PageTable | Plot | PageBlock
"""What a section of a page consists of; a text is a paragraph."""


@dataclass(frozen=True)
class Section:
    """One subject of a report, and all that is shown of it; where it has nothing to show, it is left out.

    The terminal shows its `facts`, a page its `content`, and the privacy statement its `statement`, paragraph by
    paragraph.
    """

    title: str
    facts: Sequence[Fact] = ()
    content: Sequence[Content] = ()
    statement: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """A page: what it begins with, its sections, and its last line."""

    title: str
    eyebrow: str
    heading: str
    sections: Sequence[Section]
    lead: str = ""
    tiles: Sequence[Fact] = ()
    warnings: Sequence[str] = ()
    footer: str = ""

    def drawings(self) -> dict[str, Callable[[], Figure]]:
        """All drawings of its sections."""
        plots = (block for section in self.sections for block in section.content if isinstance(block, Plot))
        return {plot.name: plot.draw for plot in plots}

    def render(self, svg: Mapping[str, str] | None = None) -> str:
        """The page as HTML text; `svg` are its drawings as files, where these are there already."""
        if svg is None:
            from pate.report._plots import as_svg

            svg = {name: as_svg(draw(), name) for name, draw in self.drawings().items()}
        drawn = svg

        def drawing(plot: Plot) -> Markup:
            return _inline_svg(drawn[plot.name], plot.name, plot.alternative)

        shown = [section for section in self.sections if section.content]
        return _template().render(page=self, sections=shown, drawing=drawing)


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["style"] = Markup((_TEMPLATES / "style.css").read_text(encoding="utf-8"))
    return environment.get_template("page.html.j2")


def _inline_svg(svg: str, name: str, alternative: str) -> Markup:
    """An SVG file as part of a page: in the page's colours and font, with a text alternative and ids of its own."""
    from markupsafe import Markup

    from pate.report._plots import CSS_COLOURS

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
    head = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{box}" role="img" '
        'aria-labelledby="{name}-title {name}-text" width="{width}" height="{height}">'
        '<title id="{name}-title">{name}</title><desc id="{name}-text">{text}</desc>'
    )
    filled = head.format(box=view_box.group(1), name=name, width=width, height=height, text=alternative)
    return Markup(filled + Markup(svg[len(opening) + 1 :]))


def png_data_url(png: bytes) -> str:
    """A PNG as a data: address, which holds the whole image."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _is_figure(cell: str) -> bool:
    return cell == TOO_FEW or bool(re.fullmatch(r"[-−±∞–\d.,\s%e+]*", cell))
