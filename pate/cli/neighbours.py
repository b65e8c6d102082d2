"""What `pate plan` says of a config in which records vote themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate.components.registry import counted

if TYPE_CHECKING:
    from pate.config import Config


def print_plan(config: Config, path: Path, data_dir: Path | None, target_epsilon: float | None, as_json: bool) -> None:
    """ε of all rounds, what a cell needs to be labelled rightly, and whether neighbours or teachers suit."""
    from pate.data.sources import load
    from pate.planning.budget import publishable_epsilon
    from pate.planning.neighbours import check_cells, plan_of_rounds, with_target
    from pate.preflight.trials import estimate_student_seconds

    assert config.neighbours is not None
    data = load(config.data, data_dir, path.parent, keep_missing=True)
    rounds, votes, n_classes = list(config.build_rounds()), config.neighbours.votes_per_record, len(data.classes)
    check_cells(rounds, len(data.X_public))
    if target_epsilon is None:
        publishable_epsilon(config, config.build_mechanism(), n_classes)  # refused where it is above budget.epsilon
    else:
        rounds = with_target(rounds, votes, target_epsilon, config.budget.delta, n_classes)
    result = plan_of_rounds(rounds, votes, config.budget.delta, n_classes) | {"public_examples": len(data.X_public)}
    result["unit"] = getattr(config.data, "id", None) or "record"
    result["seconds_of_student"] = estimate_student_seconds(config, data, may_decline=False)
    if as_json:
        print(json.dumps(result))
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    unit, cells, rounds = result["unit"], result["votes"], len(result["rounds"])
    voted = "1 cell" if cells == 1 else f"{cells} cells"
    print(f"every {unit} votes in {voted} per round, near itself; {'1 round' if rounds == 1 else f'{rounds} rounds'}")
    epsilon, delta = result["epsilon"], result["delta"]
    print(f"  ε to publish       {epsilon:.4g} at δ = {delta:g}, for a {unit} added, removed or changed")
    print(f"  ε otherwise        {result['epsilon_added_or_removed']:.4g}, if it is only added or removed")
    for number, one in enumerate(result["rounds"], start=1):
        cells = f"{one['cells']:,} cells, {counted(result['public_examples'] / one['cells'])} public examples each"
        print(f"  round {number}            {cells}; {one['mechanism']}")
        lead = "no number of votes" if one["lead_needed"] is None else f"a lead of {one['lead_needed']:,} votes"
        print(f"                     it takes {lead} in a cell for the right label 19 times of 20")
    if result["seconds_of_student"] is not None:
        print(f"  student            about {result['seconds_of_student']:.1f} s on this machine")
    print("  it suits           features in which near means alike, many records per cell, many public examples; where")
    print(
        "                     features do not cluster by class, a class is rare in every cell, or public examples are"
    )
    print("                     few, teachers do better (docs/neighbours.md)")
