"""Everything a config names, built and tried on public data before anything is charged: a check per idea, in one list.

A failure after the labels are paid for wastes privacy. So whatever the config and the names in the data can break is
built, trained for a moment, stored, loaded and drawn first. Nothing private is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pate.runs.context import RunContext

Check = Callable[["RunContext"], None]


def checks() -> Sequence[Check]:
    """All checks, in order. Each raises ConfigError or DataError with one line that says what to change."""
    from pate.preflight import features, missing_values, nonprivate, public_data, rehearsal, report, student, voters

    return (
        public_data.check,
        features.check,
        missing_values.check,
        voters.check,
        student.check,
        nonprivate.check,
        report.check,
        rehearsal.check,
    )


def run_checks(context: RunContext, skip: type[Exception] | tuple[()] = ()) -> None:
    """Run all checks, as `pate run` and `pate plan` do; a plan may `skip` checks that raise a kind of error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that two steps of training did not converge
        for check in checks():
            try:
                check(context)
            except skip:
                continue
