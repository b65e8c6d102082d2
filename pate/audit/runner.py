"""`pate audit`, top to bottom: what is attacked, by what, and the files that hold what was found.

Everything here is about private records, so it is written below `private/`. Of a benchmark, where public data plays
private, a copy without single records stands beside it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from pate.audit._target import Subject, control, data_of, subject_of, without_privacy
from pate.audit.membership import check_columns
from pate.audit.results import HEADER, Attack, AttackResult, Audit, Audited, NotApplicable, Options, attack_classes
from pate.components._registry import make_importable
from pate.data.private import PrivateData, prepare_data
from pate.data.public import PublicData
from pate.errors import RunError
from pate.report import _plots as plots
from pate.report._pages import Content, Page, PageBlock, PageTable, Plot, Section, percent, small
from pate.report.sections._pipeline import picture
from pate.runs._signatures import own_or_trusted
from pate.runs.run import Run
from pate.storage._files import write_atomically

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


def audit(
    place: Path | str,
    against: Sequence[Path | str] = (),
    attacks: Sequence[str] = (),
    options: Options | None = None,
    *,
    data_dir: Path | None = None,
    trust: Sequence[str] = (),
    public: PublicData | None = None,
    private: PrivateData | None = None,
) -> Audit:
    """Attack what a finished run released, the runs in `against` on the same data, one without privacy and a control.

    Written: `private/audit.json`, `private/audit.html`, and public copies of a benchmark's. Nothing is spent: what is
    attacked was released.

    Parameters
    ----------
    place : Path or str
        Directory or URL of a finished run, as its owner has it: with `private/`.
    against : sequence of Path or str, default=()
        Other runs on the same data, to show beside.
    attacks : sequence of str, default=()
        Names of attacks; all there are if none is given.
    options : Options, default=None
        How thoroughly to attack; None is `Options()`.
    data_dir : Path, default=None
        The folder of the data files; None is where the run found them.
    trust : sequence of str, default=()
        What runs may import ("module.Class") that were not made by this user.
    public, private : PublicData and PrivateData, default=None
        The run's data, where it was given from Python; else its source is read.

    Returns
    -------
    Audit
        The models that were attacked, and what each attack found.
    """
    chosen, started = attack_classes(attacks), time.perf_counter()
    with ExitStack() as stack:
        run = stack.enter_context(Run.load(place))
        if not run.private.is_dir():
            raise RunError(f"{run.place}: has no private/ folder; an audit needs the run as its owner has it")
        others = [stack.enter_context(Run.load(place)) for place in against]
        stack.enter_context(own_or_trusted(trust, run, *others))
        options = replace(options or Options(), work=(options and options.work) or run.attacks_folder)
        data = None if public is None or private is None else (public, private)
        subjects = _subjects(run, others, options, data_dir, data)
        findings, left_out = _attack(subjects, chosen, bool(attacks), options)
        found = Audit(
            name=run.config.name,
            data=run.config.data.source,
            benchmark=subjects[0].data.benchmark,
            quick=options.quick,
            models=tuple(map(_audited, subjects)),
            findings=tuple(findings),
            left_out=tuple(left_out),
            seconds=time.perf_counter() - started,
        )
        _write(run.private_audit_file, json.dumps(found.to_json(), indent=1), 0o600)
        _write(run.private_audit_page, render_audit(found, subjects[0]), 0o600)
        if found.benchmark:
            shown = found.without_records()
            _write(run.audit_file, json.dumps(shown.to_json(), indent=1), 0o644)
            _write(run.audit_page, render_audit(shown), 0o644)
        run.sync()
    return found


def _subjects(
    run: Run,
    others: Sequence[Run],
    options: Options,
    data_dir: Path | None,
    data: tuple[PublicData, PrivateData] | None,
) -> list[Subject]:
    """The run's own model, those of other runs on the same data, one without privacy and a control; each name once."""
    with options.console.trying("reading the run and its data"):
        public, private = prepare_data(*(data or data_of(run, data_dir)), keep_missing=True)
        check_columns(public.features, options.sensitive)
        subjects = []
        for one in (run, *others):
            if one.config.data != run.config.data:
                raise RunError(f"{one.place}: is about other data than {run.place}; an audit compares on the same")
            make_importable(one.places[1])  # where all runs are this user's own; see `own_or_trusted`
            subjects.append(subject_of(one, public, private))
    named = next((subject for subject in subjects if subject.config.nonprivate is not None), subjects[0])
    subjects = [replace(subject, reference=named.reference) for subject in subjects]
    make_importable(named.config_dir)
    with options.console.working("training a model without privacy, and one that never saw the records"):
        subjects.append(without_privacy(subjects[0], options.records, options.seed))
        subjects.append(control(subjects[0], options.records, options.seed))
    names = [subject.name for subject in subjects]
    before = [names[:place].count(name) for place, name in enumerate(names)]
    return [
        replace(subject, name=f"{subject.name} ({same + 1})") if same else subject
        for subject, same in zip(subjects, before, strict=True)
    ]


def _attack(
    subjects: Sequence[Subject], chosen: dict[str, type[Attack]], by_name: bool, options: Options
) -> tuple[list[AttackResult], list[str]]:
    """Every finding, model by model; an attack that was asked for by name and applies to no model is an error."""
    findings: list[AttackResult] = []
    left_out: list[str] = []
    for name, attack in chosen.items():
        n_before, reason = len(findings), NotApplicable(f"{name}: is not for a model of this kind")
        for subject in subjects:
            n_of_others, started = len(findings), time.perf_counter()
            make_importable(subject.config_dir)  # of several runs, each has its own
            try:
                with options.console.working(f"{name} against {subject.name}"):
                    for finding in attack().run(subject, options):
                        findings.append(replace(finding, seconds=time.perf_counter() - started))
                        started = time.perf_counter()
            except NotApplicable as error:
                reason = error
            if len(findings) == n_of_others:
                left_out.append(f"{subject.name}: {reason.text()}")
        if by_name and len(findings) == n_before:
            raise reason
    order = [subject.name for subject in subjects]
    return sorted(beside_control(findings, order[-1]), key=lambda finding: order.index(finding.model)), left_out


def beside_control(findings: Sequence[AttackResult], control: str) -> list[AttackResult]:
    """Findings with a note on what their attack shows of the control model, where that was attacked too."""
    of_groups = {finding.attack: finding.epsilon_lower for finding in findings if finding.model == control}
    return [
        finding if finding.model == control else replace(finding, epsilon_of_groups=of_groups.get(finding.attack))
        for finding in findings
    ]


def _audited(subject: Subject) -> Audited:
    right = [
        float((subject.model.predict(group.X) == group.y).mean())
        for group in (subject.members.some(10_000, 0), subject.outsiders.some(10_000, 0))
    ]
    return Audited(subject.name, subject.kind, subject.method, subject.epsilon, subject.delta, *right)


def _write(path: Path, text: str, mode: int) -> None:
    write_atomically(path, text + "\n", mode=mode, durable=False)


# The page: for people who decide about data, so every figure comes with a sentence that says what it means


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


def _best(findings: Sequence[AttackResult], model: str, figure: str) -> AttackResult | None:
    """The membership attack on a model with the largest `figure`: its AUC, or its lower bound on ε."""
    known = [f for f in findings if f.model == model and f.members is not None and getattr(f, figure) is not None]
    return max(known, key=lambda finding: float(getattr(finding, figure)), default=None)


def _lead(found: Audit) -> str:
    """One paragraph that says what an attacker gained against the run's own model."""
    own = found.models[0]
    best, shown = _best(found.findings, own.name, "auc"), _best(found.findings, own.name, "epsilon_lower")
    told = []
    if best is not None and best.auc is not None:
        error = best.auc_error or 0.0
        told.append(
            f"Given one record of the training data and one from outside, the best attack ({best.attack}) tells which "
            f"is which in {percent(best.auc)} of cases; guessing gets 50 %."
        )
        of_control = _best([f for f in found.findings if f.attack == best.attack], "control", "auc")
        if abs(best.auc - 0.5) <= 3 * error:  # the best of several attacks
            told.append("The difference is within what chance explains.")
        elif of_control is not None and (of_control.auc or 0.0) - 0.5 > 3 * (of_control.auc_error or 0.0):
            told.append(
                f"A model that never saw the records gives {percent(of_control.auc)}: so the groups differ anyway."
            )
        elif of_control is not None:
            told.append("With a model that never saw the records it is no better than guessing.")
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


def _tiles(found: Audit) -> list[tuple[str, str]]:
    own = found.models[0]
    best, shown = _best(found.findings, own.name, "auc"), _best(found.findings, own.name, "epsilon_lower")
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
    best = [_best([f for f in found.findings if f.curve], model.name, "auc") for model in found.models]
    known = [finding for finding in best if finding is not None]
    if not known:
        return Section(title)
    at = (0.001, 0.01, 0.1)
    rows = [
        (f.model, f.attack, *(f"{100 * max((t for x, t in f.curve if x <= most), default=0.0):.1f}" for most in at))
        for f in known
    ]
    draw = partial(plots.roc_curves, [(f"{f.model}: {f.attack}", f.curve) for f in known], private)
    plot = Plot(
        "audit-roc",
        "ROC curves of the strongest attack on each model; the line of guessing is the diagonal.",
        "The attack with the largest AUC on each model. What counts is the left side: how many members are found while "
        "few others are accused.",
        PageTable(("model", "attack", "found at 0.1 %, %", "at 1 %, %", "at 10 %, %"), rows),
        draw,
    )
    text = (
        "Every attack can find more members by accusing more records wrongly. On the grey line it does no better than "
        "a coin."
    )
    return Section(title, content=(text, plot))


def _bounds(found: Audit, private: bool) -> Section:
    """For each model and kind of attack the largest bound, beside its own claim."""
    title, by_kind = "ε claimed, and ε shown", dict[str, list[AttackResult]]()
    for finding in found.findings:
        if finding.epsilon_lower is not None:
            kind = "membership" if finding.members is not None else finding.attack.partition(":")[0]
            by_kind.setdefault(f"{finding.model}: {kind}", []).append(finding)
    rows = [(name, max(some, key=lambda f: f.epsilon_lower or 0.0)) for name, some in by_kind.items()]
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
        partial(plots.claimed_and_shown, drawn, private),
        open=True,
    )
    text = (
        "ε is how much one record can change what is published. The claimed ε is proved and is an upper bound; an "
        "attack that works well shows that it cannot be smaller than some lower bound."
    )
    return Section(title, content=(text, plot))


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
    best = _best([finding for finding in found.findings if finding.at_risk], subject.name, "auc")
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
