"""How a file becomes the sections of a config; every mistake in it is one line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from pate.accounting._parameters import parse_number
from pate.components._registry import dotted, make_importable, nearest, shown
from pate.config._settings import BaselineConfig, Config, RunConfig
from pate.config._yaml_loader import MAX_DEPTH, parse_yaml, read_yaml
from pate.data._settings import AnyData, OwnData, Settings
from pate.errors import ConfigError, numbered

Kind = TypeVar("Kind", bound=RunConfig)
_SWALLOWED = ("|", ">", "#")
"""Text that begins so would be nothing at all: a block that has no lines, a comment."""

_SIGNS = (*_SWALLOWED, *",%@`*&!:?[]{}-")
"""What text begins with that YAML takes for something else."""


def default_config_path(name: str = "digits") -> Path:
    """A config that comes with the package, by default the embedded digits run; in the checkout or installed."""
    package = Path(__file__).parents[1]
    packaged = package / "configs" / f"{name}.yaml"
    return packaged if packaged.exists() else package.parent / "configs" / f"{name}.yaml"


def load_config(path: Config | Mapping[str, Any] | Path | str | None = None, overrides: Iterable[str] = ()) -> Config:
    """Read a config, so that classes in files beside it can be named.

    Parameters
    ----------
    path : str, Path, mapping or Config, default=None
        A YAML file, plain values as in such a file, or a config that was read before; the embedded digits run where
        none is given.
    overrides : iterable of str, default=()
        `key=value`, such as `mechanism.sigma=30`, in place of what the file says.
    """
    if isinstance(path, Config):
        return overridden(path, {}, overrides) if overrides else path
    if isinstance(path, Mapping):
        return parse_config(_overridden(deepcopy(dict(path)), overrides))
    if path is None:
        return _load(default_config_path(), overrides, Config)
    folder = Path(path).parent.resolve()
    make_importable(folder)  # a mechanism may be in a file beside it
    return _load(Path(path), overrides, Config).of_folder(folder)


def load_baseline_config(path: Path | str, overrides: Iterable[str] = ()) -> BaselineConfig:
    """Read and check a config for `pate baseline`."""
    return _load(Path(path), overrides, BaselineConfig)


def _load(path: Path, overrides: Iterable[str], kind: type[Kind]) -> Kind:
    return parse_config(_overridden(read_yaml(path), overrides), kind)


def parse_config(content: Mapping[str, Any], kind: type[Kind] = Config) -> Kind:  # type: ignore[assignment]
    """Settings from plain values, checked down to the mechanism's parameters."""
    config = settings_from(content, kind)
    config.check()
    return config


def overridden(config: Kind, sections: Mapping[str, Any], overrides: Iterable[str]) -> Kind:
    """The config with other `sections`, and with `key=value` overrides of those."""
    content = _overridden(config.to_plain() | dict(sections), overrides)
    return parse_config(content, type(config)).of_folder(config.folder)


def stored_config(path: Path) -> Config | BaselineConfig:
    """What a run was begun with. Nothing that it names is imported: whoever goes on with the run builds that."""
    content = read_yaml(path)
    return settings_from(content, BaselineConfig) if "baseline" in content else settings_from(content, Config)


def settings_from(content: Mapping[str, Any], kind: type[Kind]) -> Kind:
    """Settings from plain values, before anything that they name is built."""
    if "baseline" in content and kind is Config:
        raise ConfigError("baseline: this config is for `pate baseline`, not for `pate run`")
    if "mechanism" in content and kind is BaselineConfig:
        raise ConfigError("mechanism: this config is for `pate run`, not for `pate baseline`")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        from pate.voters import config_class

        own = config_class(content) if kind is Config else kind
        raise ConfigError(_one_line(error, content, own)) from None


def _overridden(content: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """The `content`, in which `key=value` has changed what is there."""
    for text in overrides:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError("{overrides}: write key=value, for example mechanism.sigma=30", overrides=text)
        *parents, last = names = key.split(".")
        if len(names) > MAX_DEPTH:
            raise ConfigError(f"{{overrides}}: nested more than {MAX_DEPTH} deep", overrides=dotted([key]))
        place: Any = content
        for name in parents:
            place = place.setdefault(name, {}) if isinstance(place, dict) else place[_index(place, name, key)]
        index = last if isinstance(place, dict) else _index(place, last, key)
        try:
            if value.startswith(_SWALLOWED):
                raise ConfigError(f"{{overrides}}: YAML takes {value[0]} for itself")
            place[index] = parse_yaml(value, "{overrides}")
        except ConfigError as error:
            raise ConfigError(f"{error.text()}{_quoted(key, value)}", overrides=dotted(names)) from None
    return content


def _quoted(key: str, value: str) -> str:
    """How to write text that YAML takes for something else, for a shell; nothing where quotes would not help."""
    if not value.startswith(_SIGNS):
        return ""
    if value.startswith(("[", "{")):
        return '; put text with signs into quotes, such as "%d.%m.%Y"' if set(value) & set("%@`*&!|>") else ""
    whole = shlex.quote(f"{key}={json.dumps(value, ensure_ascii=False)}")
    return f"; put it into quotes: {whole}" if len(whole) < 100 and whole.isprintable() else "; put it into quotes"


def _index(place: Any, name: str, key: str) -> int:
    """Where in the list `place` the entry `name` is."""
    if isinstance(place, list) and name in (numbers := list(map(str, range(len(place))))):
        return numbers.index(name)
    raise ConfigError(f"{{overrides}}: there is no {shown(name)} at that place", overrides=dotted([key]))


def _one_line(error: ValidationError, content: Any, kind: type[Settings]) -> str:
    """All that is wrong with a config: what is missing, what is not known, and each value that cannot be used."""
    errors = error.errors(include_url=False)
    errors.sort(key=lambda e: e["type"] != "extra_forbidden")
    found: dict[tuple[int | str, ...], str] = {}
    meant: set[str] = set()  # a misspelt key is also missing
    missing = []
    for one in errors:
        path = tuple(_place(one["loc"], content))
        if one["type"] == "extra_forbidden":
            close = get_close_matches(str(path[-1]), _known_keys(one["loc"], kind), n=1)
            meant.update(dotted([*path[:-1], key]) for key in close)
        if one["type"] == "missing":
            missing += [dotted([*path, key]) for key in (one["loc"][-1], *_files_too(one, path, content))]
        elif not any(path[: len(other)] == other[: len(path)] for other in found):  # a union tells of a value twice
            found[path] = _about(one, errors, content, kind)
    absent = [key for key in dict.fromkeys(missing) if key not in meant]
    lines = list(found.values())
    if absent:
        lines.append(f"{', '.join(absent)}: missing; add {'it' if len(absent) == 1 else 'them'} to the config")
    return numbered(lines)


def _files_too(missing: Any, path: tuple[int | str, ...], content: Any) -> list[str]:
    """The files that a data section lacks as well as the key that is `missing`."""
    model = _DATA_MODELS.get(str(missing["input"].get("source"))) if path == ("data",) else None
    return model.lacking(missing["input"]) if model is not None and issubclass(model, OwnData) else []


def _about(first: Any, errors: Sequence[Any], content: Any, kind: type[Settings]) -> str:
    """What is wrong at the place of the error `first`."""
    path = _place(first["loc"], content)
    key = dotted(path)
    if first["type"] == "extra_forbidden":
        if others := _voters_with(first["loc"], kind):
            return f"{key}: is for voters: {' or '.join(others)}; leave it out, or say so"
        return f"{key}: unknown key; {nearest(str(path[-1]), _known_keys(first['loc'], kind))}"
    if first["type"] == "union_tag_invalid":
        source = first["input"].get("source")
        return f"data.source = {shown(source)}: no such source; {nearest(str(source), _SOURCES)}"
    if first["type"] == "union_tag_not_found":
        return f"data.source: missing; known are {', '.join(sorted(_SOURCES))}"
    message = " or ".join(dict.fromkeys(_message(e) for e in errors if _place(e["loc"], content) == path))
    if not path:
        return message
    value = first["input"]
    message += parse_number(value) if "number" in message or "integer" in message else ""
    if isinstance(value, bool):
        message += " (YAML takes yes, no, on and off for true and false: put names into quotes)"
    return f"{key}: {message}" if isinstance(value, (dict, BaseModel)) else f"{key} = {shown(value)}: {message}"


def _message(error: Any) -> str:
    message, value = error["msg"].removeprefix("Value error, "), error["input"]
    if error["type"] == "tuple_type":
        several = value.replace(",", " ").split() if isinstance(value, str) else []
        listed = f"[{', '.join(several)}]" if several else "[a, b]"
        return f"must be a list: write {listed}"
    if error["type"] == "dict_type":
        return "must be keys and values: write {a: b}"
    if error["type"] == "model_type":
        return "must be a section with keys of its own" + (f", such as name: {value}" if isinstance(value, str) else "")
    if error["type"] == "string_type":
        return "must be text" + (", in quotes" if isinstance(value, (bool, int, float)) else "")
    return f"{message[0].lower()}{message[1:]}"


def _place(location: Iterable[int | str], content: Any) -> list[int | str]:
    """Where in `content` an error is; pydantic's `location` also names the types it tried on the way."""
    path: list[int | str] = []
    for part in location:
        if path == ["data"] and isinstance(content, Mapping) and part == content.get("source"):
            continue  # the kind of data, which may also be the name of a key
        inside = range(len(content)) if isinstance(content, (list, tuple)) else content
        if isinstance(inside, (Mapping, range)) and part in inside:
            content = content[part]
            path.append(part)
    return path


_DATA_MODELS: dict[str, type[Settings]] = {
    source: model for model in get_args(AnyData) for source in get_args(model.model_fields["source"].annotation)
}
_SOURCES = frozenset(_DATA_MODELS)


def _known_keys(location: tuple[int | str, ...], kind: type[Settings]) -> Iterable[str]:
    """The keys of the section that the last part of `location` was looked for in."""
    section = kind
    for part in location[:-1]:
        if part in _SOURCES:  # pydantic names the kind of data after 'data'
            section = _DATA_MODELS[str(part)]
        elif part in section.model_fields and part != "data":
            section = _section_in(section.model_fields[str(part)].annotation)
    return section.model_fields


def _voters_with(location: tuple[int | str, ...], kind: type[Settings]) -> list[str]:
    """Other kinds of voters that have the key at `location`."""
    from pate.voters import kind_names, kind_of

    if not issubclass(kind, Config):
        return []
    others = {name: kind_of(name).config_class for name in kind_names()}
    return [
        name
        for name, other in others.items()
        if location[0] in other.model_fields and str(location[-1]) in _known_keys(location, other)
    ]


def _section_in(annotation: Any) -> type[Settings]:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    return next(_section_in(inner) for inner in get_args(annotation) if inner not in (type(None), ...))
