"""What `pate plan --stand-in` says: numbers of teachers, tried on labelled public data."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pate.cli.recommendation import print_table
from pate.errors import ConfigError

if TYPE_CHECKING:
    from pate.planning.plan import Workload
    from pate.voters.teachers.stand_in import StandIn, TriedNumber


def print_numbers(
    config: Path,
    overrides: list[str],
    data_dir: Path | None,
    records: int | None,
    target_epsilon: float | None,
    delta: float | None,
    max_queries: int | None,
    as_json: bool,
) -> None:
    """How many teachers are best for so many private records, by a config whose data are public."""
    from pate.config import load_config
    from pate.planning.plan import Workload
    from pate.planning.recommend import usual_delta
    from pate.preflight.features import with_learned_features
    from pate.runs.console import Console
    from pate.voters import voters_of

    if records is None or target_epsilon is None:
        raise ConfigError("--stand-in: needs --records and --target-epsilon, as 60000 and 2")
    found, console = load_config(config, overrides), Console()
    voters = voters_of(found)
    data, private = voters.load(data_dir, config.parent, by_workers=False)
    delta = usual_delta(max(1, records)) if delta is None else delta
    workload = Workload(max_queries or voters.query_limits[0], None, delta, data.n_classes)
    console.info(f"{config}: everything in it is taken to be public, labels too; nothing is protected")
    found = with_learned_features(found, data.X_public)
    result = voters_of(found).find_number(data, private, records, target_epsilon, workload, console.info)
    if as_json:
        content = {
            "mechanism": dataclasses.asdict(result.mechanism),  # type: ignore[call-overload]
            "max_queries": workload.max_queries,
            "delta": delta,
        }
        tried = [dataclasses.asdict(one) for one in result.tried]
        print(json.dumps({**content, "n_teachers": result.best.n_teachers, "tried": tried}))
        return
    _print(result, workload, target_epsilon, records)


def _print(result: StandIn, workload: Workload, target_epsilon: float, records: int) -> None:
    spent = f"ε to publish at most {target_epsilon:g} at δ = {workload.delta:g}"
    print(f"{records:,} records, {workload.max_queries:,} queries by {result.mechanism}: {spent}\n")
    header = ("teachers", "records each", "trained", "each is right", "plurality right", "released right")
    print_table(header, [_row(one) for one in result.tried], marked=result.tried.index(result.best))
    print(f"\nn_teachers: {result.best.n_teachers}   has most released labels right on the stand-in")
    if result.too_large:
        numbers = ", ".join(f"{number:,}" for number in result.too_large)
        print(f"not tried: {numbers}; the stand-in has too few records for teachers of that size")


def _row(one: TriedNumber) -> tuple[str, ...]:
    shares = (one.teacher, one.plurality, one.released)
    return f"{one.n_teachers:,}", f"{one.records_each:,}", f"{one.trained}", *(f"{100 * s:.1f} %" for s in shares)
