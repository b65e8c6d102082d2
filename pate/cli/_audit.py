"""pate audit."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pate.cli._options import AsJson, DataDirOfRun, FinishedRun, LogJson, Trust, print_table
from pate.storage import is_url

if TYPE_CHECKING:
    from pate.audit.results import Audit


def audit(
    run: FinishedRun,
    attacks: Annotated[str, typer.Option(help="attacks to try, with commas between; all if not given")] = "",
    against: Annotated[
        list[str] | None, typer.Option(help="another run or baseline on the same data, to show beside; may be repeated")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="fewer examples and shadow models")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="print the highest bounds on ε that can be shown, and end")
    ] = False,
    sensitive: Annotated[
        list[str] | None, typer.Option(help="column that attribute inference guesses; may be repeated")
    ] = None,
    confidence: Annotated[float, typer.Option(help="confidence of each lower bound on ε")] = 0.95,
    data_dir: DataDirOfRun = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster that trains shadow models; local processes if not given")
    ] = None,
    trust: Trust = None,
    as_json: AsJson = False,
    log_json: LogJson = False,
) -> None:
    """Attack what a run published, and measure how much it leaks: private/audit.html. Costs no privacy."""
    from contextlib import ExitStack

    from pate.accounting import _parameters as parameters
    from pate.audit import runner
    from pate.audit.results import Options
    from pate.errors import ConfigError
    from pate.runs._console import Quiet, console_for, in_a_job

    run = run if is_url(run) else os.path.expanduser(run)
    if 1 < confidence <= 100:
        raise ConfigError(f"--confidence {confidence:g}: is a share below 1; write {confidence / 100:g}")
    parameters.open_probability(confidence, "confidence")
    if plan:
        _plan(run, confidence, as_json)
        return
    names = [name.strip() for name in attacks.split(",") if name.strip()]
    console = Quiet() if as_json else console_for(log_json)
    options = Options.of(quick, confidence=confidence, sensitive=tuple(sensitive or ()), console=console)
    with ExitStack() as stack:
        if address is not None:
            from pate.cluster._session import ray_session
            from pate.config import RaySettings

            stack.enter_context(ray_session(address, RaySettings()))
        found = runner.audit(run, against or (), names, options, data_dir=data_dir, trust=trust or ())
    if as_json:
        print(json.dumps({**found.to_json(), "run": run}))
        return
    if found.benchmark or not in_a_job():  # whose log is no place for what is known of private records
        _show(found)
    place = run.rstrip("/")
    print(f"private: do not publish: {place}/private/audit.html, audit.json")
    if found.benchmark:
        print(f"written (benchmark data): {place}/audit.html, audit.json")


_CANARIES = (100, 300, 1_000, 3_000, 10_000)


def _plan(place: str, confidence: float, as_json: bool) -> None:
    """What bounds can at best be shown of the run's ε: from public figures, before anything is attacked."""
    from pate.audit.confidence_bounds import plan
    from pate.audit.membership import max_detectable_epsilon
    from pate.audit.results import Options
    from pate.runs.run import Run

    with Run.load(place, inside=False) as run:
        report = run.report
    privacy = report.privacy
    claimed = privacy.epsilon if privacy.epsilon_added_or_removed is None else privacy.epsilon_added_or_removed
    rows = plan(_CANARIES, privacy.delta, confidence, claimed)
    outsiders = min(report.student.test_examples, Options().examples)
    by_membership = max_detectable_epsilon(outsiders, privacy.delta, confidence)
    if as_json:
        content = {"epsilon": claimed, "delta": privacy.delta, "confidence": confidence, "outsiders": outsiders}
        print(json.dumps({**content, "membership_at_best": by_membership, "one_run": [asdict(p) for p in rows]}))
        return
    sure = f"each bound with confidence {confidence:g}"
    print(f"claimed: ε = {claimed:.3g} at δ = {privacy.delta:g}, for a record added or removed; {sure}")
    print(f"membership inference, {outsiders} records outside: ε ≥ {by_membership:.2f} at best")
    for p in rows:
        told = "" if p.expected is None else f", about {p.expected:.2f} if all of the claimed ε leaks"
        print(f"one run, {p.canaries:,} canaries: ε ≥ {p.at_best:.2f} at best{told}")


def _show(found: Audit) -> None:
    from pate.audit.results import HEADER

    print_table([HEADER, *(finding.cells() for finding in found.findings)])
    for finding in found.findings:
        if finding.attack.startswith("attribute"):
            print(f"* {finding.model}, {finding.attack}: {finding.note}")
    for note in found.left_out:
        print(f"* not tried on {note}")
    for finding in found.findings:
        if finding.explained_by_groups:
            print(
                f"* {finding.model}, {finding.attack}: ε ≥ {finding.epsilon_lower:.3g} is above the claim, but a model "
                f"that never saw the records gives {finding.epsilon_of_groups:.3g}: the groups differ by themselves"
            )
    refuted = [finding for finding in found.findings if finding.refutes]
    for finding in refuted:
        print(f"CONTRADICTED: {finding.attack} shows ε ≥ {finding.epsilon_lower:.3g} of {finding.model}")
    if not refuted:
        print("No claim was contradicted. That is no proof: better attacks may exist.")
