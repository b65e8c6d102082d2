"""What commands share: options, groups in `--help`, what a parameter of the library is called as an option, tables."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, Signature
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from pate.errors import ConfigError

if TYPE_CHECKING:
    from pate.runs.run import Resume

P = ParamSpec("P")
R = TypeVar("R")

_OPTION = "--resume"

AnchorOption = Annotated[
    str | None,
    typer.Option(
        help="file or URL outside the run for a second copy of the ledger's links, or none; your state folder if left "
        "out; new: accept a run that was moved here for good"
    ),
]
ResumeOption = Annotated[
    Literal["yes", "auto"] | None,
    typer.Option(
        _OPTION,
        metavar="[=auto]",
        show_default=False,
        help="go on with the run in --out; with =auto, begin it where there is none, so the command can be repeated",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]
LogJson = Annotated[bool, typer.Option("--log-json", help="progress and notes as JSON lines")]
Trust = Annotated[
    list[str] | None,
    typer.Option(help="module.Class that may be imported though you did not write the run; may be given again"),
]
FinishedRun = Annotated[str, typer.Argument(help="directory or URL of a finished `pate run` or `pate baseline`")]
DataDir = Annotated[Path | None, typer.Option(help="where data files are; else $PATE_DATA")]
DataDirOfRun = Annotated[Path | None, typer.Option(help="where data files are; else as when the run began")]
OutOption = Annotated[
    str | None, typer.Option(help="run directory, or its URL (s3://, gs://, file://); else runs/NAME-TIME")
]
AddressOption = Annotated[str | None, typer.Option(help="join this Ray cluster instead of starting a local Ray")]
MechanismName = Annotated[
    str | None,
    typer.Option(
        "--mechanism",
        help="short name (lnmax, gnmax, confident-gnmax, …) or dotted path; the last options are the mechanisms' own",
    ),
]


class CommandWithResume(TyperCommand):
    """A command that takes `--resume` alone too: a word that comes next is a value of it only if it is `auto`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for word in args:
            if word.startswith(f"{_OPTION}=") and word != f"{_OPTION}=auto":
                raise typer.BadParameter(f"{word}: write {_OPTION} alone, or {_OPTION}=auto", ctx=ctx)
        words = [
            f"{_OPTION}=yes" if word == _OPTION and following != "auto" else word
            for word, following in zip_longest(args, args[1:])
        ]
        return super().parse_args(ctx, words)


def as_argument(option: Literal["yes", "auto"] | None) -> Resume:
    """The value of `--resume` as the library takes it.

    >>> as_argument(None), as_argument("yes"), as_argument("auto")
    (False, True, 'auto')
    """
    return "auto" if option == "auto" else option is not None


def resume_hint(directory: Path | str) -> str:
    """What the command of this process, interrupted now, says: only what has begun can be resumed."""
    runs = sys.modules.get("pate.runs.run")  # no time to load it
    if runs is None or str(directory) not in runs.BEGUN:
        return "; nothing was begun"
    words = iter(sys.argv[1:])
    kept: list[str] = []
    for word in words:
        if word == "--out" or (word == _OPTION and "auto" in sys.argv):
            next(words, None)
        elif not word.startswith(("--out=", _OPTION)):
            kept.append(word)
    command = shlex.join(["pate", *kept, "--out", str(directory), _OPTION])
    return f"; what was paid for is kept. Go on with: {command}"


class CommandGroup(TyperGroup):
    """Commands that `--help` lists by group (their `rich_help_panel`), each with its first sentence, however long."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group of commands."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            sentence = command.get_short_help_str(limit=1000)
            groups.setdefault(getattr(command, "rich_help_panel", None) or "Commands", []).append((name, sentence))
        for group, rows in groups.items():
            with formatter.section(group):
                formatter.write_dl(rows)


_NAMES = {"ids": "id", "overrides": "set", "name": "mechanism", "n_teachers": "teachers", "n_classes": "classes"}


def as_option(argument: str, value: object = None) -> str:
    """A parameter of the library as people type it; its name alone where the value is None or True.

    >>> as_option("data_dir"), as_option("resume", True), as_option("trust", ["my.Net", "my.Own"])
    ('--data-dir', '--resume', '--trust my.Net --trust my.Own')
    """
    option = f"--{_NAMES.get(argument, argument).replace('_', '-')}"
    if value is None or value is True:
        return option
    if isinstance(value, list):
        return " ".join(f"{option} {item}" for item in value)
    whole = isinstance(value, float) and value.is_integer()
    return f"{option} {value:.0f}" if whole else f"{option} {value}"


def naming_options(command: Callable[P, R]) -> Callable[P, R]:
    """The command, whose errors name parameters as the options that they came from, unless they came from a config."""

    @wraps(command)
    def call(*arguments: P.args, **given: P.kwargs) -> R:
        from pate.accounting._parameters import ParameterError, shown

        try:
            return command(*arguments, **given)
        except ConfigError as error:
            from_config = given.get("config") is not None
            if isinstance(error, ParameterError):
                option = as_option(error.key.removeprefix("mechanism."))
                if from_config and given.get(option[2:].replace("-", "_")) is None:
                    raise
                raise ConfigError(f"{option} {shown(error.value)}: {error.wanted}") from None
            named = re.sub(r"\bmechanism\.(\w+)", lambda found: as_option(found[1]), error.text())
            if from_config or named == error.text():
                raise
            raise ConfigError(named.replace("--mechanism = ", "--mechanism "), **error.arguments) from None

    return call


def print_table(rows: Sequence[Sequence[str]], marked: int | None = None) -> None:
    """Header and rows, one line each, in columns as wide as they must be; the row number `marked` has an arrow."""
    from pate.runs._console import printable

    widths = [max(len(printable(row[i])) for row in rows) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        sign = "" if marked is None else "→ " if number == marked else "  "
        cells = (printable(cell).ljust(width) for cell, width in zip(row, widths, strict=True))
        print(f"{sign}{'  '.join(cells)}".rstrip())


_GIVEN = "pate.mechanism_options"  # where a command's context keeps what was given
_OWN = "pate.own_mechanism"


class MechanismCommand(TyperCommand):
    """A command with `--mechanism NAME`, which takes the parameters of every mechanism as options.

    A parameter for which the command already has an option, such as `--delta`, gets no second one; an option of
    several mechanisms says what it means to each. A NAME that is a dotted path is imported, from this folder too, so
    that its parameters are known.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from pate.components._registry import make_importable
        from pate.mechanisms import mechanism_class

        for word, following in zip_longest(args, args[1:], fillvalue=""):  # before all: it decides on the options
            name = following if word == "--mechanism" else word.removeprefix("--mechanism=")
            if name != word and "." in name:
                make_importable(Path.cwd())
                ctx.meta[_OWN] = mechanism_class({"name": name})
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        from pate.mechanisms import mechanism_classes, parameters_of

        own = super().get_params(ctx)
        taken = {str(parameter.name) for parameter in own} | {"n_teachers"}  # which `build` is given
        meanings: dict[str, dict[str, list[str]]] = {}
        whole: dict[str, bool] = {}
        for cls in mechanism_classes() + ([ctx.meta[_OWN]] if _OWN in ctx.meta else []):
            types = get_type_hints(cls)
            for key, words in parameters_of(cls).items():
                if key not in taken:
                    meaning = meanings.setdefault(key, {}).setdefault(words, [])
                    meaning.append(cls.name.replace("_", "-"))
                    whole[key] = whole.get(key, True) and types.get(key) is int

        def command(**values: Any) -> None: ...  # for typer, to make the options

        wanted: dict[str, Any] = {}
        for key, texts in meanings.items():
            text = "; ".join(": ".join(filter(None, (", ".join(names), text))) for text, names in texts.items())
            kind = int if whole[key] else float
            wanted[key] = Annotated[kind | None, typer.Option(help=text, expose_value=False, callback=_keep)]
        parameters = [Parameter(k, Parameter.KEYWORD_ONLY, default=None, annotation=wanted[k]) for k in wanted]
        command.__annotations__ = wanted
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        app = typer.Typer(add_completion=False)
        app.command()(command)
        return [*own, *typer.main.get_command(app).params]


def _keep(ctx: typer.Context, option: typer.CallbackParam, value: Any) -> None:
    if value is not None:
        ctx.meta.setdefault(_GIVEN, {})[option.name] = value


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
