"""Sixty mistakes that people make, on the real command line: one helpful line, status 2, and nothing is charged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.command_line import in_process

CONFIG = """name: pets
n_teachers: 5
data:
  source: csv
  private: private.csv
  public: public.csv
  label: kind
  id: who
  classes: [cat, dog]
  categories: {fur: [long, short]}
  dates: {born: "%Y-%m-%d"}
teachers: [{name: sklearn.naive_bayes.GaussianNB}]
mechanism: {name: gnmax, sigma: 5}
budget: {max_queries: 20, delta: 1e-5}
student: {name: supervised, params: {estimator: sklearn.linear_model.LogisticRegression}}
backend: local
"""
HEADER = "who,born,length,fur"


class Mistake(NamedTuple):
    """What people do wrong, to the config, to a file or on the command line, and words of the line that helps."""

    words: str
    old: str = ""
    new: str = ""
    file: str = "pets.yaml"
    arguments: tuple[str, ...] = ()
    change: Callable[[str], Any] | None = None


def sets(words: str, *values: str) -> Mistake:
    return Mistake(words, arguments=tuple(word for value in values for word in ("--set", value)))


def text(words: str, old: str, new: str, file: str = "pets.yaml") -> Mistake:
    return Mistake(words, old, new, file)


def recoded(words: str, change: Callable[[str], Any], file: str = "private.csv", *values: str) -> Mistake:
    """A file, or all that a pattern names, is written otherwise."""
    return sets(words, *values)._replace(file=file, change=change)


MISTAKES = {
    # YAML
    "tab": text("not by a tab", "  source: csv", "\tsource: csv"),
    "unclosed list": text("pets.yaml", "[cat, dog]", "[cat, dog"),
    "no colon": text("pets.yaml", "name: pets", "name pets"),
    "keys indented by chance": text("indent the keys of a section alike", "  label: kind", "   label: kind"),
    "colon without a blank": text("a colon and a blank", "backend: local", "backend:local\nseed: 0"),
    "quote not closed": text("a quote is not closed", "name: pets", "name: 'pets"),
    "no config but data": Mistake("is data, not a config; `pate init` writes one", arguments=("CONFIG=private.csv",)),
    "key twice": text("twice", "name: pets", "name: pets\nname: dogs"),
    "misspelt section": text("did you mean 'budget'?", "budget:", "budgt:"),
    "misspelt key": text("did you mean 'max_queries'?", "max_queries: 20", "max_querys: 20"),
    "misspelt data key": text("did you mean 'label'?", "  label: kind", "  lable: kind"),
    "keys of another source": sets(
        "data.label, data.private, data.public, data.classes: missing; add them", "data={source: parquet}"
    ),
    "two misspelt keys, of which one is needed": Mistake(
        "problems: (1) data.lable: unknown key; did you mean 'label'?; (2) budget.max_querys: unknown key",
        change=lambda text: text.replace("label:", "lable:").replace("max_queries:", "max_querys:"),
    ),
    "no private file": text("data: names no private file; add private", "  private: private.csv\n", ""),
    "parameters of a mechanism left out": sets(
        "mechanism.threshold, mechanism.sigma1, mechanism.sigma2: missing; confident_gnmax needs them",
        "mechanism={name: confident_gnmax}",
    ),
    "two columns to ignore that are not there": sets("(2) data.ignore: no file has", "data.ignore=[lenght, furr]"),
    "section missing": text("mechanism", "mechanism: {name: gnmax, sigma: 5}\n", ""),
    "text for a number": sets("budget.max_queries", "budget.max_queries=many"),
    "yes for a name": text("put names into quotes", "[cat, dog]", "[yes, no]"),
    "no such file": Mistake("no such config file", arguments=("CONFIG=gone.yaml",)),
    "a comma for --set": sets("""put it into quotes: 'data.decimal=","'""", "data.decimal=,"),
    "a form of dates for --set": sets("""'data.dates.born="%Y-%m-%d"'""", "data.dates.born=%Y-%m-%d"),
    "a list without brackets": sets("write [cat, dog]", "data.classes=cat,dog"),
    "a comma in a number": sets("write 1.5, with a point", "mechanism.sigma=1,5"),
    "percent": sets("write 0.5, without %", "budget.epsilon=50%"),
    "set without value": Mistake("write key=value", arguments=("--set", "mechanism.sigma")),
    # privacy
    "δ of a tenth": sets("write 1e-4 or less", "budget.delta=0.1"),
    "δ above one over the records": sets("1e-6 or less", "budget.delta=1e-4", "data.public_record_count=50000"),
    "δ of 2": sets("budget.delta", "budget.delta=2"),
    "negative ε": sets("budget.epsilon", "budget.epsilon=-1"),
    "ε too small": sets("too small for one query", "budget.epsilon=0.01"),
    "too many queries for ε": sets("would fit", "budget.epsilon=3"),
    "no noise": sets("mechanism.sigma", "mechanism.sigma=0"),
    "another mechanism's parameter": sets("scale", "mechanism={name: gnmax, scale: 5}"),
    "misspelt mechanism": sets("did you mean 'gnmax'?", "mechanism.name=gnmx"),
    "threshold above the teachers": sets(
        "more votes than the 5 teachers", "mechanism={name: confident_gnmax, threshold: 200, sigma1: 5, sigma2: 5}"
    ),
    "more queries than examples": sets("there are only 40 public examples", "budget.max_queries=4000"),
    # models
    "misspelt teacher": sets("did you mean GaussianNB?", "teachers.0.name=sklearn.naive_bayes.GausianNB"),
    "teacher without module": sets("GaussianNB", "teachers.0.name=GaussianNB"),
    "regressor as teacher": sets(
        "did you mean 'sklearn.ensemble.RandomForestClassifier'?",
        "teachers.0.name=sklearn.ensemble.RandomForestRegressor",
    ),
    "clusters as teacher": sets("not a classifier", "teachers.0.name=sklearn.cluster.KMeans"),
    "transformer as teacher": sets("not a classifier", "teachers.0.name=sklearn.preprocessing.StandardScaler"),
    "teacher's misspelt parameter": sets("smoothing", "teachers.0.params={smoothing: 1}"),
    "no teachers": sets("n_teachers", "n_teachers=0"),
    "more teachers than records": sets("too small to learn from", "n_teachers=100", "mechanism.sigma=9"),
    "misspelt student": sets(
        "did you mean LogisticRegression?", "student.params.estimator=sklearn.linear_model.LogisticRegresion"
    ),
    "misspelt kind of student": sets("supervised", "student.name=superviced"),
    "student's misspelt parameter": sets("regularisation", "student.params.params={regularisation: 1}"),
    "student's impossible parameter": sets("The 'C' parameter of", "student.params.params={C: -1}"),
    "student's parameters that do not go together": sets(
        "before anything was charged", "student.params.params={penalty: l1}"
    ),
    "teacher's parameter with a letter missing": sets(
        "did you mean 'var_smoothing'?", "teachers=[{name: sklearn.naive_bayes.GaussianNB, params: {var_smooting: 1}}]"
    ),
    "teacher's parameters that do not go together": sets(
        "before anything was charged",
        "teachers=[{name: sklearn.linear_model.LogisticRegression, params: {penalty: l1}}]",
    ),
    "regressor as student": sets("a regressor", "student.params.estimator=sklearn.linear_model.Ridge"),
    "gaps for who takes none": sets("takes no missing values", "data.missing_values.treatment=keep"),
    # data section
    "misspelt source": sets("did you mean 'csv'?", "data.source=cvs"),
    "one class": sets("at least two classes", "data.classes=[cat]"),
    "class twice": sets("names repeat", "data.classes=[cat, cat]"),
    "class with a blank": sets("surrounding blanks", "data.classes=['cat ', dog]"),
    "class not listed": sets("not among data.classes", "data.classes=[cat, bird]"),
    "class in capitals": sets("other capitals", "data.classes=[Cat, Dog]"),
    "empty id": sets("id: names no column", "data.id=''"),
    "misspelt id": sets("did you mean 'who'?", "data.id=woh"),
    "misspelt label": sets("did you mean 'kind'?", "data.label=kinds"),
    "ids declared as numbers": sets("no private record has a valid id", "data.id_type=integer"),
    "category in capitals": sets("'long' does", "data.categories={fur: [Long, Short]}"),
    "category of no column": sets("did you mean 'fur'?", "data.categories={fur: [long, short], furr: [a]}"),
    "words without categories": sets("data.categories", "data.categories={}"),
    "dates without form": sets("like a date", "data.dates={}"),
    "wrong form of dates": sets("not a date of the form %d.%m.%Y", "data.dates.born='%d.%m.%Y'"),
    "form of dates as in Excel": sets("such as %Y-%m-%d", "data.dates.born=YYYY-MM-DD"),
    "dates with a time that is not there": sets("not a date of the form", "data.dates.born='%Y-%m-%d %H:%M'"),
    "years of two digits": sets("not a date of the form %y-%m-%d", "data.dates.born='%y-%m-%d'"),
    "numbers declared as dates": sets("like a number", "data.dates.length='%Y-%m-%d'"),
    "dates declared as words too": sets("is named under categories already", "data.categories.born=[a, b]"),
    "dates without forms": sets("write {a: b}", "data.dates=[born]"),
    "decimals after a semicolon": sets("should be '.' or ','", "data.decimal=';'"),
    "one sign for two things": sets("delimiter is, where it is not written, ',' too", "data.decimal=','"),
    "ignore a column that is not there": sets("did you mean 'length'?", "data.ignore=[lenght]"),
    "two delimiters": sets("must be one sign", "data.delimiter='; '"),
    "unknown encoding": sets("no such text encoding", "data.encoding=ansi-german"),
    "private as public": sets("public: is a private file", "data.public=./private.csv"),
    "private as test": sets("test: is a private file", "data.test=private.csv"),
    "private as public, by another name": sets("is a private file by another name", "data.public=../copy/private.csv"),
    "column that private rows lack": recoded("no column 'length', which the public file has", lambda t: _without(t, 2)),
    "a word for a section": sets("must be a section with keys of its own, such as name: mixmach", "student=mixmach"),
    "public among the private shards": sets("public: is a private file", "data.private='*.csv'"),
    "file that is not there": sets("privat.csv: no such file", "data.private=privat.csv"),
    # files
    "semicolons": recoded("separated by ';'", lambda text: text.replace(",", ";")),
    "tabs": recoded(r'say data.delimiter: "\t"', lambda text: text.replace(",", "\t")),
    "decimal comma not declared": recoded(
        "say data.decimal: ','", lambda t: t.replace(",", ";").replace(".0", ",0"), "*.csv", "data.delimiter=';'"
    ),
    "decimal comma declared, and points": recoded(
        "say data.decimal: '.'", lambda t: t.replace(",", ";"), "*.csv", "data.delimiter=';'", "data.decimal=','"
    ),
    "decimal comma": recoded("data.decimal", lambda text: text.replace(",1.0,", ',"1,5",', 1)),
    "latin letters": recoded("data.encoding", lambda text: text.replace("p1,", "pé,").encode("latin-1")),
    "utf-16": recoded("data.encoding", lambda text: text.encode("utf-16")),
    "utf-16 by name": recoded("say data.encoding: utf-16", lambda text: text.encode("utf-16"), "public.csv"),
    "utf-8 by another name": recoded(
        "in UTF-8, though the encoding is said to be cp1252",
        lambda text: text.replace("short", "kürz"),
        "*.csv",
        "data.encoding=cp1252",
        "data.categories={fur: [long, kürz]}",
    ),
    "a day that is not there": recoded(
        "the form is right, but there is no such day",
        lambda text: text.replace("2010-01-11", "2010-02-31", 1),
        "public.csv",
    ),
    "one word among numbers": recoded(
        "mend the cell or empty it", lambda text: text.replace(",0.0,", ",none of it,", 1), "public.csv"
    ),
    "indented otherwise": text("indent the keys of a section", "  public: public.csv", "   public: public.csv"),
    "a cluster for a local run": Mistake(
        "backend: local trains in this process", arguments=("--address", "10.0.0.9:6379")
    ),
    "a workbook": recoded("save it as csv", lambda text: b"PK\x03\x04" + text.encode(), "public.csv"),
    "a line above the header": recoded("something above it", lambda text: f"Export of pets\n{text}", "public.csv"),
    "header forgotten": recoded("is there a header line?", lambda text: text.partition("\n")[2]),
    "a gap": recoded("data.missing_values.treatment", lambda text: text.replace(",1.0,", ",,", 1)),
    "a label missing": recoded("its label is missing", lambda text: text.replace(",cat\n", ",\n", 1)),
    "row cut off": recoded("not as many fields", lambda text: text[:-9]),
    "column twice": recoded("is there twice", lambda text: text.replace("born,length", "length,length", 1)),
    "an index of pandas": recoded(
        "has no name",
        lambda text: "\n".join(f"{i or ''},{line}" for i, line in enumerate(text.split("\n")[:-1])) + "\n",
    ),
    "empty file": recoded("private", lambda text: text.partition("\n")[0] + "\n"),
    "public column missing": recoded("has no such column", lambda t: _without_last(t), "public.csv"),
    # command line
    "data folder that is not there": Mistake("--data-dir nowhere: no such folder", arguments=("--data-dir", "nowhere")),
    "resume of nothing": Mistake("no run to resume", arguments=("--resume",)),
    "more workers than CPUs": sets("this machine has", "backend=ray", "ray.workers=4000"),
    "cluster that is not there": Mistake(
        "cannot join that Ray cluster", arguments=("--set", "backend=ray", "--address", "127.0.0.1:9")
    ),
}


def _without(text: str, column: int) -> str:
    rows = [line.split(",") for line in text.splitlines()]
    return "".join(",".join(row[:column] + row[column + 1 :]) + "\n" for row in rows)


def _without_last(text: str) -> str:
    return "\n".join(line.rpartition(",")[0] for line in text.split("\n"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pets")
    (folder / "pets.yaml").write_text(CONFIG)
    lines = [f"p{i},20{10 + i % 9}-0{1 + i % 9}-11,{i % 2}.0,{('long', 'short')[i % 3 % 2]}" for i in range(120)]
    private = [f"{line},{('cat', 'dog')[i % 2]}" for i, line in enumerate(lines)]
    (folder / "private.csv").write_text("\n".join([f"{HEADER},kind", *private]) + "\n")
    public = [line.partition(",")[2] for line in (HEADER, *lines[:40])]
    (folder / "public.csv").write_text("\n".join(public) + "\n")
    return folder


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_in_one_helpful_line(name: str, files: Path, tmp_path: Path) -> None:
    mistake = MISTAKES[name]
    folder = tmp_path / "copy"
    shutil.copytree(files, folder)
    for path in folder.glob(mistake.file):
        content = path.read_text()
        changed = mistake.change(content) if mistake.change else content.replace(mistake.old, mistake.new)
        assert mistake.arguments or changed != content
        path.write_bytes(changed if isinstance(changed, bytes) else changed.encode())
    config, arguments = folder / "pets.yaml", mistake.arguments
    if arguments and arguments[0].startswith("CONFIG="):
        config, arguments = folder / arguments[0].partition("=")[2], ()
    ended = in_process("run", config, "--out", tmp_path / "run", *arguments)
    assert ended.returncode == 2, ended
    (last,) = ended.stderr.splitlines()
    assert last.startswith("pate: error: ")
    assert mistake.words in last, last
    assert len(last) < 600
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "run").exists()  # nothing is charged, and nothing is in the way of the next try


def test_without_a_mistake_it_runs(files: Path, tmp_path: Path) -> None:
    ended = in_process("run", files / "pets.yaml", "--out", tmp_path / "run")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("reproduce mnist --rows gnmx-250", "--rows: mnist has no 'gnmx-250'; did you mean 'gnmax-250'? There are"),
        ("reproduce mnist --rows x --quick", "there are lnmax-100, lnmax-1000, confident, ours-100,"),
        ("reproduce abadi --rows x", "--rows: abadi has no 'x'; there are"),
        ("reproduce abadi --figures", "--figures: abadi has no teachers"),
        ("reproduce mnist --figures --rows gnmax-250", "--figures: has no rows; leave out --rows"),
        ("reproduce abad", "did you mean 'abadi'?"),
        ("plan --mechanism confident-gnmax", "--threshold, --sigma1, --sigma2: missing; confident_gnmax needs them"),
        ("plan --mechanism gnmx --sigma 4", "--mechanism 'gnmx': no such mechanism; did you mean 'gnmax'?"),
        ("ledger create made --epsilon -1", "--epsilon -1.0: must be a number above 0"),
        ("compare nowhere/a nowhere/b", "nowhere/a, nowhere/b: are no run directories"),
        ("init a.csv --public b.csv --test c.csv", "a.csv, b.csv, c.csv: no such files"),
        ("forget runs/x --rows one", "--rows one: must be numbers of rows with commas between, such as 5,17"),
    ],
)
def test_a_wrong_command_line_is_told_in_its_own_words(command: str, words: str) -> None:
    ended = in_process(*command.split())
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert words in line


def test_there_are_sixty() -> None:
    assert len(MISTAKES) >= 60
