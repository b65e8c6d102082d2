"""Errors of the library speak of its arguments; the command line calls them by its options."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

import pate
from pate.accounting._parameters import ParameterError
from pate.cli import app
from pate.cli._options import as_option
from pate.config import load_config
from pate.errors import ConfigError, PateError, RunError

PACKAGE = Path(pate.__file__).parent
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
ALLOWED = {
    "cluster/_checks.py": {"--dashboard-host", "--num-gpus", "--temp-dir"},  # of `ray start`
    "cluster/_session.py": {"--resume"},  # the last words of a process that nothing else can end
    "planning/_config_wizard.py": {
        "--classes",
        "--delta",
        "--epsilon",
        "--force",
        "--id",
        "--marker",
        "--order",
        "--records",
        "--target-epsilon",
    },  # commands and hints in the config that it writes
    "data/_column_inference.py": {"--marker"},  # what `pate init` says of columns
    "report/_plots.py": {"--c", "--ink", "--line", "--muted"},  # variables of a style sheet
    "report/_pages.py": {"--font"},  # the same
}


def library() -> dict[str, ast.Module]:
    """Every module outside of `pate/cli`, by its path in the package."""
    paths = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    return {name: ast.parse(path.read_text()) for name, path in paths.items() if not name.startswith("cli/")}


def texts(tree: ast.AST) -> Iterator[str]:
    """The strings of a module that are not docstrings."""
    explained = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in explained:
            yield node.value


def test_the_library_names_no_option_of_the_command_line() -> None:
    named = {name: {flag for text in texts(tree) for flag in FLAG.findall(text)} for name, tree in library().items()}
    assert {name: flags for name, flags in named.items() if flags} == ALLOWED


def kinds_of_errors(root: type[PateError] = PateError) -> set[str]:
    return {root.__name__}.union(*(kinds_of_errors(kind) for kind in root.__subclasses__()))


def test_every_argument_that_an_error_names_is_an_option() -> None:
    command = typer.main.get_command(app)
    options = {
        option
        for sub in command.commands.values()  # type: ignore[attr-defined]
        for parameter in sub.params
        for option in parameter.opts
    }
    raising = kinds_of_errors() | {"guarded", "guarded_class"}
    found = set()
    for name, tree in library().items():
        words = "\n".join(texts(tree))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id in raising:
                for argument in [keyword.arg for keyword in call.keywords if keyword.arg not in (None, "then")]:
                    assert f"{{{argument}}}" in words, f"{name}: {argument} is given, and no text has it"
                    assert as_option(str(argument), None) in options
                    found.add(argument)
    assert found >= {"address", "data_dir", "force", "ids", "out", "overrides", "resume", "rows", "trust"}


def test_an_error_in_the_words_of_both() -> None:
    error = RunError("{address}: gone; add {resume}, or another {out}", address="auto", resume=True, out=None)
    assert str(error) == "address='auto': gone; add resume=True, or another out"
    assert error.worded(as_option) == "--address auto: gone; add --resume, or another --out"


def test_an_error_that_crossed_a_process_says_the_same() -> None:
    sent = RunError("go on with\n{resume}", resume=True)
    came = pickle.loads(pickle.dumps(sent))
    assert type(came) is RunError
    assert (str(came), came.worded(as_option)) == ("go on with resume=True", "go on with --resume")


def test_a_parameter_is_called_the_same_by_both() -> None:
    error = ParameterError("sigma", -1, "must be above 0")
    assert str(error) == error.worded(as_option) == "sigma = -1: must be above 0"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed", "--set seed: write key=value, for example mechanism.sigma=30"),
        ("seed=[1", "--set seed line 1: not valid YAML"),
        ("seed=!!python/name:os.system", "--set seed line 1: tags"),
        ("teachers.7.name=x", "--set teachers.7.name: there is no '7' at that place"),
        (".".join(["a"] * 41) + "=1", "nested more than 40 deep"),
    ],
)
def test_an_override_is_named_as_it_was_given(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    assert words in caught.value.worded(as_option)
    assert "--set" not in str(caught.value)
