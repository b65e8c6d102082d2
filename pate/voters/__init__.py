"""Who votes on public examples. A kind of voters is one class, in a file or a folder of this package."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pate.components.registry import import_dotted, nearest, shown
from pate.errors import ConfigError

if TYPE_CHECKING:
    from pate.config import Config
    from pate.voters.base import Voters

DEFAULT = "teachers"
_NO_KINDS = ("base", "classifier_config", "queries")


def kind_names() -> list[str]:
    """What a config may call the kinds of this package: the names of their files and folders."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return [name for name in names if name not in _NO_KINDS and not name.startswith("_")]


def kind_of(name: Any) -> type[Voters[Any]]:
    """The kind that a config names, by short name or by the dotted path of its class."""
    from pate.voters.base import Voters

    if isinstance(name, str) and "." in name:
        cls = import_dotted(name, "voters")
        if not (isinstance(cls, type) and issubclass(cls, Voters)):
            raise ConfigError(f"voters = {shown(name)}: not a kind of voters; derive it from pate.voters.base.Voters")
        return cls
    if name not in kind_names():
        raise ConfigError(f"voters = {shown(name)}: no such kind; {nearest(str(name), kind_names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{__name__}.{name}.voters")
    found: type[Voters[Any]] = next(
        cls
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, Voters) and cls.__module__ == module.__name__
    )
    return found


def config_class(content: Mapping[str, Any]) -> type[Config]:
    """The class of the settings that `content` are written for."""
    return kind_of(content.get("voters", DEFAULT)).config_class


def voters_of(config: Config) -> Voters[Any]:
    """The voters of a run."""
    return kind_of(config.voters)(config)
