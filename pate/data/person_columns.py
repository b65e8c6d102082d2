"""Columns that say whose record it is, told by their names alone: what private cells hold has no say in it.

Words for a person and for a number, in the languages that tables were met in, in any order, with or without signs
between them: `Personen-Nr`, `patient_no`, `Nr Patient`, `Versichertennummer`, `kundenId`, `MRN`, `código del paciente`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_PERSON = (
    *("person", "personne", "persona", "pessoa", "persoon", "osoba", "henkilo", "individual", "individuum"),
    *("patient", "paciente", "paziente", "pacjent", "pasient", "potilas", "pat", "proband", "insasse", "bewohner"),
    *("customer", "cust", "client", "kunde", "kund", "klient", "klant", "cliente", "asiakas", "mandant"),
    *("(?:kranken|sozial|renten)?versichert", "insured", "insuree", "policyholder", "beneficiary", "assure"),
    *("assicurato", "assistito", "asegurado", "afiliado", "segurado", "verzekerde", "adherent", "beneficiaire"),
    *("user", "benutzer", "nutzer", "utilisateur", "usager", "usuario", "utente", "gebruiker", "bruker", "bruger"),
    *("member", "mitglied", "membre", "miembro", "socio", "medlem", "jasen", "subject", "subj", "subjekt"),
    *("participant", "teilnehmer", "respondent", "donor", "spender", "student", "studierende", "schueler", "schuler"),
    *("pupil", "eleve", "etudiant", "alumno", "aluno", "leerling", "citizen", "resident", "einwohner", "burger"),
    *("buerger", "account"),
)
"""Words for a person, without accents."""

_PERSON_WITH_A_NUMBER = (
    *("matrikel", "(?:kranken|sozial|renten)?versicherung", "insurance", "policy", "konto", "compte", "cuenta"),
    *("conto", "steuer", "lid", "personal", "staff", "employee", "mitarbeiter", "salarie", "empleado", "dipendente"),
    *("medewerker",),
)
"""Words that name a person only beside a word for a number, and perhaps not the one whose record it is."""

_PERSON_NUMBER = (
    *("mrn", "ssn", "nhs", "nhi", "nino", "nir", "ahv", "avs", "svnr", "kvnr", "bsn", "cpr", "cpf", "dni", "nif"),
    *("pesel", "hetu", "pid", "ppid", "personnummer", "fodselsnummer", "codicefiscale"),
)
"""Names of a person's number that say both."""

_NUMBER = (
    *("nummer", "number", "numero", "numer", "num", "nr", "no", "n", "nro", "id", "ids", "uid", "uuid", "guid"),
    *("key", "code", "kod", "cod", "codigo", "codice", "kennung", "kennzeichen", "schluessel", "schlussel"),
    *("identifier", "identifikator", "identifiant", "identificador", "identificativo", "tunnus", "pseudonym", "hash"),
)
_FILLERS = frozenset(
    (
        "de",
        "del",
        "der",
        "des",
        "di",
        "do",
        "du",
        "d",
        "la",
        "le",
        "of",
        "the",
        "van",
        "lfd",
        "intern",
        "unique",
        "anon",
    )
)
_PHRASES = {"social security": "insurance", "health insurance": "insurance", "medical record": "patient"}
_ALONE = frozenset(("id", "uid", "uuid", "guid"))
"""Names that may mean anything: taken where only private records have them, after all others."""

_ENDINGS = "(?:e?n|e?s|e|a|in|innen)?"  # Patienten-, Mitglieds-, Kunden-, pacjenta
_MAX_SIGNS = 60  # a name may be as long as a cell

_ONE_WORD = re.compile(
    f"(?P<number>{'|'.join(_NUMBER)})?"
    f"(?:(?P<person>{'|'.join(_PERSON)}){_ENDINGS}|(?P<perhaps>{'|'.join(_PERSON_WITH_A_NUMBER)}){_ENDINGS}"
    f"|(?P<both>{'|'.join(_PERSON_NUMBER)}))?"
    f"(?P<numbered>{'|'.join(_NUMBER)})?"
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
