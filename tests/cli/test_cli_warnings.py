"""Which warnings the command line shows: those of pate, and no others'."""

from __future__ import annotations

import sys
import warnings

import pytest

from pate.cli import hide_library_warnings


def test_warnings_of_pate_are_shown_and_those_of_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "warnoptions", [])
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        hide_library_warnings()
        for module in ("pate", "pate.baselines.dp_sgd", "sklearn.svm", "pateful", "torch.pate"):
            warnings.warn_explicit(f"from {module}", UserWarning, "file.py", 1, module=module)
    assert [str(warning.message) for warning in shown] == ["from pate", "from pate.baselines.dp_sgd"]
