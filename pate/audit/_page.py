"""`private/audit.html`, and its public copy on benchmark data: what was tried, what was gained, what is not proved.

For people who decide about data, not for specialists: every figure comes with a sentence that says what it means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from pate.audit.results import HEADER, AttackResult, Audit, attack_classes
from pate.report import _plots as plots
from pate.report._formats import percent, small
from pate.report._html import Content, Page, PageBlock, PageTable, Plot, Section
from pate.report.sections._pipeline import picture

if TYPE_CHECKING:
    from pate.audit._target import Subject

_WARNING = "Private: do not publish. These figures depend on the private records and have no guarantee."
_PUBLIC = "Public data plays private here; of private data this page would stay below private/."
_NOT_PROVED = (
    "That an attack gained nothing does not prove that nothing leaks: a better attack may exist. Only the claimed ε, "
    "which is a proof, holds against every attack.",
    "An ε that was shown is a lower bound: the true one lies between it and the claim.",
    "Each bound may be too high by chance, with the probability stated. Where many are shown, one of them may be.",
    "Members are private records, and records outside are test examples. Were they of different kinds, an attack "
    "could tell them apart without any leak.",
)
_MAX_SHOWN = 12


def render_audit(found: Audit, subject: Subject | None = None) -> str:
    """The page as HTML text; with `subject`, also which of its records are most at risk: for its owner only."""
    private = subject is not None
    footer = f"Made by pate {found.pate_version}. What each attack is, and where it comes from, is in docs/audit.md."
    page = Page(
        title=f"private: audit of {found.name}" if private else f"audit of {found.name}",
        eyebrow=f"pate · {found.name} · audit" + (" · private" if private else ""),
        heading="What attackers gain from what was published",
        warnings=(_WARNING,) if private else (),
        lead=_lead(found),
        tiles=_tiles(found),
        sections=(
            _models(found),
            _bounds(found, private),
            _curves(found, private),
            _tried(found),
            _gained(found.findings),
            _at_risk(found, subject),
            Section("What this does not prove", content=[PageBlock("list", _NOT_PROVED)]),
        ),
        footer=f"{_WARNING} {footer}" if private else footer,
    )
    return page.render()


def _strongest(findings: Sequence[AttackResult], model: str) -> AttackResult | None:
    """The membership attack with the largest AUC against a model."""
    known = [f for f in findings if f.model == model and f.auc is not None and f.members is not None]
    return max(known, key=lambda finding: finding.auc or 0.0, default=None)


def _max_shown(findings: Sequence[AttackResult], model: str) -> AttackResult | None:
    """The membership attack with the largest lower bound on a model's ε."""
    known = [f for f in findings if f.model == model and f.epsilon_lower is not None and f.members is not None]
    return max(known, key=lambda finding: finding.epsilon_lower or 0.0, default=None)


def _bounds_by_kind(findings: Sequence[AttackResult]) -> list[tuple[str, AttackResult]]:
    """For each model and kind of attack the finding with the largest bound: each is set beside its own claim."""
    best: dict[str, AttackResult] = {}
    for finding in findings:
        if finding.epsilon_lower is not None:
            kind = "membership" if finding.members is not None else finding.attack.partition(":")[0]
            name = f"{finding.model}: {kind}"
            if name not in best or finding.epsilon_lower > (best[name].epsilon_lower or 0.0):
                best[name] = finding
    return list(best.items())


def _lead(found: Audit) -> str:
    """One paragraph that says what an attacker gained against the run's own model."""
    own = found.models[0]
    best, shown = _strongest(found.findings, own.name), _max_shown(found.findings, own.name)
    told = []
    if best is not None and best.auc is not None:
        error = best.auc_error or 0.0
        chance = abs(best.auc - 0.5) <= 3 * error  # the best of several attacks
        told.append(
            f"Given one record of the training data and one from outside, the best attack ({best.attack}) tells which "
            f"is which in {percent(best.auc)} of cases; guessing gets 50 %."
            + (" The difference is within what chance explains." if chance else _by_the_groups(found, best))
        )
    refuted = [finding for finding in found.findings if finding.refutes]
    if refuted:
        names = ", ".join(sorted({f"{finding.model} ({finding.attack})" for finding in refuted}))
        told.append(f"A claimed ε was contradicted: {names}. Look for a bug before anything is published.")
    elif shown is not None and own.epsilon is not None:
        where = "above" if shown.explained_by_groups else "below"
        told.append(
            f"The most that membership inference showed of this model's ε is {shown.epsilon_lower:.2g}, {where} the "
            f"{own.epsilon:.3g} that it claims. No claim was contradicted."
        )
    told += [
        f"{finding.attack} shows {finding.epsilon_lower:.2g} of {finding.model}, above its claim; but "
        f"{finding.epsilon_of_groups:.2g} of a model that never saw the records: the groups differ by themselves."
        for finding in found.findings
        if finding.explained_by_groups
    ]
    return " ".join(told) or "No attack on single records was tried."


def _by_the_groups(found: Audit, best: AttackResult) -> str:
    """What to add where the same attack also tells the groups apart by a model that never saw them."""
    for finding in found.findings:
        if finding.model == "control" and finding.attack == best.attack and finding.auc is not None:
            if finding.auc - 0.5 > 3 * (finding.auc_error or 0.0):
                return f" A model that never saw the records gives {percent(finding.auc)}: so the groups differ anyway."
            return " With a model that never saw the records it is no better than guessing."
    return ""


def _tiles(found: Audit) -> list[tuple[str, str]]:
    own = found.models[0]
    best, shown = _strongest(found.findings, own.name), _max_shown(found.findings, own.name)
    tiles = []
    if best is not None and best.auc is not None:
        tiles.append(("best attack's AUC (0.5 is guessing)", f"{best.auc:.3f}"))
    if shown is not None:
        tiles.append(("largest ε shown", f"{shown.epsilon_lower:.2g}"))
    tiles.append((f"ε claimed, δ = {small(own.delta)}", "none" if own.epsilon is None else f"{own.epsilon:.3g}"))
    tiles.append(("attacks tried on it", str(sum(finding.model == own.name for finding in found.findings))))
    return tiles


def _models(found: Audit) -> Section:
    rows = [
        (
            model.name,
            model.method,
            "–" if model.epsilon is None else f"{model.epsilon:.3g}",
            percent(model.right_on_members),
            percent(model.right_on_outsiders),
            f"{100 * (model.right_on_members - model.right_on_outsiders):.1f}",
        )
        for model in found.models
    ]
    header = ("model", "kind", "ε claimed", "right on its records", "right on others", "gap, points")
    text = (
        "The first is what this run published. The others learned from the same records in other ways; the control "
        "learned from public examples only, so what an attack gains against it is no leak but a difference between "
        "members and others. A model that is much better on its own records than on others has learned some of them by "
        "heart, and attacks live on that."
    )
    note = (PageBlock("note", _PUBLIC),) if found.benchmark else ()
    return Section("The models", content=(*note, text, PageTable(header, rows, own=1)))


def _gained(findings: Sequence[AttackResult]) -> Section:
    text = (
        "AUC: how often a member is told from another, with its standard error; 0.5 is guessing. Found at 0.1 %: how "
        "many members an attacker finds who accuses one in a thousand others. Advantage: the most that members are "
        "accused more often than others."
    )
    attributes = [f"{f.model}, {f.attack}: {f.note}." for f in findings if f.attack.startswith("attribute")]
    return Section(
        "What an attacker gained",
        content=(text, PageTable(HEADER, [finding.cells() for finding in findings]), *attributes),
    )


def _curves(found: Audit, private: bool) -> Section:
    title = "Members found, against others accused"
    best = [_strongest([f for f in found.findings if f.curve], model.name) for model in found.models]
    known = [finding for finding in best if finding is not None]
    if not known:
        return Section(title)
    at = (0.001, 0.01, 0.1)
    rows = [
        (f.model, f.attack, *(f"{100 * max((t for x, t in f.curve if x <= most), default=0.0):.1f}" for most in at))
        for f in known
    ]
    plot = Plot(
        "audit-roc",
        "ROC curves of the strongest attack on each model; the line of guessing is the diagonal.",
        "The attack with the largest AUC on each model. What counts is the left side: how many members are found while "
        "few others are accused.",
        PageTable(("model", "attack", "found at 0.1 %, %", "at 1 %, %", "at 10 %, %"), rows),
    )
    text = (
        "Every attack can find more members by accusing more records wrongly. On the grey line it does no better than "
        "a coin."
    )
    draw = partial(plots.roc_curves, [(f"{f.model}: {f.attack}", f.curve) for f in known], private)
    return Section(title, content=(text, plot), drawings={"audit-roc": draw})


def _bounds(found: Audit, private: bool) -> Section:
    title, rows = "ε claimed, and ε shown", _bounds_by_kind(found.findings)
    if not rows:
        return Section(title)
    cells = []
    for name, finding in rows:
        claimed = "–" if finding.epsilon_claimed is None else f"{finding.epsilon_claimed:.3g}"
        sure = "" if finding.confidence is None else f"{finding.confidence:g}"
        by = finding.attack if finding.epsilon_lower else "no attack"
        cells.append((name, claimed, f"{finding.epsilon_lower:.3g}", by, finding.relation, sure))
    known = [e for _, f in rows for e in (f.epsilon_claimed, f.epsilon_lower) if e is not None and math.isfinite(e)]
    most = 1.2 * max(known, default=1.0)  # where a bound is infinite, to the edge
    drawn = [(name, f.epsilon_claimed, min(f.epsilon_lower or 0.0, most)) for name, f in rows]
    plot = Plot(
        "audit-epsilon",
        "; ".join(f"{name}: claimed {claimed}, shown {shown}" for name, claimed, shown, *_ in cells),
        "Each bound beside the ε that is claimed for what was attacked: the whole run, or one query or round of it. "
        "A mark shown to the right of the claimed one would contradict the claim, unless the control has the same.",
        PageTable(("model and attack", "ε claimed", "ε shown", "by", "neighbours differ by", "confidence"), cells),
        open=True,
    )
    text = (
        "ε is how much one record can change what is published. The claimed ε is proved and is an upper bound; an "
        "attack that works well shows that it cannot be smaller than some lower bound."
    )
    return Section(
        title, content=(text, plot), drawings={"audit-epsilon": partial(plots.claimed_and_shown, drawn, private)}
    )


def _tried(found: Audit) -> Section:
    """Each kind of attack in a sentence; folded, each attack once with what it assumes, and what was not tried."""
    attacks = {finding.attack: finding for finding in reversed(found.findings)}  # the first finding of each
    names = list(dict.fromkeys(finding.attack for finding in found.findings))
    known = attack_classes().values()
    kinds = dict.fromkeys(attack for name in names for attack in known if name.startswith(attack.title))
    assumed = []
    for name in names:
        note = "" if name.startswith("attribute") or not attacks[name].note else f" {attacks[name].note}."
        assumed.append(f"{name}: {attacks[name].assumes}.{note}")
    content: list[Content] = [
        PageBlock("terms", [(attack.title, attack.explanation) for attack in kinds]),
        PageBlock("folded", PageBlock("list", assumed), "What each attack assumes"),
    ]
    if found.left_out:
        content.append(PageBlock("folded", PageBlock("list", found.left_out), "What was not tried, and why"))
    return Section("What was tried", content=content)


def _at_risk(found: Audit, subject: Subject | None) -> Section:
    """The records that the strongest attack is surest of: pictures where they are images, else rows and classes."""
    title = "Records most at risk (private)"
    if subject is None:
        return Section(title)
    best = _strongest([finding for finding in found.findings if finding.at_risk], subject.name)
    if best is None:
        return Section(title)
    places = {int(row): place for place, row in enumerate(subject.members.rows)}
    members, names = subject.members, subject.data.classes
    shown = [(row, places[row], score) for row, score in best.at_risk[:_MAX_SHOWN] if row in places]
    content: list[Content] = [
        f"The records that the strongest attack on this model ({best.attack}) is surest of, with its score. Rows count "
        "from 0 among the private records. Where the attack is no better than guessing, these are chance."
    ]
    if members.X.ndim > 2:
        pictures = []
        for row, place, score in shown:
            pixels, name = np.clip(255 * members.X[place], 0, 255).astype(np.uint8), names[members.y[place]]
            pictures.append(picture(pixels, name, f"private record {row}, class {name}", f"{score:.2f}"))
        content.append(PageBlock("pictures", pictures))
    rows = [(str(row), str(names[members.y[place]]), f"{score:.3f}") for row, place, score in shown]
    content.append(PageBlock("folded", PageTable(("row", "class", "score"), rows), "The same as a table"))
    return Section(title, content=content)
