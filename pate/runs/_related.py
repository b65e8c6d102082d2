"""Other runs on the same private data, as far as they lie beside a new one: what each costs, and all of them together.

Only a shared ledger keeps runs within a joint budget. Where there is none the operator is at least told: by names of
files in configs, and by what other runs published. A report says what all known runs cost, and names none of them.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pate.components._registry import importing_only
from pate.config import BaselineConfig, Config, stored_config
from pate.data._settings import OwnData
from pate.data._sources import data_root
from pate.errors import PateError
from pate.ledger import SharedBudget
from pate.runs._files import CONFIG, RunFiles
from pate.storage import is_url

_MAX_LOOKED_AT = 200
_MAX_NAMED = 3


@dataclass(frozen=True)
class JointCost:
    """What all known runs on the same private data cost: this one, and `others` that are counted one by one.

    With a shared ledger its whole budget is in the sum, in place of this run and all others that name that ledger. Of
    `uncounted` ones nobody knows the cost. `unit` is "id" where every run protects all records of an id, of one column.
    """

    epsilon: float
    delta: float
    others: int
    uncounted: int
    shared_ledger: bool
    unit: str


@dataclass(frozen=True)
class Related:
    """Other runs on the same private data, by name with ε for the operator, and what all of them cost together."""

    named: tuple[str, ...]
    together: JointCost

    @property
    def note(self) -> str | None:
        """What the operator is told before a run begins; None where no other run is known."""
        if not self.named:
            return None
        more = f" and {len(self.named) - _MAX_NAMED} more" if len(self.named) > _MAX_NAMED else ""
        all_of_it = self.together
        used = f"the same private data was used by {', '.join(self.named[:_MAX_NAMED])}{more}"
        which = "all runs of the shared ledger" if all_of_it.shared_ledger else "this run"
        cost = f"with {which} that is ε = {all_of_it.epsilon:.3g} at δ = {all_of_it.delta:.3g} together"
        whose = " for one record" if all_of_it.unit == "record" else " for all records of one id"
        left_out = f"; of {all_of_it.uncounted} the cost is not known, and not in that" if all_of_it.uncounted else ""
        hint = (
            "" if all_of_it.shared_ledger else ". `pate ledger create` makes a budget that runs share, and keeps to it"
        )
        return f"{used}: {cost}{whose}{left_out}{hint}"


def related_runs(
    config: Config | BaselineConfig,
    out: Path | str,
    data_dir: Path | None,
    config_dir: Path,
    epsilon: float,
    delta: float,
    shared: SharedBudget | None = None,
) -> Related | None:
    """Runs beside `out` that have used a private file of this one's, which costs (`epsilon`, `delta`) by itself.

    `shared` is the budget of the ledger that it shares. None where nothing else is known of the data.
    """
    from pate.planning.costs import ReleaseCost, compose

    if is_url(str(out)):
        return None
    own = _private_files(config.data, data_root(data_dir) or config_dir)
    here = Path(out).absolute()
    beside = [path.parent for path in sorted(here.parent.glob(f"*/{CONFIG}"))[:_MAX_LOOKED_AT] if path.parent != here]
    known = [one for folder in beside if own and (one := _known(folder, own)) is not None]
    if shared is not None:
        assert isinstance(config, Config)
        known = [one for one in known if one.ledger is None or one.ledger != config.budget.ledger]
    elif not known:
        return None
    counted = [one.part for one in known if one.part is not None]
    alone = ReleaseCost(shared.epsilon, shared.delta) if shared is not None else _part(config, epsilon)
    unit = "id" if len({_unit(config), *(one.unit for one in known)}) == 1 and _unit(config) else "record"
    joint = compose([alone or _of_baseline(config, epsilon, delta), *counted])
    together = JointCost(*joint, len(counted), len(known) - len(counted), shared is not None, unit)
    return Related(tuple(one.shown for one in known), together)


@dataclass(frozen=True)
class _Known:
    """A run beside the new one; `part` is None where its cost cannot be told."""

    shown: str
    part: Any
    unit: str | None
    ledger: Any


def _known(folder: Path, own: frozenset[str]) -> _Known | None:
    """A run that has used one of the private files `own` and charged something, or trained on everything.

    None of others, and where it cannot be read: this is a courtesy, and stops nothing. Nothing that its config names is
    imported.
    """
    run = RunFiles(folder)
    if not (run.ledger_file.exists() or run.released_file.exists() or run.model_folder.exists()):
        return None  # there are neither books nor what a baseline releases: what was charged may be more, never less
    with suppress(PateError, OSError, ValueError, KeyError, TypeError, AttributeError):
        places = json.loads(run.places_file.read_text())
        config = stored_config(folder / CONFIG)
        if not own & _private_files(config.data, Path(places["data_dir"] or places["config_dir"])):
            return None
        published = _published(run)
        part = _part(config, published and published[0])
        if part is None and published is not None:
            part = _of_baseline(config, *published)
        shown = folder.name if part is None else f"{folder.name} (ε = {part.epsilon:.3g})"
        return _Known(shown, part, _unit(config), config.budget.ledger if isinstance(config, Config) else None)
    return None


def _part(config: Config | BaselineConfig, epsilon: float | None) -> Any:
    """What a run costs by its limits, whatever of them it used; None where only its report can tell."""
    from pate.voters import voters_of

    if not isinstance(config, Config):
        return None
    with suppress(PateError), importing_only(()):
        classes = getattr(config.data, "classes", ())
        return voters_of(config).part(max(2, len(classes)), epsilon)
    return None


def _of_baseline(config: Config | BaselineConfig, epsilon: float, delta: float) -> Any:
    """What a run costs that is known by its (ε, δ) alone.

    A baseline with ids takes one record of each person. A record more or less, or changed, may put another in its
    place, which is two steps: one out, one in.
    """
    from pate.planning.costs import ReleaseCost

    if isinstance(config, BaselineConfig) and _unit(config) is not None:
        return ReleaseCost(2 * epsilon, delta * (1 + math.exp(min(epsilon, 700.0))))
    return ReleaseCost(epsilon, delta)


def _published(run: RunFiles) -> tuple[float, float] | None:
    """(ε, δ) of a finished run."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        privacy = json.loads(run.report_file.read_text())["privacy"]
        found = float(privacy["epsilon"]), float(privacy["delta"])
        return found if 0 <= found[0] < math.inf and 0 <= found[1] < 1 else None
    return None


def _unit(config: Config | BaselineConfig) -> str | None:
    """The column of ids whose records are protected together; None where one record is."""
    return getattr(config.data, "id", None) or ("ids" if getattr(config.data, "ids", False) else None)


def _private_files(data: Any, folder: Path) -> frozenset[str]:
    """Whole paths and URLs; of benchmarks none, since nobody's records are in them."""
    if not isinstance(data, OwnData):
        return frozenset()
    listed = [data.private] if isinstance(data.private, str) else list(data.private or ())
    names = [name for name in (*listed, getattr(data, "file", None)) if name]
    return frozenset(name if is_url(name) else str((folder / name).resolve()) for name in names)
