"""The page in a real browser: no complaint, no overflow, everything has size, it prints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Browser, browser, chromium

from pate.report._files import write_pages

pytestmark = pytest.mark.skipif(chromium() is None, reason="no chromium here: apt-get install chromium")

_SIZES = "[...document.querySelectorAll('img, svg')].map(e => e.getBoundingClientRect()).map(r => r.width * r.height)"
_BROKEN = "[...document.images].filter(i => !i.complete || !i.naturalWidth).length"
_TOO_WIDE = """[...document.querySelectorAll('body *')]
  .filter(e => !e.closest('.scroll, pre, svg') && e.getBoundingClientRect().right > innerWidth + 1)
  .map(e => e.tagName + ' ' + e.className)"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["report.html", "private/report.html"])
def test_page_is_whole(tab: Browser, finished_run: Path, name: str, width: int, dark: bool) -> None:
    tab.show(finished_run / name, width, dark=dark)
    assert tab.complaints == []
    assert [url for url in tab.requested if not url.startswith(("file:", "data:"))] == []
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.value(_TOO_WIDE) == []
    assert min(tab.value(_SIZES)) > 100
    assert tab.value(_BROKEN) == 0
    background = tab.value("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(17, 19, 23)") == dark


def test_page_overflows_nowhere_with_all_tables_open(tab: Browser, finished_run: Path) -> None:
    tab.show(finished_run / "report.html", 390)
    tab.value("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert tab.value("document.documentElement.scrollWidth") <= 390


def test_long_names_and_no_images_fit_too(tab: Browser, finished_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run, ignore=shutil.ignore_patterns("private", "plots"))
    report = json.loads((run / "report.json").read_text())
    report["classes"] = [f"a-rather-long-name-of-class-{name}" for name in report["classes"]]
    report["data"] = "mnist"
    report["voters"]["teachers"][0] |= {"name": "a_package.with.a.very.long.name.AClassifierWithAVeryLongNameIndeed"}
    (run / "report.json").write_text(json.dumps(report))
    write_pages(run)
    for width in (390, 1280):
        tab.show(run / "report.html", width)
        assert tab.value(_TOO_WIDE) == []
        assert tab.value("document.documentElement.scrollWidth") <= width
    assert "Private-kNN" in tab.value("document.body.innerText")
    assert tab.complaints == []


def test_page_prints(tab: Browser, finished_run: Path) -> None:
    tab.show(finished_run / "report.html", 1280)
    pdf = tab.pdf()
    assert pdf.startswith(b"%PDF")
    assert 2 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page/") <= 12
