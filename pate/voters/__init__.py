"""Who votes on public examples. A kind of voters is one class, in a file or a folder of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pate.components._registry import Registry

if TYPE_CHECKING:
    from pate.config import Config
    from pate.voters.base import Voters

DEFAULT = "teachers"


def _registry() -> Registry:
    from pate.voters.base import Voters

    return Registry("pate.voters", "kind of voters", Voters, derived=True)


def kind_names() -> list[str]:
    """What a config may call the kinds of this package: the names of their files and folders."""
    return list(_registry().classes())


def kind_of(name: Any) -> type[Voters[Any]]:
    """The kind that a config names, by short name or by the dotted path of its class."""
    found: type[Voters[Any]] = _registry().find(name, "voters")
    return found


def config_class(content: Mapping[str, Any]) -> type[Config]:
    """The class of the settings that `content` are written for."""
    return kind_of(content.get("voters", DEFAULT)).config_class


def voters_of(config: Config) -> Voters[Any]:
    """The voters of a run."""
    return kind_of(config.voters)(config)
