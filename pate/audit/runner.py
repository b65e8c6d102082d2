"""`pate audit`, top to bottom: what is attacked, by what, and the files that hold what was found.

Everything here is about private records, so it is written below `private/`. Of a benchmark, where public data plays
private, a copy without single records stands beside it.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from pate import __version__
from pate.audit.attribute import check_columns
from pate.audit.results import AttackResult, NotApplicable, Options
from pate.audit.target import Subject, control, data_of, subject_of, without_privacy
from pate.components.registry import nearest, short_names
from pate.data.private import PrivateData, clip_to_public_range
from pate.data.public import PublicData
from pate.errors import ConfigError, RunError
from pate.runs.run import Run
from pate.runs.signatures import own_or_trusted
from pate.storage.files import write_atomically

_ORDER = ("threshold", "correctness", "label-only", "lira", "rmia", "attribute", "one-run", "mechanism", "sensitivity")


@dataclass(frozen=True)
class Audited:
    """A model that was attacked: what it is, what it claims, and how often it is right on members and on others."""

    name: str
    kind: str
    method: str
    epsilon: float | None
    delta: float
    right_on_members: float
    right_on_outsiders: float


@dataclass(frozen=True)
class Audit:
    """All that was found. The first model is the run's own. `left_out` says which attacks do not apply, and why."""

    name: str
    data: str
    benchmark: bool
    quick: bool
    models: tuple[Audited, ...]
    findings: tuple[AttackResult, ...]
    left_out: tuple[str, ...] = ()
    seconds: float = 0.0
    pate_version: str = __version__

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "findings": [finding.to_json() for finding in self.findings]}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Audit:
        """The audit that `to_json` wrote."""
        return cls(
            **{
                **content,
                "models": tuple(Audited(**model) for model in content["models"]),
                "findings": tuple(map(AttackResult.from_json, content["findings"])),
                "left_out": tuple(content["left_out"]),
            }
        )

    def without_records(self) -> Audit:
        """A copy of the results without anything about single records."""
        return replace(self, findings=tuple(replace(finding, at_risk=()) for finding in self.findings))


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

    `attacks` are names of files in this folder; all there are if none is given. Written: `private/audit.json`,
    `private/audit.html`, and public copies of a benchmark's. Nothing is spent: what is attacked was released.
    `trust` names what runs may import ("module.Class") that were not made by this user.
    """
    from pate.audit.page import render_audit

    chosen, started = attack_modules(attacks), time.perf_counter()
    with ExitStack() as stack:
        run = stack.enter_context(Run.load(place))
        if not run.private.is_dir():
            raise RunError(f"{run.place}: has no private/ folder; an audit needs the run as its owner has it")
        others = [stack.enter_context(Run.load(place)) for place in against]
        stack.enter_context(own_or_trusted(trust, run, *others))
        options = replace(options or Options(), work=(options and options.work) or run.attacks_folder)
        data = None if public is None or private is None else (public, private)
        subjects = _subjects(run, others, options, data_dir, data)
        findings, left_out = _attacked(subjects, chosen, bool(attacks), options)
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


def attack_names() -> list[str]:
    """Every attack there is: a file of this folder with a function `attack`."""
    names = [name.replace("_", "-") for name in short_names(__package__) if hasattr(_module(name), "attack")]
    return sorted(names, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))


def attack_modules(names: Sequence[str]) -> dict[str, ModuleType]:
    """The files of the named attacks, or of all; ConfigError where there is none of that name."""
    known = attack_names()
    if unknown := [name for name in names if name not in known]:
        text = f"{{attacks}}: no such attack; {nearest(unknown[0], known)}"
        raise ConfigError(text, attacks=",".join(unknown))
    return {name: _module(name.replace("-", "_")) for name in dict.fromkeys(names or known)}


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__package__}.{name}")


def _subjects(
    run: Run,
    others: Sequence[Run],
    options: Options,
    data_dir: Path | None,
    data: tuple[PublicData, PrivateData] | None,
) -> list[Subject]:
    """The run's own model, those of other runs on the same data, one without privacy and a control; each name once."""
    with options.console.trying("reading the run and its data"):
        public, private = clip_to_public_range(*(data or data_of(run, data_dir)))
        check_columns(public.features, options.sensitive)
        subjects = [subject_of(run, public, private)]
        for other in others:
            if other.config.data != run.config.data:
                raise RunError(f"{other.place}: is about other data than {run.place}; an audit compares on the same")
            subjects.append(subject_of(other, public, private))
    named = next((subject for subject in subjects if subject.config.nonprivate is not None), subjects[0])
    subjects = [replace(subject, reference=named.reference) for subject in subjects]
    with options.console.working("training a model without privacy, and one that never saw the records"):
        subjects.append(without_privacy(subjects[0], options.records, options.seed))
        subjects.append(control(subjects[0], options.records, options.seed))
    return [_named_apart(subject, subjects[:place]) for place, subject in enumerate(subjects)]


def _named_apart(subject: Subject, before: Sequence[Subject]) -> Subject:
    same = sum(subject.name == other.name for other in before)
    return replace(subject, name=f"{subject.name} ({same + 1})") if same else subject


def _attacked(
    subjects: Sequence[Subject], chosen: dict[str, ModuleType], by_name: bool, options: Options
) -> tuple[list[AttackResult], list[str]]:
    """Every finding, model by model; an attack that was asked for by name and applies to no model is an error."""
    findings: list[AttackResult] = []
    left_out: list[str] = []
    for name, module in chosen.items():
        applied = False
        for subject in subjects:
            try:
                with options.console.working(f"{name} against {subject.name}"):
                    found = module.attack(subject, options)
                reason = NotApplicable(f"{name}: is not for a model of this kind")
            except NotApplicable as error:
                found, reason = [], error
            findings += found
            applied |= bool(found)
            if not found:
                left_out.append(f"{subject.name}: {reason.text()}")
        if by_name and not applied:
            raise reason
    order = {subject.name: place for place, subject in enumerate(subjects)}
    findings = beside_control(findings, subjects[-1].name)
    return sorted(findings, key=lambda finding: order.get(finding.model, len(order))), left_out


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
    write_atomically(path, lambda file: file.write_text(text + "\n", encoding="utf-8"), mode=mode, durable=False)
