"""`report.html`: one self-contained page."""

from __future__ import annotations

from html import escape

from pate.report.schema import BaselineReport, Report
from pate.report.words import baseline_rows, summary_rows

STYLE = """
:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid #8886; }
th { white-space: nowrap; font-weight: 600; }
pre { overflow-x: auto; padding: .8rem; border: 1px solid #8886; border-radius: .4rem; }
"""


def render_page(report: Report | BaselineReport, config_yaml: str) -> str:
    """The page as HTML text."""
    summary = summary_rows(report, {}) if isinstance(report, Report) else baseline_rows(report, {})
    rows = "\n".join(
        f"<tr><th scope='row'>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in summary
        if name != "seconds"
    )
    note = f"<p>{escape(report.benchmark.note)}</p>" if report.benchmark else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>pate: {escape(report.name)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(report.name)}</h1>
<table>
{rows}
</table>
{note}
<h2>Configuration</h2>
<pre>{escape(config_yaml)}</pre>
<p>pate {escape(report.pate_version)}, config {escape(report.config_digest)}</p>
</body>
</html>
"""
