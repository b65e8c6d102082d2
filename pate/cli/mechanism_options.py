"""`--sigma 40` and its like: an option for every parameter of every mechanism, read off the mechanisms themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from pate.errors import ConfigError

if TYPE_CHECKING:
    from pate.mechanisms import Mechanism

_GIVEN = "pate.mechanism_options"  # where a command's context keeps what was given
_OWN = "pate.own_mechanism"

_TOLD = "n_teachers"  # no option: `build` is given it, the same for every mechanism


class MechanismCommand(TyperCommand):
    """A command with `--mechanism NAME`, which takes the parameters of every mechanism as options.

    A parameter for which the command already has an option, such as `--delta`, gets no second one.
    A NAME that is a dotted path is imported, from this folder too, so that its parameters are known.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from pate.components.registry import make_importable
        from pate.mechanisms import mechanism_class

        name = _named(args)
        if name is not None and "." in name:
            make_importable(Path())
            ctx.meta[_OWN] = mechanism_class({"name": name})
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        from pate.mechanisms import mechanism_classes

        own = super().get_params(ctx)
        classes = mechanism_classes() + ([ctx.meta[_OWN]] if _OWN in ctx.meta else [])
        return [*own, *_options(classes, {str(parameter.name) for parameter in own})]


def own_settings(ctx: typer.Context) -> dict[str, Any]:
    """The mechanisms' parameters that were given on the command line."""
    return dict(ctx.meta.get(_GIVEN, {}))


def required_settings(ctx: typer.Context, **known: Any) -> dict[str, Any]:
    """The mechanism that the command line names, as a config says it; refused where it names none.

    Values of the command's own options, or `known` in their place, go to a mechanism that has a parameter of that name.
    """
    from pate.mechanisms import mechanism_class, mechanism_classes, parameters_of

    name = ctx.params.get("mechanism")
    if name is None:
        names = ", ".join(cls.name.replace("_", "-") for cls in mechanism_classes())
        raise ConfigError(f"--mechanism: missing; one of {names}, or a dotted path")
    own = parameters_of(mechanism_class({"name": name}))
    shared = {key: value for key, value in (ctx.params | known).items() if key in own and value is not None}
    return {"name": name, **own_settings(ctx), **shared}


def _named(args: Sequence[str]) -> str | None:
    """The value of `--mechanism`, before anything is parsed: it decides which options there are."""
    for place, word in enumerate(args):
        if word == "--mechanism" and place + 1 < len(args):
            return args[place + 1]
        if word.startswith("--mechanism="):
            return word.partition("=")[2]
    return None


def _options(classes: Iterable[type[Mechanism]], taken: set[str]) -> list[Any]:
    """An option per parameter; one that several mechanisms have says what it means to each."""
    from pate.mechanisms import parameters_of

    meanings: dict[str, dict[str, list[str]]] = {}
    whole: dict[str, bool] = {}
    for cls in classes:
        types = get_type_hints(cls)
        for key, field in parameters_of(cls).items():
            if key in taken or key == _TOLD:
                continue
            meaning = meanings.setdefault(key, {}).setdefault(field.metadata.get("help", ""), [])
            meaning.append(cls.name.replace("_", "-"))
            whole[key] = whole.get(key, True) and types.get(key) is int
    return _as_typer_makes_them({key: (int if whole[key] else float, _help(meanings[key])) for key in meanings})


def _help(meanings: dict[str, list[str]]) -> str:
    return "; ".join(": ".join(filter(None, (", ".join(names), text))) for text, names in meanings.items())


def _as_typer_makes_them(options: dict[str, tuple[type, str]]) -> list[Any]:
    """Options made by typer from type and help; what is given for them goes where `own_settings` looks."""

    def command(**values: Any) -> None: ...

    wanted: dict[str, Any] = {
        key: Annotated[kind | None, typer.Option(help=text, expose_value=False, callback=_keep)]
        for key, (kind, text) in options.items()
    }
    parameters = [Parameter(k, Parameter.KEYWORD_ONLY, default=None, annotation=wanted[k]) for k in wanted]
    command.__annotations__ = wanted
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return list(typer.main.get_command(app).params)


def _keep(ctx: typer.Context, option: typer.CallbackParam, value: Any) -> None:
    if value is not None:
        ctx.meta.setdefault(_GIVEN, {})[option.name] = value
