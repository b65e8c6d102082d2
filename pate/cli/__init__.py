"""The command line: one file per group of commands."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable
from difflib import get_close_matches
from signal import SIGINT
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from pate import __version__
from pate.boundary._guard import error_kind, error_place
from pate.cli._audit import audit
from pate.cli._cluster import PASS_ON, doctor, fetch, submit
from pate.cli._init import init
from pate.cli._look import compare, ledger, report
from pate.cli._options import CommandGroup, CommandWithResume, MechanismCommand, as_option
from pate.cli._plan import account, plan
from pate.cli._predict import predict
from pate.cli._run import baseline, reproduce, run
from pate.cli._student import forget, student
from pate.cluster._interrupts import interruptible, received, speaking, was_told
from pate.errors import PateError, first_line, own_line
from pate.networks._process import use_passive_threads
from pate.runs._console import Console, printable

_ALIKE = 0.7  # a longer option that merely shares letters is no help

_INTERRUPTED = 130  # what commands end with after a KeyboardInterrupt

_UsageError: Any = typer.BadParameter.__base__  # of click, or of the copy of it that typer brings


def _version(version: Annotated[bool, typer.Option("--version", help="print the version and end")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


app = typer.Typer(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="PATE: learn from private records, publish only a student and its ε.",
)
app.callback(invoke_without_command=True)(_version)
_COMMANDS: list[tuple[str, type[TyperCommand], tuple[Callable[..., None], ...]]] = [
    ("Plan", CommandWithResume, (init,)),
    ("Plan", MechanismCommand, (plan, account)),
    ("Run", CommandWithResume, (run, student, predict, baseline, reproduce, forget)),
    ("Look", CommandWithResume, (report, compare, audit)),
    ("Cluster", TyperCommand, (fetch, doctor)),
]
for _panel, _kind, _functions in _COMMANDS:
    for _function in _functions:
        app.command(cls=_kind, rich_help_panel=_panel)(_function)
app.command(context_settings=PASS_ON, rich_help_panel="Cluster")(submit)
app.add_typer(ledger, name="ledger", rich_help_panel="Look")


def main() -> None:
    """Entry point: a user's mistake is one line on standard error and exit status 2; after signal n it is 128 + n.

    An error that nobody foresaw is shown whole at a terminal. Elsewhere, as in a job on a cluster, it would end up in
    a log, and its text could quote a record: there only its kind and place are shown.
    """
    hide_library_warnings()
    use_passive_threads()
    for stream in (sys.stdout, sys.stderr):  # a path may hold what the terminal's encoding does not
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with interruptible(), speaking():
        try:
            status = _status()
        except KeyboardInterrupt:
            status = 128 + (received() or SIGINT)
        sys.exit(status)


def hide_library_warnings() -> None:
    """Other packages' warnings could quote a record in a job's log; those of pate are shown. Python's -W overrules."""
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", module=r"(?!pate(\.|$))")


def _status() -> int | str | None:
    try:
        return _after_interrupt(app(standalone_mode=False, prog_name="pate"))
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # no mistake: somebody asks what there is
            error.show()
            return error.exit_code
        help_of = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
        return _complain(" ".join(_worded(error).rstrip(".").split()) + help_of)
    except typer.Abort:
        return 1
    except PateError as error:
        status = _complain(error.worded(as_option))
        if error.private:
            Console().info_private(printable(error.private))
        return status
    except OSError as error:
        signal = received()
        if signal is not None:  # the terminal it would be said on is gone
            return 128 + signal
        reason = error.strerror if error.errno is not None else error_kind(error)
        return _complain(f"{error.filename or 'system'}: {reason}")
    except SystemExit as ended:
        return _after_interrupt(ended.code)
    except Exception as error:
        at_a_terminal, place = sys.stderr.isatty() and not was_told(), own_line(error)
        if place is not None:
            told = f"{error_kind(error)}: {first_line(error)}" if at_a_terminal else error_kind(error)
            return _complain(f"{place}: {told}")
        if at_a_terminal:
            raise
        what = f"{error_kind(error)} in {error_place(error)}"
        return _complain(f"{what}, a mistake in pate; the same command at a terminal shows more", status=1)


def _worded(error: Any) -> str:
    """What click says of a wrong command line, with a word that may have been meant."""
    context, option = error.ctx, getattr(error, "option_name", None)
    if context is not None and option is not None and type(error).__name__ == "NoSuchOption":
        known = [name for parameter in context.command.get_params(context) for name in parameter.opts]
        close = get_close_matches(option, known, n=1, cutoff=_ALIKE)
        hint = f"; did you mean {close[0]}?" if close else ""
        if not close and "--set" in known:
            hint = "; what a config says is changed with --set, as in --set budget.epsilon=2"
        return f"no such option: {option}{hint}"
    text = str(error.format_message())
    if context is not None and text.startswith("No such command"):
        commands = ", ".join(context.command.list_commands(context))
        return text if "Did you mean" in text else f"{text.rstrip('.')}; there are {commands}"
    return text


def _after_interrupt(code: int | str | None) -> int | str | None:
    """The status of a command: after signal n it is 128 + n."""
    return 128 + (received() or SIGINT) if code == _INTERRUPTED else code


def _complain(text: str, status: int = 2) -> int:
    if was_told():  # that the command was interrupted: what fails from then on is no news
        return 128 + (received() or SIGINT)
    print(f"pate: error: {printable(text)}", file=sys.stderr)
    return status
