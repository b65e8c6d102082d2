"""`pate audit`, top to bottom: what is attacked, by what, and the files that hold what was found.

Everything here is about private records, so it is written below `private/`. Of a benchmark, where public data plays
private, a copy without single records stands beside it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from pate.audit._page import render_audit
from pate.audit._target import Subject, control, data_of, subject_of, without_privacy
from pate.audit.attribute import check_columns
from pate.audit.results import Attack, AttackResult, Audit, Audited, NotApplicable, Options, attack_classes
from pate.components._registry import make_importable
from pate.data.private import PrivateData, prepare_data
from pate.data.public import PublicData
from pate.errors import RunError
from pate.runs._signatures import own_or_trusted
from pate.runs.run import Run
from pate.storage._files import write_atomically


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
            benchmark=subjects[0].benchmark,
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
        float((subject.predict(group.X) == group.y).mean())
        for group in (subject.members.some(10_000, 0), subject.outsiders.some(10_000, 0))
    ]
    return Audited(subject.name, subject.kind, subject.method, subject.epsilon, subject.delta, *right)


def _write(path: Path, text: str, mode: int) -> None:
    write_atomically(path, text + "\n", mode=mode, durable=False)
