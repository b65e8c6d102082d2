"""The report's files: what they say, that they can be made again, and that nothing private is in them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from jinja2 import UndefinedError
from support.command_line import in_process

from pate.config import load_config
from pate.report._files import read_report, write_pages
from pate.report._pages import Page, PageBlock, Section
from pate.report.schema import Report
from pate.report.sections._pipeline import as_images
from pate.report.sections._quality import paper_rows, sources
from pate.voters import voters_of


@pytest.fixture
def copied(finished_run: Path, tmp_path: Path) -> Path:
    """The run again, to be changed."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def numbers_in(text: str) -> set[float]:
    return {float(number) for number in re.findall(r"\d+\.\d+(?:e[-+]?\d+)?", text)}


def test_files_are_there(finished_run: Path) -> None:
    for name in ("classes", "epsilon"):
        assert (finished_run / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (finished_run / "plots" / f"{name}.svg").read_text()
    assert (finished_run / "report.html").stat().st_mode & 0o777 == 0o644
    private = finished_run / "private" / "report.html"
    assert private.stat().st_mode & 0o777 == 0o600
    assert "Private: do not publish." in private.read_text()


def test_page_without_the_private_folder_is_the_same(copied: Path) -> None:
    """The strongest scan: whatever is under private/, the public files come out byte for byte the same without it."""
    before = {path.name: path.read_bytes() for path in [*copied.glob("plots/*"), *copied.glob("*.html")]}
    before["privacy.txt"] = (copied / "privacy.txt").read_bytes()
    for path in (copied / "private", copied / "ledger.db", copied / "student"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_pages(copied)
    after = {path.name: path.read_bytes() for path in [*copied.glob("plots/*"), *copied.glob("*.html")]}
    after["privacy.txt"] = (copied / "privacy.txt").read_bytes()
    assert {name: after[name] == content for name, content in before.items()} == dict.fromkeys(before, True)
    assert not (copied / "private").exists()


def floats_in(value: object) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from floats_in(item)


def format_rate(values: Iterable[float]) -> set[str]:
    """How figures may be written, with four digits or more: fewer are equal by chance too often."""
    ways = [f"{x:.{digits}g}" for value in values for x in (value, 100 * value) for digits in (4, 5, 6)]
    return {way for way in ways if len(way.replace(".", "")) >= 4}


def test_nothing_private_is_published(finished_run: Path, published: Callable[[Path], dict[str, str]]) -> None:
    private = finished_run / "private"
    costs = json.loads((private / "epsilon.json").read_text())
    evaluation = json.loads((private / "evaluation.json").read_text())
    secret = {costs["by_rdp"], costs["by_pld"], *costs["by_rdp_after"]["epsilon"], evaluation["mean_teacher_accuracy"]}
    public = set(floats_in(json.loads((finished_run / "report.json").read_text())))
    assert not secret & public
    forms = format_rate(secret) - format_rate(public)
    with np.load(private / "votes.npz") as votes:
        rows = {",".join(map(str, row)) for row in votes["counts"] if (row > 0).sum() > 2}
    texts = published(finished_run)
    assert {"report.html", "report.json", "privacy.txt", "plots/classes.svg", "student/student.json"} <= texts.keys()
    for name, text in texts.items():
        assert not format_rate(numbers_in(text)) & forms, name
        packed = re.sub(r"[\s,\[\]·]+", ",", text)
        assert not any(row in packed for row in rows), name
        for word in ("data_dependent", "by_rdp", "by_pld", "mean_teacher", "plurality", "1197", "1,197"):
            assert word not in text, (name, word)


def test_the_scan_finds_what_the_private_page_holds(copied: Path, published: Callable[[Path], dict[str, str]]) -> None:
    """Else it would prove nothing."""
    shutil.copy(copied / "private" / "report.html", copied / "report.html")
    with pytest.raises(AssertionError, match=r"report\.html"):
        test_nothing_private_is_published(copied, published)


def test_report_says_what_the_run_did(finished_run: Path) -> None:
    report = read_report(finished_run)
    assert isinstance(report, Report)
    assert [kind.teachers for kind in report.voters.teachers] == [27, 13]
    assert report.curves is not None
    tight, closed_form = (np.array(values) for values in report.curves.epsilon.values())
    assert tight[-1] < report.privacy.epsilon, "the run's own point is above by the cost of the sanitised figure"
    config = load_config(finished_run / "config.yaml")
    plain = voters_of(config.model_copy(update={"budget": config.budget.model_copy(update={"sanitise": None})}))
    curve, _ = (plain.epsilon_curves(10) or {}).values()
    assert curve[120] == pytest.approx(plain.publishable_epsilon(10), rel=1e-6)
    assert (tight <= closed_form + 1e-12).all()
    assert (np.diff(tight) > 0).all()
    assert report.versions["numpy"] == np.__version__


def test_statement_names_what_an_officer_asks_for(finished_run: Path) -> None:
    text = (finished_run / "privacy.txt").read_text()
    report = read_report(finished_run)
    for words in ("Unit of privacy: one record", "Neighbouring data sets", f"ε = {report.privacy.epsilon:.4g}"):
        assert words in text
    for words in ("δ = 1e-05", "Confident-GNMax", "at most 120 queries", "What is not covered"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 78


class _Tags(HTMLParser):
    """Images, and whether each has a text; plots, and whether each has a table."""

    def __init__(self) -> None:
        super().__init__()
        self.images: list[str | None] = []
        self.plots = self.tables = self.titles = 0
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.images += [given.get("alt")] if tag == "img" else []
        self.plots += tag == "svg" and given.get("role") == "img"
        self.titles += tag == "desc"
        self.tables += tag == "table"
        self.addresses += [given[key] or "" for key in ("src", "href", "xlink:href") if key in given and tag != "a"]


def test_every_picture_has_a_text_and_a_table(finished_run: Path) -> None:
    tags = _Tags()
    tags.feed((finished_run / "report.html").read_text())
    assert len(tags.images) == 24
    assert all(tags.images)
    assert tags.plots == tags.titles == 2
    assert tags.tables >= tags.plots + 1
    assert all(address.startswith(("data:", "#")) for address in tags.addresses)  # nothing from elsewhere


def test_ids_in_the_page_are_unique(finished_run: Path) -> None:
    ids = re.findall(r' id="([^"]+)"', (finished_run / "report.html").read_text())
    assert len(ids) == len(set(ids))


def test_pate_report_makes_the_page_again(copied: Path) -> None:
    (copied / "report.html").unlink()
    code = (
        "import sys; from pate.cli import main; sys.argv = ['pate', 'report', sys.argv[1]]\n"
        "try: main()\nexcept SystemExit as end: assert not end.code, end.code\n"
        "assert not {'ray', 'torch', 'sklearn'} & set(sys.modules), 'loads too much'"
    )
    subprocess.run([sys.executable, "-c", code, str(copied)], check=True, timeout=300)
    assert (copied / "report.html").exists()


def test_a_folder_without_a_run_is_refused_in_one_line(tmp_path: Path) -> None:
    status, _, said = in_process("report", tmp_path)
    assert status == 2
    assert "has no report.json" in said
    assert len(said.strip().splitlines()) == 1


def test_a_report_of_an_earlier_version_still_makes_a_page(copied: Path) -> None:
    content = json.loads((copied / "report.json").read_text())
    for key in ("data", "public_examples", "curves", "versions"):
        del content[key]
    del content["voters"]["teachers"], content["student"]["confusion"]
    (copied / "report.json").write_text(json.dumps(content))
    shutil.rmtree(copied / "plots")
    write_pages(copied, images=False)
    assert "To repeat it" in (copied / "report.html").read_text()


def test_papers_figures_have_sources_and_names_of_configs() -> None:
    for data in ("mnist", "svhn", "adult"):
        rows = paper_rows(data)
        assert rows
        (listed,) = sources(rows)
        assert isinstance(listed, PageBlock)
        assert all(url.startswith("https://") for _, url in listed.content)
        assert all(0 < row.accuracy < (row.nonprivate or 1) for row in rows)
        assert load_config(Path(__file__).parents[2] / "configs" / f"{data}.yaml").data.source == data
    assert [(row.epsilon, row.label) for row in paper_rows("cifar10")] == [(1.0, "reverse k-NN 2022")]
    assert paper_rows("digits") == []


def test_colour_images_and_tables() -> None:
    assert as_images(np.zeros((2, 5))) is None
    assert as_images(np.zeros((2, 4, 4, 7))) is None
    colour = as_images(np.full((2, 4, 4, 3), 0.5))
    assert colour is not None
    assert colour.shape == (2, 4, 4, 3)
    assert as_images(np.array([[[-1.0, 3.0]]])).tolist() == [[[0, 255]]]  # type: ignore[union-attr]


def test_names_are_text_in_every_page(copied: Path) -> None:
    """A run, a class or a teacher may be called anything; the private page used to take its run's name as HTML."""
    name = "<script>alert('&amp;')</script>"
    report = json.loads((copied / "report.json").read_text())
    report["name"] = name
    report["classes"] = [f"{name}{i}" for i in range(len(report["classes"]))]
    for kind in report["voters"]["teachers"]:
        kind["name"] = name
    (copied / "report.json").write_text(json.dumps(report))
    seconds = json.loads((copied / "private" / "seconds.json").read_text())
    (copied / "private" / "seconds.json").write_text(json.dumps(seconds | {name: 1.0}))
    write_pages(copied, images=False)
    for page in ("report.html", "private/report.html"):
        tags, texts = set(), []
        parser = HTMLParser()
        parser.handle_starttag = lambda tag, _, tags=tags: tags.add(tag)  # type: ignore[method-assign,assignment,misc]
        parser.handle_data = texts.append  # type: ignore[method-assign]
        parser.feed((copied / page).read_text())
        assert "script" not in tags, page
        assert any(name in text for text in texts), page


def test_a_value_that_a_template_does_not_get_is_an_error() -> None:
    """Never a gap in a page that somebody relies on."""
    with pytest.raises(UndefinedError, match="width"):
        Page("a", "b", "c", [Section("d", content=[PageBlock("pictures", [{"kind": ""}])])]).render()
