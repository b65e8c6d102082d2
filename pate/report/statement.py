"""`privacy.txt`: the guarantee for a data-protection officer, as plain text."""

from __future__ import annotations

import textwrap

from pate.report.explanations import (
    AnyReport,
    describe_parameters,
    how_sure,
    planned_in_words,
    together_in_words,
)
from pate.report.schema import BaselineReport, Report

_WIDTH = 78


def render_statement(report: AnyReport) -> str:
    """The statement; everything in it may be published."""
    parts = [_title(report), _published(report), _unit(report), _guarantee(report), _mechanism(report)]
    parts += [_limits(report), _covered(report), _how_to_check(report)]
    return "\n\n".join(parts) + "\n"


def _title(report: AnyReport) -> str:
    title = f"PRIVACY STATEMENT: {report.name}"
    made = f"pate {report.pate_version}, configuration {report.config_digest}"
    return "\n".join([title, "=" * len(title), made])


def _published(report: AnyReport) -> str:
    if isinstance(report, BaselineReport):
        things = ["model/: the trained model", "report.json, report.html, plots/, privacy.txt: this description"]
    else:
        things = [
            report.voters.labels,
            "student/: a model trained on those labels and on public examples",
            "report.json, report.html, plots/, privacy.txt: this description",
        ]
    what = "It covers what was published:"
    rest = "Everything else of the run (above all the folder private/ and ledger.db) stays with the operator."
    return _section("1. What is published", what, *(f"- {thing}" for thing in things), rest)


def _unit(report: AnyReport) -> str:
    if report.privacy.unit == "id":
        unit = (
            "Unit of privacy: all records that carry one id (for example all records of one person, if the id column "
            "names persons)."
        )
        neighbours = (
            "Neighbouring data sets: two data sets that differ in the records of one id, added, removed or changed. "
            "Replacing one id by another is two such steps."
        )
        if isinstance(report, BaselineReport):  # of a person with several records one counts: which one, may change
            neighbours = (
                "Neighbouring data sets: two data sets of which one has the records of one id more. Changing them, or "
                "replacing one id by another, is two such steps. Of an id with several records one counts."
            )
    else:
        unit = (
            "Unit of privacy: one record. A person with several records is protected less: with k records the "
            "guarantee is that of k steps (about k times the ε, and a larger δ)."
        )
        neighbours = (
            "Neighbouring data sets: two data sets of which one has one record more. Replacing a record by another is "
            "two such steps."
        )
    return _section("2. Who is protected", unit, neighbours)


def _guarantee(report: AnyReport) -> str:
    privacy = report.privacy
    figures = f"(ε, δ)-differential privacy with ε = {privacy.epsilon:.4g} and δ = {privacy.delta:g}."
    kind = (
        "This ε holds for every data set. It was fixed before the first use of the data, does not depend on what the "
        "data were, and may be published."
    )
    words = (
        f"In words: {privacy.statement} Whoever thinks it an even chance that the record is among the data "
        f"{how_sure(privacy.epsilon)} from everything published."
    )
    lines = [figures, kind, words]
    if privacy.sanitised is not None:
        lines.append(
            f"A second figure was released with noise: the answers of this run cost at most ε = "
            f"{privacy.sanitised.epsilon:.4g} at δ = {privacy.sanitised.delta:g}. The cost of releasing it is part of "
            "both figures."
        )
    return _section("3. The guarantee", *lines)


def _mechanism(report: AnyReport) -> str:
    if isinstance(report, BaselineReport):
        settings = planned_in_words(report.planned)
        lines = [
            f"Method: {report.method['name']} ({describe_parameters(report.method)}).",
            f"Worked out before training: {settings}." if settings else "Noise is added as the method's proof demands.",
        ]
    else:
        words = report.description
        lines = [
            report.voters.sensitivity,
            f"Mechanism: {words.title} ({describe_parameters(report.mechanism)}). A query releases {words.releases}.",
            "Noise is integer valued and drawn from the operating system's entropy; the sampler's error is counted in "
            "δ. A label and its charge are stored together before anyone sees the label.",
        ]
    return _section("4. The mechanism", *lines)


def _limits(report: AnyReport) -> str:
    if isinstance(report, BaselineReport):
        return _section("5. Limits", "One training run with the parameters above.", _other_runs(report))
    return _section("5. Limits", *report.voters.limits, _other_runs(report))


def _other_runs(report: AnyReport) -> str:
    others = "Other runs and releases on the same private data are not in this figure: their ε add up."
    known = report.privacy.together
    return others if known is None else f"{others} {together_in_words(known)}"


def _covered(report: AnyReport) -> str:
    lines = [
        "- What was known or inferred about people before, or from other sources. Conclusions that hold for a whole "
        "population (smoking harms) are not prevented, and are not meant to be.",
        "- Public and test examples: they are treated as public. No protection is claimed for people in them.",
        "- The choice of settings (classes, noise, models), which is assumed not to be made by looking at the private "
        "data. Trying settings on the private data and publishing the best costs extra.",
        "- The operator, who sees the private data, and attacks on the computer (access rights, backups, timing).",
        "- Fairness, correctness or suitability of the model for any purpose.",
    ]
    if isinstance(report, Report):
        lines.append(
            "- Anything under private/: votes, teachers and figures computed from them have no guarantee at all."
        )
    if report.benchmark is not None:
        lines.append(
            "- Benchmark figures. In this run public data plays private; accuracy of labels and of a model without "
            "privacy are shown although a run on private data must not show them."
        )
    return _section("6. What is not covered", *lines)


def _how_to_check(report: AnyReport) -> str:
    lines = ["The figures are in report.json under `privacy`; report.html says how to repeat the run."]
    if isinstance(report, Report):
        lines.append("`pate ledger verify RUN` checks that no charge was changed or removed since.")
        if report.anchored is not None:
            lines.append(_anchor(report.anchored))
    return _section("7. How to check it", *lines)


def _anchor(anchored: bool) -> str:
    if anchored:
        return (
            "The ledger's codes were also kept outside the run (an anchor), so that a copy of the run which goes on, "
            "or one that was rolled back, is found."
        )
    return (
        "The ledger's codes were kept in the run alone (no anchor): that no copy of it went on is the operator's word."
    )


def _section(heading: str, *paragraphs: str) -> str:
    wrapped = [
        textwrap.fill(text, _WIDTH, subsequent_indent="  " if text.startswith("- ") else "", break_on_hyphens=False)
        for text in paragraphs
    ]
    return "\n".join([heading, "-" * len(heading), *wrapped])
