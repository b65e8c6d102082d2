"""README and docs tell the truth: paths exist, commands parse, the config is the embedded one. mkdocs does the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support import REPOSITORY

import pate
from pate.cli import app
from pate.config import load_config
from pate.mechanisms import mechanism_classes, parameters_of

PAGES = sorted(
    path.relative_to(REPOSITORY)
    for path in (REPOSITORY / "README.md", REPOSITORY / "cluster" / "README.md", *(REPOSITORY / "docs").rglob("*.md"))
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"(?<![\w./~-])((?:pate|configs|benchmarks|examples|tests|cluster|docs)/[\w./-]*[\w/])(?![\w*-])")
_DOTTED = re.compile(r"(?<![\w./-])(pate(?:\.[A-Za-z]\w*)+)")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_COMMAND = re.compile(r"(?<![\w./-])pate ([a-z]+)((?: [^`\n#·&|]*)?)")


def blocks(page: Path, language: str) -> list[str]:
    found = _FENCE.findall((REPOSITORY / page).read_text(encoding="utf-8"))
    return [content for kind, content in found if kind == language]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Subcommand and options of every command line in fenced blocks without a language, and in code spans."""
    code = [content for kind, content in _FENCE.findall(text) if kind == ""]
    code += re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))
    for name, rest in _COMMAND.findall("\n".join(code)):
        words = rest.split()
        if name == "ledger" and words:
            name, words = f"ledger {words[0]}", words[1:]
        elif name == "submit":
            named = words and words[0] in ("baseline", "reproduce", "audit")
            name, words = (f"submit {words[0]}", words[1:]) if named else ("submit run", words)
        yield name, [word.strip("[]") for word in words if word.strip("[").startswith("--")]


def known_options() -> dict[str, set[str]]:
    """Every option of every command, read off the program itself."""

    def walk(command: object, name: str) -> Iterator[tuple[str, set[str]]]:
        nested = getattr(command, "commands", None)
        if nested is None:
            yield name, {option for parameter in command.params for option in parameter.opts} | {"--help"}  # type: ignore[attr-defined]
        else:
            for key, value in nested.items():
                yield from walk(value, f"{name} {key}".strip())

    known = dict(walk(typer.main.get_command(app), ""))
    fields = {name for cls in mechanism_classes() for name in parameters_of(cls)}
    for name in ("run", "baseline", "reproduce", "audit"):  # which it passes options on to
        known[f"submit {name}"] = known["submit"] | known[name]
    for name in ("account", "plan"):  # they take the parameters of any mechanism
        known[name] |= {f"--{field.replace('_', '-')}" for field in fields}
    return known


def is_there(dotted: str) -> bool:
    """Whether modules of that name exist, and the last of them mentions what follows; imports nothing."""
    place, words = REPOSITORY / "pate", dotted.split(".")[1:]
    while words and (place / words[0]).is_dir():
        place /= words.pop(0)
    inside = words and (place / f"{words[0]}.py").exists()
    source = (place / f"{words.pop(0)}.py" if inside else place / "__init__.py").read_text(encoding="utf-8")
    return all(re.search(rf"\b{word}\b", source) for word in words)


def test_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 150


def test_the_readme_config_is_the_embedded_run(tmp_path: Path) -> None:
    (block,) = blocks(Path("README.md"), "yaml")
    (tmp_path / "my.yaml").write_text(block, encoding="utf-8")
    assert load_config(tmp_path / "my.yaml") == load_config()


@pytest.mark.skipif("PATEClassifier" not in pate.__all__, reason="PATEClassifier is not there yet")
def test_the_readme_example_runs() -> None:
    (block,) = blocks(Path("README.md"), "python")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(block, "README.md", "exec"), names)
    assert len(names["model"].predict(names["X"][1600:])) == 197


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_files_and_names_that_a_page_mentions_are_there(page: Path) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    missing = {path for path in _PATH.findall(text) if not (REPOSITORY / path).exists()}
    missing |= {link for link in _LINK.findall(text) if not (REPOSITORY / page.parent / link).exists()}
    files = (".yaml", ".md", ".db")  # pate.… that is no Python name
    missing |= {name for name in _DOTTED.findall(text) if not name.endswith(files) and not is_there(name)}
    if "PATEClassifier" not in pate.__all__:
        missing.discard("pate.PATEClassifier")
    assert not missing


@pytest.mark.parametrize("page", [*PAGES, *sorted((REPOSITORY / "examples").glob("*.py"))], ids=lambda page: page.name)
def test_pages_and_examples_name_public_modules_alone(page: Path) -> None:
    assert not re.findall(r"pate(?:[./]\w+)*?[./]_\w+", (REPOSITORY / page).read_text(encoding="utf-8"))


def test_pages_that_the_package_mentions_are_there() -> None:
    for path in (REPOSITORY / "pate").rglob("*.py"):
        for page in re.findall(r"docs/[\w/]+\.md", path.read_text(encoding="utf-8")):
            assert (REPOSITORY / page).exists(), f"{path}: {page}"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_command_lines_of_a_page_parse(page: Path) -> None:
    known = known_options()
    for name, options in commands((REPOSITORY / page).read_text(encoding="utf-8")):
        assert name in known or name == "ledger", f"pate {name}"
        assert set(options) <= known.get(name, set()), f"pate {name} {' '.join(options)}"


def test_commands_are_found_at_all() -> None:
    found = list(
        commands("```\npate ledger create X --epsilon 4   # --no\n```\nand `pate run A --set k=v [--json]`, pate jog")
    )
    assert found == [("ledger create", ["--epsilon"]), ("run", ["--set", "--json"])]
    for name in ("pate.mechanisms.GNMax", "pate.ledger.verify", "pate.load_model"):
        assert is_there(name)
    for name in ("pate.no_such_module", "pate.mechanisms.NoSuchThing"):
        assert not is_there(name)
