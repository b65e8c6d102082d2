"""What every page is made of: the frame, tables, plots with their tables. No script, nothing from elsewhere."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


SCROLL = '<div class="scroll" tabindex="0" role="region" aria-label="table">'
"""Opens a box that a wide table scrolls in, by touch or by keys."""


def document(title: str, heading: str, main: Iterable[str], footer: str) -> str:
    """A whole page. Its content policy forbids it to load anything. `heading`, `main` and `footer` are HTML."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{_style()}</style>
</head>
<body>
<header>
{heading}
</header>
<main>
{"".join(part for part in main if part)}</main>
<footer>{footer}</footer>
</body>
</html>
"""


@cache
def _style() -> str:
    return (Path(__file__).parent / "style.css").read_text(encoding="utf-8")


def section(heading: str, *content: str) -> str:
    """A titled part of a page."""
    body = "\n".join(part for part in content if part)
    return f"<section>\n<h2>{escape(heading)}</h2>\n{body}\n</section>\n"


def paragraph(text: str, kind: str = "") -> str:
    """Plain text."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{escape(text)}</p>"


def tiles(items: Sequence[tuple[str, str]]) -> str:
    """Large figures, each with what it is."""
    boxes = "\n".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in items)
    return f'<dl class="tiles">\n{boxes}\n</dl>'


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", own: Iterable[int] = (), kind: str = ""
) -> str:
    """Plain cells; columns of figures stand right; rows in `own` stand out."""
    figures = [bool(rows) and all(_is_figure(row[i]) for row in rows) for i in range(len(header))]
    head = "".join(
        f'<th scope="col"{_number(is_figure)}>{escape(cell)}</th>'
        for cell, is_figure in zip(header, figures, strict=True)
    )
    marked = set(own)
    lines = []
    for number, row in enumerate(rows):
        first, *others = row
        cells = f'<th scope="row"{_number(figures[0])}>{escape(first)}</th>' + "".join(
            f"<td{_number(is_figure)}>{escape(cell)}</td>" for cell, is_figure in zip(others, figures[1:], strict=True)
        )
        opening = '<tr class="own">' if number in marked else "<tr>"
        lines.append(f"{opening}{cells}</tr>")
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    attribute = f' class="{kind}"' if kind else ""
    body = "\n".join(lines)
    return f"{SCROLL}<table{attribute}>{title}<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values, one a row, without a header."""
    body = "\n".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    return f"{SCROLL}<table><tbody>\n{body}\n</tbody></table></div>"


def folded(summary: str, content: str) -> str:
    """Content that opens on request; printed in any case."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def plot(svg: str, name: str, alternative: str, caption: str, figures: str) -> str:
    """A plot with its text alternative, and its figures as a table."""
    return (
        f'<figure class="plot">{inline_svg(svg, name, alternative)}'
        f"<figcaption>{escape(caption)}</figcaption></figure>" + folded("The figures of this plot as a table", figures)
    )


def inline_svg(svg: str, name: str, alternative: str) -> str:
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
    label = f'role="img" aria-labelledby="{name}-title {name}-text" width="{width}" height="{height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{view_box.group(1)}" {label}>'
        f'<title id="{name}-title">{escape(name)}</title><desc id="{name}-text">{escape(alternative)}</desc>'
        + svg[len(opening) + 1 :]
    )


def image(png: bytes, alternative: str, width: int, height: int) -> str:
    """A PNG within the page."""
    encoded = base64.b64encode(png).decode()
    size = f'width="{width}" height="{height}"'
    return f'<img {size} alt="{escape(alternative, quote=True)}" src="data:image/png;base64,{encoded}">'


def _number(is_figure: bool) -> str:
    return ' class="number"' if is_figure else ""


def _is_figure(cell: str) -> bool:
    return bool(re.fullmatch(r"[-−±∞–\d.,\s%e+]*", cell))
