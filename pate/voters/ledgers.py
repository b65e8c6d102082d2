"""The ledger of a run: its own, or one that runs on the same data share; and where its links are also kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pate.config import Config
from pate.errors import ConfigError
from pate.ledger import Ledger, SharedLedger
from pate.ledger.chain import identity
from pate.ledger.stored import StoredLedger
from pate.runs.anchoring import NO_ANCHOR, ChosenAnchor, choose_anchor
from pate.runs.published import published_pins
from pate.runs.run import Run, Version
from pate.storage import is_url
from pate.voters.base import Voters


def shared_ledger(config: Config, out: Path | str, config_dir: Path) -> SharedLedger | None:
    """The ledger that a run in `out` shares with others, None if it has its own; an error if it cannot be used."""
    named = config.budget.ledger
    if named is None:
        return None
    if is_url(out):
        text = "budget.ledger: a ledger that runs share stays on one machine; give {out} as a folder there"
        raise ConfigError(text, out=None)
    return SharedLedger.at((config_dir / named.path).resolve(), named.id)


def anchor_of(
    config: Config, directory: Run, config_dir: Path, wanted: str | None, notify: Callable[[str], None]
) -> ChosenAnchor:
    """Where the links of the run's ledger, its own or a shared one, are also kept.

    `wanted` is what `choose_anchor` takes.
    """
    shared = shared_ledger(config, directory.place, config_dir)
    return choose_anchor(directory, identity(directory.key) if shared is None else shared.id, wanted, notify)


def ledger_opener(
    voters: Voters[Any], directory: Run, config_dir: Path = Path(), anchor: ChosenAnchor = NO_ANCHOR
) -> Callable[[], Ledger]:
    """How the aggregator opens its ledger: the run's own, or one that runs on the same data share.

    What the run has published must come from that ledger, and the links that `anchor` holds must be its own.
    """
    options: dict[str, Any] = {"ensemble": Version.of(directory).version}
    options |= {"anchor": anchor.place, "new_anchor": anchor.new}
    options["pins"] = published_pins(directory.path)
    shared = shared_ledger(voters.config, directory.place, config_dir)
    if shared is None:
        head = directory.ledger_head.resolve()
        own = (directory.ledger_file.resolve(), directory.key, head, "run", voters.limits())
        if directory.storage is None:
            return partial(Ledger, *own, **options)
        return partial(StoredLedger, directory.storage.url, *own, **options)
    joint = shared.budget()
    name = directory.id  # copies of a run are one run: they share its answers
    return partial(Ledger, shared.db, shared.key, shared.head, name, voters.limits(joint.order), joint, **options)
