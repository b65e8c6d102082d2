"""The guarantee in words: the right unit, the right ε, and never rounded in favour of the program."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from pate.config import parse_config
from pate.data.public import PublicData
from pate.report._builder import describe_mechanism
from pate.report._files import render_statement, run_page
from pate.report._pages import Page, PageBlock, PageTable, Section
from pate.report._plots import class_accuracies
from pate.report.schema import EpsilonCurves, Queries, Report
from pate.report.sections._privacy import curves_table, guarantee, how_sure, privacy_statement
from pate.report.sections._quality import headline
from pate.reproduce._table import vote_figures
from pate.voters import voters_of

QUERIES = Queries(asked=30, answered=20, max_queries=77, max_answers=55)
MECHANISM = {"name": "gnmax", "sigma": 4}


def report(classes: tuple[str, ...] = ("a", "b"), **privacy: Any) -> Report:
    privacy = {"epsilon": 2.0, "delta": 1e-5, "unit": "record"} | privacy
    privacy["statement"] = privacy_statement(
        privacy["epsilon"], privacy["delta"], privacy["unit"], changed=privacy["unit"] == "id"
    )
    content = {
        "data": {"source": "arrays"},
        "n_teachers": 10,
        "mechanism": MECHANISM,
        "student": {"name": "supervised"},
    }
    voters = voters_of(parse_config(content | {"teachers": [{"name": "sklearn.svm.SVC"}]}))
    return Report.model_validate(
        {
            "name": "r",
            "pate_version": "1",
            "config_digest": "d",
            "voters": voters.facts(PublicData(np.zeros((90, 2)), classes), QUERIES, QUERIES.answered),
            "classes": classes,
            "mechanism": MECHANISM,
            "description": describe_mechanism(voters),
            "queries": QUERIES,
            "privacy": privacy,
            "student": {"name": "supervised", "test_examples": 50, "accuracy": 0.9, "confusion": ((20, 5), (0, 25))},
            "benchmark": None,
        }
    )


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.7, 1.0, 1.234, 2.0, 3.3, 5.0, 9.99, 13.0, 17.9, 18.2, 25.5])
def test_figures_in_words_are_never_below_the_truth(epsilon: float) -> None:
    words = privacy_statement(epsilon, 1e-5, "record")
    power = re.search(r"a factor of e\^(\d+)", words)
    number = re.search(r"a factor of ([\d.,]+) ", words)
    told = math.exp(int(power[1])) if power else float(number[1].replace(",", ""))  # type: ignore[index]
    assert math.exp(epsilon) * (1 - 1e-9) <= told <= math.exp(epsilon) * (2.72 if power else 1.011)
    sure = re.search(r"at most ([\d.]+) %", how_sure(epsilon))
    truth = 100 / (1 + math.exp(-epsilon))
    assert (truth > 99.9) if sure is None else truth <= float(sure[1]) + 1e-9 < truth + 0.2


def test_delta_is_told_where_there_is_one() -> None:
    assert privacy_statement(1.0, 1e-5, "record").endswith("except with probability about 1e-05 (δ).")
    assert "probability about" not in privacy_statement(1.0, 0.0, "record")


@pytest.mark.parametrize(("unit", "others"), [("record", "id"), ("id", "record")], ids=["a record", "a person"])
def test_every_text_names_the_unit_that_is_protected(unit: str, others: str) -> None:
    said = {
        "record": (
            "Adding or removing one record changes",
            "that one record was among",
            "Unit of privacy: one record.",
        ),
        "id": (
            "changing all records of one id changes",
            "that the records of one id",
            "Unit of privacy: all records that",
        ),
    }
    found = report(unit=unit)
    page = [text for text in guarantee(found).content if isinstance(text, str)]
    text = " ".join(f"{' '.join(page)} {render_statement(found)}".split())
    assert all(words in text for words in said[unit])
    assert not any(words in text for words in said[others])


def test_what_is_published_is_the_epsilon_for_every_data_set() -> None:
    sanitised = {"epsilon": 0.5, "delta": 1e-5, "order": 8.0, "rdp_bound": 0.1, "release_rdp": 0.01}
    found = report(sanitised=sanitised)
    assert headline(found).endswith("at ε = 2")
    assert "privacy with ε = 2 and δ = 1e-05" in render_statement(found)


def test_limits_are_told_and_not_what_was_used() -> None:
    text = " ".join(render_statement(report()).split())
    assert "at most 77 queries, at most 55 of them answered. Used: 30 asked, 20 answered." in text


def test_what_has_no_guarantee_costs_infinitely_much() -> None:
    curves = EpsilonCurves(queries=(1, 2), epsilon={"tight": (0.5, None)})
    assert curves_table(curves).rows == [("1", "0.500"), ("2", "∞")]


def test_a_class_that_is_taken_for_another_is_never_right() -> None:
    assert [share for share, *_ in class_accuracies([[0, 9], [1, 3]])] == [0.0, 0.75]


def test_the_lead_is_over_the_second_class() -> None:
    votes = np.array([[60, 30, 10], [10, 20, 70]])
    figures = vote_figures(votes, np.array([0, 0]))
    assert figures["gap"] == pytest.approx((0.3 + 0.5) / 2)
    assert figures["mean_teacher_accuracy"] == pytest.approx(0.35)
    assert figures["plurality_accuracy"] == 0.5


def test_a_report_takes_no_other_fields() -> None:
    content = report().model_dump(mode="json")
    for section in (content, content["privacy"], content["student"], content["queries"]):
        section["records"] = 1237
        with pytest.raises(ValidationError, match="records"):
            Report.model_validate(content)
        del section["records"]


def test_class_names_are_text_wherever_the_page_shows_them() -> None:
    name = "<script>alert('&amp;')</script>"
    page = run_page(report(classes=(f"{name}0", f"{name}1")), "seed: 1").render()
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 8
    picture = dict.fromkeys(("title", "text", "note", "kind", "address", "width", "height"), name)
    kinds = ("bold", "note", "code", "heading")
    content = [
        name,
        PageTable((name,), [(name,)]),
        *(PageBlock(kind, name) for kind in kinds),
        PageBlock("folded", name, name),
        PageBlock("list", [name]),
        PageBlock("terms", [(name, name)]),
        PageBlock("facts", [(name, name)]),
        PageBlock("sources", [(name, name)]),
        PageBlock("steps", [(True, name, name)]),
        PageBlock("families", [(name, name, name, name)]),
        PageBlock("confusion", [(name, [1])]),
        PageBlock("pictures", [picture]),
    ]
    page = Page(name, name, name, [Section(name, content=content)], name, [(name, name)], [name], name).render()
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 35
