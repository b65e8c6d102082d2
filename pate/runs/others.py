"""Other runs on the same private data, as far as they lie beside a new one: what each costs adds up.

Only a shared ledger counts that, and enforces it. Where there is none the operator is at least told: by names of files
in configs, and by what other runs published. Nothing of it goes into a report.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from pate.config import BaselineConfig, Config, stored_config
from pate.data.settings import OwnData
from pate.data.sources import data_root
from pate.errors import PateError
from pate.runs.files import CONFIG, PLACES, RunFiles
from pate.storage import is_url

_MOST_LOOKED_AT = 200
_MOST_NAMED = 3


def others_on_the_same_data(
    config: Config | BaselineConfig, out: Path | str, data_dir: Path | None, config_dir: Path
) -> str | None:
    """A line about runs beside `out` that have used a private file of this one's; None where a ledger is shared."""
    ledger = config.budget.ledger if isinstance(config, Config) else None
    if is_url(str(out)) or ledger is not None:
        return None
    own = _private_files(config.data, data_root(data_dir) or config_dir)
    found = [path.parent for path in _beside(Path(out)) if own & _used_by(path.parent)] if own else []
    if not found:
        return None
    named = ", ".join(_with_epsilon(folder) for folder in found[:_MOST_NAMED])
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    told = f"the same private data was used by {named}{more}: ε of runs on the same data add up"
    return f"{told}. `pate ledger create` makes a budget that runs share, and keeps to it"


def _beside(out: Path) -> list[Path]:
    """Configs of other runs in the same folder that have charged something, or trained on everything."""
    found = sorted(out.absolute().parent.glob(f"*/{CONFIG}"))[:_MOST_LOOKED_AT]
    others = [path for path in found if path.parent != out.absolute()]
    return [path for path in others if _has_spent(RunFiles(path.parent))]


def _has_spent(run: RunFiles) -> bool:
    """Whether there are books, or what a baseline releases: what was charged may be more, never less."""
    return run.ledger_file.exists() or run.released_file.exists() or run.model_folder.exists()


def _used_by(folder: Path) -> frozenset[str]:
    """The private files of a run; none where it cannot be read: this is a courtesy, and stops nothing."""
    with suppress(PateError, OSError, ValueError, KeyError, TypeError):
        places = json.loads((RunFiles(folder).private / PLACES).read_text())
        return _private_files(stored_config(folder / CONFIG).data, Path(places["data_dir"] or places["config_dir"]))
    return frozenset()


def _private_files(data: Any, folder: Path) -> frozenset[str]:
    """Whole paths and URLs; of benchmarks none, since nobody's records are in them."""
    if not isinstance(data, OwnData):
        return frozenset()
    listed = [data.private] if isinstance(data.private, str) else list(data.private or ())
    names = [name for name in (*listed, getattr(data, "file", None)) if name]
    return frozenset(name if is_url(name) else str((folder / name).resolve()) for name in names)


def _with_epsilon(folder: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        epsilon = float(json.loads(RunFiles(folder).report_file.read_text())["privacy"]["epsilon"])
        return f"{folder.name} (ε = {epsilon:.3g})"
    return folder.name
