"""YAML → typed, frozen settings. Every mistake is one line that names the key, the value and what would do."""

from pate.config._components import RaySettings, TeacherFamily
from pate.config._loading import default_config_path, load_baseline_config, load_config, parse_config, stored_config
from pate.config._settings import (
    BaselineBudget,
    BaselineConfig,
    Budget,
    Component,
    Config,
    Model,
    QueryConfig,
    RunConfig,
    Sanitise,
)
from pate.config._yaml_loader import read_yaml

__all__ = [
    "BaselineBudget",
    "BaselineConfig",
    "Budget",
    "Component",
    "Config",
    "Model",
    "QueryConfig",
    "RaySettings",
    "RunConfig",
    "Sanitise",
    "TeacherFamily",
    "default_config_path",
    "load_baseline_config",
    "load_config",
    "parse_config",
    "read_yaml",
    "stored_config",
]
