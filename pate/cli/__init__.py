"""The command line: one file per group of commands."""

from __future__ import annotations

import io
import sys
import warnings
from signal import SIGINT
from typing import Annotated

import typer

from pate import __version__
from pate.boundary import kind_of, place_of
from pate.cli import ledger
from pate.cli.accounting import account, plan
from pate.cli.baseline import baseline
from pate.cli.compare import compare
from pate.cli.doctor import doctor
from pate.cli.forget import forget
from pate.cli.init import init
from pate.cli.mechanism_options import MechanismCommand
from pate.cli.options import as_option
from pate.cli.predict import predict
from pate.cli.report import report
from pate.cli.reproduce import reproduce
from pate.cli.run import run
from pate.cli.student import student
from pate.cli.submit import fetch, jobs, logs, stop, submit
from pate.cluster.interrupts import interruptible, received
from pate.console import printable
from pate.errors import PateError
from pate.networks.threads import wait_without_burning

_INTERRUPTED = 130  # what commands end with after a KeyboardInterrupt

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="PATE: learn from private records, publish only a student and its ε.",
)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="print the version and end")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


_LOCAL = (init, run, student, predict, report, baseline, compare, reproduce, forget)
_ELSEWHERE = (submit, jobs, logs, stop, fetch, doctor)
for command in _LOCAL + _ELSEWHERE:
    app.command()(command)
app.command(cls=MechanismCommand)(account)
app.command(cls=MechanismCommand)(plan)
app.add_typer(ledger.app, name="ledger")


def main() -> None:
    """Entry point: a user's mistake is one line on standard error and exit status 2; after signal n it is 128 + n.

    An error that nobody foresaw is shown whole at a terminal. Elsewhere, as in a job on a cluster, it would end up in
    a log, and its text could quote a record: there only its kind and place are shown.
    """
    hide_warnings_of_others()
    wait_without_burning()
    for stream in (sys.stdout, sys.stderr):  # a path may hold what the terminal's encoding does not
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with interruptible():
        sys.exit(_status())


def hide_warnings_of_others() -> None:
    """Other packages' warnings could quote a record in a job's log; those of pate are shown. Python's -W overrules."""
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", module=r"(?!pate(\.|$))")


def _status() -> int | str | None:
    try:
        app()
    except PateError as error:
        return _complain(error.worded(as_option))
    except OSError as error:
        signal = received()
        if signal is not None:  # the terminal it would be said on is gone
            return 128 + signal
        reason = error.strerror if error.errno is not None else kind_of(error)
        return _complain(f"{error.filename or 'system'}: {reason}")
    except SystemExit as ended:
        return 128 + (received() or SIGINT) if ended.code == _INTERRUPTED else ended.code
    except Exception as error:
        if sys.stderr.isatty():
            raise
        what = f"{kind_of(error)} in {place_of(error)}"
        return _complain(f"{what}, a mistake in pate; the same command at a terminal shows more", status=1)
    return 0


def _complain(text: str, status: int = 2) -> int:
    print(f"pate: error: {printable(text)}", file=sys.stderr)
    return status
