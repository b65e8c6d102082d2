"""What a table holds, guessed for `pate init`: how a csv file is written, and what each column is.

Guesses that go into a config are made from public files alone. Of a private file its columns' names are taken, and
figures that only its holder may see.
"""

from __future__ import annotations

import io
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from pate.data._columns import ABSOLUTE, MISSING, UNITS, Column, Years, canonical, folded, is_number, position
from pate.data._csv_records import OpenQuote, records_of_lines
from pate.data._formats import DELIMITERS, USUAL, Dialect, Table, Wanted, content_of, other_delimiter
from pate.data._records import read_table
from pate.errors import DataError

DATE_FORMS = (
    *("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d.%m.%y", "%d/%m/%y", "%m/%d/%y"),
    *("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M"),
)
"""Forms of dates that are tried, the most usual first: of two that fit, the first is taken."""

_MAX_CATEGORIES = 50
_MOSTLY = 0.8
_RECORDS = 50  # to guess from: a delimiter, or what a column holds
_MIN_NUMBERS = 10  # different ones: a column with fewer may be one of categories
_LONGEST_MARKER = 20
_LONG = 10.0  # years: dates spread over more are dates of birth or the like
_DAYS_MANY, _HOURS_MANY = 730.0, 48.0
Kind = Literal["number", "date", "category", "ignored"]


@dataclass(frozen=True)
class Seen:
    """A column of the public file: what it is, what is wrong with it and what the config says of it."""

    name: str
    kind: Kind
    missing: float
    distinct: int
    wrong: str = ""
    form: str = ""
    values: tuple[str, ...] = ()

    @property
    def written(self) -> str:
        """The key of the config that says so, in short."""
        if self.kind == "category":
            return f"categories: {len(self.values)} values"
        return {"number": "a number", "date": f"dates: {self.form}", "ignored": "ignore"}[self.kind]


def source_of(path: Path) -> Literal["csv", "parquet"]:
    """The source that the file's ending names."""
    if path.suffix.lower() in (".parquet", ".pq"):
        return "parquet"
    if path.suffix.lower() in (".csv", ".tsv", ".tab", ".psv", ".txt", ".dat"):
        return "csv"
    raise DataError(f"{path}: neither .csv nor .parquet; `pate init` reads those two")


def guess_dialect(public: Sequence[Path], encoding: str | None = None) -> Dialect:
    """How csv files are written, by public ones alone: the first says all but the encoding, which must suit each.

    A private file has no say: one record of it could change how all others are read.
    """
    contents = [content_of(str(path)) for path in public]
    for path, content in zip(public, contents, strict=True):
        if not content.strip():
            raise DataError(f"{path}: is empty; it needs a header line with the names of the columns")
    likely = [encoding] if encoding else ["utf-8", "cp1252"]
    if all(content.startswith((b"\xff\xfe", b"\xfe\xff")) for content in contents):
        likely = [encoding or "utf-16"]
    elif encoding is None and any(b"\x00" in content[:1000] for content in contents):
        likely = []
    encoding = next((name for name in likely if all(_decodes(content, name) for content in contents)), None)
    if encoding is None:
        tried = f"not in {likely[0]}" if len(likely) == 1 else "in neither UTF-8, UTF-16 nor Windows' encoding (cp1252)"
        raise DataError(f"{public[0]}: {tried}; save all files as UTF-8")
    text = contents[0].decode("utf-8-sig" if encoding == "utf-8" else encoding)
    delimiter = max(DELIMITERS, key=lambda sign: _width(_first_records(text, sign)))
    cells = [cell.strip() for row in _first_records(text, delimiter)[1:] for cell in row]
    commas = delimiter != "," and any(_is_decimal(cell, ",") for cell in cells)
    points = any(_is_decimal(cell, ".") for cell in cells)
    return Dialect(delimiter, "," if commas and not points else ".", encoding)


def _missing_markers(columns: Mapping[str, Column]) -> list[str]:
    """Texts that seem to say in a public table that nothing is there, such as `k.A.` or `-`.

    They are repeated in columns that hold numbers, or dates of one form, in most other cells; such as have digits other
    than 0 are none, as `<5` says something.
    """
    found: Counter[str] = Counter()
    for column in columns.values():
        if column.family in ("cells", "text"):
            found.update(_strangers(column))
    repeated = Counter[str]()
    for text, times in found.items():
        repeated[folded(text)] += times
    written = {folded(text): text for text, _ in sorted(found.items(), key=lambda one: one[1])}  # the most usual way
    return sorted(written[text] for text, times in repeated.items() if times > 1)


def named_or_guessed_markers(
    public: Table, special: Collection[str | None], given: Sequence[str], guesses: list[str]
) -> list[str]:
    """Texts that mean "missing": those that the user names, and those found in the public file."""
    columns = {name: column for name, column in public.columns.items() if name not in special}
    named = {folded(marker): marker.strip() for marker in given}
    guessed = [marker for marker in _missing_markers(columns) if folded(marker) not in named]
    for marker in guessed:
        texts = {name: one.texts() for name, one in columns.items() if one.family in ("cells", "text")}
        where = [name for name in texts if folded(marker) in map(folded, texts[name])]
        guesses.append(
            f"{marker!r} stands for a missing value, in every column (of the public file in "
            f"{', '.join(map(repr, where))}); if it does not, take it out of data.missing_values.markers"
        )
    return [*named.values(), *guessed]


def with_markers_as_missing(table: Table, special: Collection[str | None], markers: Sequence[str]) -> Table:
    """The table with an empty cell wherever one of `markers` stands, but in the `special` columns."""
    columns = {
        name: column if name in special else column.with_markers_as_missing(markers)
        for name, column in table.columns.items()
    }
    return replace(table, columns=columns)


def _strangers(column: Column) -> Counter[str]:
    """Cells that are none of the numbers or dates that a column mostly holds, if it does, and that may be markers."""
    cells = Counter(canonical(text) for text in column.texts() if text.casefold() not in MISSING)
    for form in ("", *DATE_FORMS):
        few = list(cells)[:_RECORDS]
        if 2 * sum(_is(text, form, column.decimal) for text in few) < len(few):
            continue
        others = Counter({text: times for text, times in cells.items() if not _is(text, form, column.decimal)})
        if len(cells) - len(others) < _MIN_NUMBERS or 2 * others.total() > cells.total():
            continue
        for text in list(others):
            if len(text) > _LONGEST_MARKER or any(sign.isdigit() and sign != "0" for sign in text):
                del others[text]
        return others
    return Counter()


def _is(text: str, form: str, decimal: str) -> bool:
    """Whether a cell is a date of that form, or, where that is empty, a number."""
    if not form:
        return is_number(text, decimal)
    try:
        return bool(datetime.strptime(text, form))
    except ValueError:
        return False


def check_header(path: Path, dialect: Dialect) -> None:
    """Raise DataError for what is wrong with the header of a csv file: names that no record has a say in."""
    rows = _first_records(content_of(str(path)).decode(dialect.codec, errors="replace"), dialect.delimiter)
    if rows and (sign := other_delimiter(rows[0])):
        raise DataError(
            f"{path}: separated by {sign!r}, the public file by {dialect.delimiter!r}; save all files alike"
        )
    if rows:
        Wanted({}, ("",)).columns(rows[0], str(path))


def read(path: Path, dialect: Dialect = USUAL) -> Table:
    """The table in a file, all columns that have a name."""
    if source_of(path) == "csv":
        check_header(path, dialect)
    try:
        return read_table(str(path), source_of(path), Wanted({}, ("",)), dialect)
    except DataError as error:
        raise DataError(error.text().replace("data.encoding", "{encoding}"), encoding=None) from None


def seen(name: str, column: Column) -> Seen:
    """What a public column is."""
    if column.family in ("integer", "real", "boolean"):
        numbers = column.numbers(lenient=True)
        return Seen(name, "number", float(np.isnan(numbers).mean()), len(np.unique(numbers[np.isfinite(numbers)])))
    if column.family == "date":
        years = column.numbers("%Y-%m-%d", lenient=True)
        return Seen(name, "date", float(np.isnan(years).mean()), len(np.unique(years)), form="%Y-%m-%d")
    if column.family == "other":
        return Seen(name, "ignored", 0.0, 0, f"holds {column.stored_as}, neither numbers nor text")
    texts = column.texts()
    filled = [text for text in texts if text.casefold() not in MISSING]
    gaps, distinct = 1 - len(filled) / max(1, len(texts)), Counter(canonical(text) for text in filled)
    if not filled:
        return Seen(name, "ignored", 1.0, 0, "no public row has a value")
    numbers = column.numbers(lenient=True)
    if not np.isinf(numbers).any():
        return Seen(name, "number", gaps, len(distinct))
    form = next((form for form in DATE_FORMS if _are_dates(column, form, filled[:_RECORDS])), "")
    if form:
        other = form.replace("%d/%m", "%m/%d")
        unsure = other != form and _are_dates(column, other, filled[:_RECORDS])
        return Seen(name, "date", gaps, len(distinct), f"day or month first? {other} fits too" if unsure else "", form)
    words = [text for text, number in zip(texts, numbers, strict=True) if np.isinf(number)]
    few = len(distinct) <= min(_MAX_CATEGORIES, max(2, len(filled) // 2))
    if len(words) < ((1 - _MOSTLY) if few else 0.5) * len(filled):
        rare = ", ".join(repr(text) for text, _ in Counter(words).most_common(3))
        return Seen(
            name, "ignored", gaps, len(distinct),
            f"numbers, but {len(words)} public cells say {rare}: mend them, or name what means missing with --marker",
        )  # fmt: skip
    if not few:
        return Seen(
            name, "ignored", gaps, len(distinct), "text of its own in most rows: a name, an id or notes; not used"
        )
    listed = {canonical(text) for text in texts if text.casefold() not in MISSING - {"none"}}  # none may be one
    return Seen(name, "category", gaps, len(listed), values=tuple(sorted(listed)))


def missing_share(column: Column, kind: Kind, form: str) -> float | None:
    """How much of a column is not there; None where it cannot be read as what the public one is."""
    try:
        if kind in ("category", "ignored"):
            texts = column.texts()
            return sum(not text for text in texts) / max(1, len(texts))
        return float(np.isnan(column.numbers(form or None, lenient=True)).mean())
    except DataError:
        return None


def _are_dates(column: Column, form: str, few: list[str]) -> bool:
    """Whether all cells are dates of that form, or missing; a few are tried first, as most forms fail on those."""
    tried = replace(column, values=few, rows=None)
    return not any(np.isinf(some.numbers(form, lenient=True)).any() for some in (tried, column))


def _decodes(content: bytes, encoding: str) -> bool:
    try:
        content.decode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True


def _first_records(text: str, delimiter: str) -> list[list[str]]:
    """The first records of a text, those that are csv if that stands between cells; none if quotes do not balance."""
    try:
        rows = islice(records_of_lines(io.StringIO(text, newline="\n"), delimiter), _RECORDS)
        return [row if isinstance(row, list) else [] for row in rows]
    except OpenQuote:
        return []


def _width(rows: Sequence[Sequence[str]]) -> tuple[bool, int]:
    """Whether all records have as many cells, and how many."""
    widths = [len(row) for row in rows]
    return len(set(widths)) == 1 and widths[0] > 1, widths[0] if widths else 0


def _is_decimal(cell: str, decimal: str) -> bool:
    whole, sign, rest = cell.lstrip("+-").partition(decimal)
    return bool(sign) and (whole.isdigit() or not whole) and rest.isdigit()


_PERSON = (
    "person|personne|persona|pessoa|persoon|osoba|henkilo|individual|individuum|patient|paciente|paziente|pacjent|"
    "pasient|potilas|pat|proband|insasse|bewohner|customer|cust|client|kunde|kund|klient|klant|cliente|asiakas|"
    "mandant|(?:kranken|sozial|renten)?versichert|insured|insuree|policyholder|beneficiary|assure|assicurato|"
    "assistito|asegurado|afiliado|segurado|verzekerde|adherent|beneficiaire|user|benutzer|nutzer|utilisateur|usager|"
    "usuario|utente|gebruiker|bruker|bruger|member|mitglied|membre|miembro|socio|medlem|jasen|subject|subj|subjekt|"
    "participant|teilnehmer|respondent|donor|spender|student|studierende|schueler|schuler|pupil|eleve|etudiant|alumno|"
    "aluno|leerling|citizen|resident|einwohner|burger|buerger|account"
)
"""Words for a person, without accents."""

_PERSON_WITH_A_NUMBER = (
    "matrikel|(?:kranken|sozial|renten)?versicherung|insurance|policy|konto|compte|cuenta|conto|steuer|lid|personal|"
    "staff|employee|mitarbeiter|salarie|empleado|dipendente|medewerker"
)
"""Words that name a person only beside a word for a number, and perhaps not the one whose record it is."""

_PERSON_NUMBER = (
    "mrn|ssn|nhs|nhi|nino|nir|ahv|avs|svnr|kvnr|bsn|cpr|cpf|dni|nif|pesel|hetu|pid|ppid|personnummer|fodselsnummer|"
    "codicefiscale"
)
"""Names of a person's number that say both."""

_NUMBER = (
    "nummer|number|numero|numer|num|nr|no|n|nro|id|ids|uid|uuid|guid|key|code|kod|cod|codigo|codice|kennung|"
    "kennzeichen|schluessel|schlussel|identifier|identifikator|identifiant|identificador|identificativo|tunnus|"
    "pseudonym|hash"
)
_FILLERS = frozenset("de del der des di do du d la le of the van lfd intern unique anon".split())  # noqa: SIM905
_PHRASES = {"social security": "insurance", "health insurance": "insurance", "medical record": "patient"}
_ALONE = frozenset(("id", "uid", "uuid", "guid"))
"""Names that may mean anything: taken where only private records have them, after all others."""

_ENDINGS = "(?:e?n|e?s|e|a|in|innen)?"  # Patienten-, Mitglieds-, Kunden-, pacjenta
_MAX_SIGNS = 60  # a name may be as long as a cell

_ONE_WORD = re.compile(
    f"(?P<number>{_NUMBER})?"
    f"(?:(?P<person>{_PERSON}){_ENDINGS}|(?P<perhaps>{_PERSON_WITH_A_NUMBER}){_ENDINGS}"
    f"|(?P<both>{_PERSON_NUMBER}))?"
    f"(?P<numbered>{_NUMBER})?"
)


def person_columns(own: Iterable[str], shared: Iterable[str] = ()) -> list[str]:
    """Those of the columns whose names are like that of a person's number, the likeliest first.

    `own` columns are those that only private records have, `shared` ones are in a public file too.

    >>> person_columns(["Fall-Nr", "Personen-Nr", "Diagnose", "id"], ["Nr Patient", "Patientenalter"])
    ['Personen-Nr', 'Nr Patient', 'id']
    """
    ranked = [(_rank(name), place, name) for place, names in enumerate((own, shared)) for name in names]
    likely = [(rank, place, name) for rank, place, name in ranked if rank is not None and (place == 0 or rank < 2)]
    return [name for _, _, name in sorted(likely, key=lambda one: one[:2])]


def _rank(name: str) -> int | None:
    """0: a person's number; 1: a person, or perhaps one; 2: a number of anything; None: something else."""
    words = [word for word in _words(name) if word not in _FILLERS]
    if not words or len(name) > _MAX_SIGNS:
        return None
    if words[-1] in _ALONE and len(words) == 1:
        return 2
    person = perhaps = number = False
    for word in words:
        match = _ONE_WORD.fullmatch(word)
        if match is None:
            return None
        person |= bool(match["person"] or match["both"])
        perhaps |= bool(match["perhaps"])
        number |= bool(match["number"] or match["numbered"] or match["both"])
    return 0 if number and person else 1 if person or (number and perhaps) else None


def _words(name: str) -> list[str]:
    """The words of a column's name in small letters without accents: of `patientNo`, two."""
    parted = re.sub(r"(?<=[a-zà-ÿ])(?=[A-ZÀ-Þ])", " ", name[: _MAX_SIGNS + 1])
    plain = unicodedata.normalize("NFKD", parted.casefold().replace("°", "o"))
    words = " ".join(re.findall(r"[a-z]++", "".join(sign for sign in plain if not unicodedata.combining(sign))))
    for phrase, word in _PHRASES.items():
        words = words.replace(phrase, word)
    return words.split()


def offered(dates: Mapping[str, Years]) -> dict[str, list[str]]:
    """What `pate init` makes of public columns of dates, so that it means the same in another year.

    Of the first column in which something happened: month, weekday, hour, and the age then by dates of birth (which are
    spread over many years). Of each other one: how long from the first, or from a date before it in the file
    that is nearer by a unit (hours instead of days or years) and, where they are not within hours of each other, month,
    weekday and hour too. Where no other date tells an age, a date of birth stays what it is.
    """
    lived = {name: years for name, years in dates.items() if _spread(years) >= _LONG}
    events = [name for name in dates if name not in lived]
    if not events:
        first = next(iter(lived), "")
        return {name: [ABSOLUTE if name == first else f"years since {first}"] for name in lived}
    main = events[0]
    found: dict[str, list[str]] = {name: [] for name in dates}
    found[main] = [*_parts(dates[main]), *(f"years since {name}" for name in lived)]
    for number, name in enumerate(events[1:], start=1):
        near = min(events[:number], key=lambda other: _apart(dates[name], dates[other]))
        if _unit(dates[name], dates[near]) == _unit(dates[name], dates[main]):
            near = main
        unit = _unit(dates[name], dates[near])
        found[name] = [] if unit == "hours" else _parts(dates[name])
        later, earlier = (near, name) if _median(dates[name]) < _median(dates[near]) else (name, near)
        found[later].append(f"{unit} since {earlier}")
    return found


def _parts(years: Years) -> list[str]:
    return ["month", "weekday", *(["hour"] if position(_there(years), "hour").any() else [])]


def _there(years: Years) -> Years:
    return years[np.isfinite(years)]


def _median(years: Years) -> float:
    return float(np.median(_there(years)))


def _spread(years: Years) -> float:
    low, high = np.quantile(_there(years), [0.05, 0.95])
    return float(high - low)


def _apart(some: Years, others: Years) -> float:
    """Years between two columns of dates, typically."""
    return float(np.median(np.abs(_there(some - others)))) if np.isfinite(some - others).any() else 0.0


def _unit(later: Years, earlier: Years) -> str:
    typical = _apart(later, earlier) * UNITS["days"]
    return "years" if typical > _DAYS_MANY else "days" if 24 * typical > _HOURS_MANY else "hours"
