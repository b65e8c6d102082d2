"""Students on another device than the CPU: torch's `meta` has no data, and like a GPU it takes no tensors of others.

What needs data is given some; where training reads its losses, after the last step, it ends.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from pate.students import build_student

_OWN_MIN, _OWN_MAX = torch.Tensor.min, torch.Tensor.max


@pytest.mark.parametrize("shape", [(6,), (12, 12)])
@pytest.mark.parametrize("name", ["mixmatch", "gan"])
def test_all_steps_are_where_the_network_is(name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    update = AveragedModel.update_parameters

    def counted(self: Any, model: Any) -> None:
        steps.append(1)
        update(self, model)

    monkeypatch.setattr(AveragedModel, "update_parameters", counted)
    monkeypatch.setattr(torch.optim, "AdamW", partial(_without_fused, torch.optim.AdamW))  # which knows no meta
    monkeypatch.setattr(torch.optim, "Adam", partial(_without_fused, torch.optim.Adam))
    monkeypatch.setattr(torch.Tensor, "__int__", lambda self: 1)
    monkeypatch.setattr(torch.Tensor, "bincount", lambda self, weights, minlength: torch.ones(minlength))
    monkeypatch.setattr(torch.Tensor, "min", lambda self, *a, **k: _OWN_MIN(self, *a, **k) if a else torch.tensor(0.0))
    monkeypatch.setattr(torch.Tensor, "max", lambda self, *a, **k: _OWN_MAX(self, *a, **k) if a else torch.tensor(1.0))
    X = np.random.default_rng(0).random((60, *shape)).astype(np.float32)
    student = build_student(name, {"steps": 3, "device": "meta"}, 0)
    with pytest.raises((NotImplementedError, RuntimeError), match="meta tensor") as raised:
        student.fit(X[:20], np.arange(20) % 2, X[20:])
    where = [str(entry.statement).strip() for entry in raised.traceback if "training.py" in str(entry.path)]
    assert where[-1] == "loss, unlabelled = torch.stack(window).mean(0).tolist()"
    assert len(steps) == 3


def _without_fused(cls: Any, *arguments: Any, fused: bool = False, **further: Any) -> Any:
    return cls(*arguments, **further)
