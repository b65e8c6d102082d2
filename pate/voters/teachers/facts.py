"""What is published about teachers and stored votes: how many, of which families, and what was asked of them."""

from __future__ import annotations

from pate.config.settings import QueryConfig
from pate.data.public import PublicData
from pate.mechanisms import Mechanism
from pate.report.schema import Queries, TeacherKind, VotersFacts
from pate.teachers import assign_recipes, recipes
from pate.voters.teachers.settings import TeachersConfig


def query_facts(
    config: QueryConfig, mechanism: Mechanism, public: PublicData, queries: Queries, families: tuple[TeacherKind, ...]
) -> VotersFacts:
    """The facts of voters that answer query by query; without `families`, their votes were counted elsewhere."""
    n, asked, answered, title = config.n_teachers, queries.asked, queries.answered, mechanism.title
    unanswered = asked - answered
    declined = f"; {unanswered:,} got no answer" if unanswered else ""
    answers = f"released; {unanswered:,} unanswered (⊥)" if unanswered else "released; every query was answered"
    trained = f"{len(families)} families, one part each" if len(families) > 1 else "one family, one part each"
    how = "each trained on its own part of the private records"
    sensitivity = (
        f"PATE. Private records are split into {n} disjoint parts by a keyed hash of their identity; a teacher is "
        "trained on each part. A record touches one teacher, so it moves at most one vote per query."
    )
    if mechanism.split(n).rate is not None:
        how = "each trained on a random subset of the private records"
        sensitivity = (
            f"PATE. {n} teachers are trained on random subsets of the private records; a record is kept in at most a "
            "fixed number of them, which the mechanism's noise is made for."
        )
    elif not families:
        how, trained = "whose votes were counted elsewhere", "counted elsewhere, votes stored"
        sensitivity = (
            f"PATE. Votes of {n} teachers were counted elsewhere and read from a file. The guarantee holds if a record "
            "could move at most one vote per query there."
        )
    rounds = " and ".join(map(str, queries.rounds))
    in_rounds = f" They are asked in rounds of {rounds}, all with one partition of the records." if rounds else ""
    return VotersFacts(
        kind=config.voters,
        method=f"PATE, {mechanism.name}, {n} teachers",
        n_teachers=n,
        teachers=families,
        labelled=answered,
        figures=(("teachers", f"{n}"), ("queries", f"{asked} asked, {answered} answered")),
        counts=((f"labels released, of {asked:,} asked", f"{answered:,}"), ("teachers", f"{n:,}")),
        steps=(
            ("Private records", "their number is not published; each is in one part"),
            (f"{n:,} teachers", trained),
            (f"{asked:,} queries", f"votes and noise: {title}"),
            (f"{answered:,} labels", answers),
        ),
        summary=(
            f"{n} teachers, {how}, voted on {asked} public examples. Noise hid the exact votes, and {answered} labels "
            f"were released{declined}. The student learned from those labels and from public examples alone."
        ),
        sensitivity=sensitivity,
        limits=(
            f"Fixed before the first query: at most {queries.max_queries} queries, at most {queries.max_answers} of "
            f"them answered. Used: {asked} asked, {answered} answered. ε is the cost of the limits, whatever was used. "
            f"A batch that does not fit is refused.{in_rounds}",
            "Asking again about the same public example returns the stored answer and costs nothing.",
        ),
        labels=f"labels.npz: labels of public examples, {answered} of {asked} asked",
    )


def teacher_kinds(config: TeachersConfig) -> tuple[TeacherKind, ...]:
    """How many teachers each family has, in each round, from the configuration alone."""
    if config.teacher_rounds:
        found: list[TeacherKind] = []
        for number, one in enumerate(config.teacher_rounds, start=1):
            own = config.of_round(number).model_copy(update={"teacher_rounds": ()})
            first = ("student",) if one.features == "student" else ()
            found += (kind.model_copy(update={"features": first + kind.features}) for kind in teacher_kinds(own))
        return tuple(found)
    kinds = recipes(config.teachers)
    teachers = [0] * len(config.teachers)
    for chosen in assign_recipes(kinds, config.n_teachers):
        teachers[int(kinds[chosen].key.rpartition(".")[2])] += 1
    return tuple(
        TeacherKind(
            name=family.name,
            params=dict(family.params) | {name: list(values) for name, values in family.grid.items()},
            features=tuple(step.name for step in family.features),
            teachers=number,
        )
        for family, number in zip(config.teachers, teachers, strict=True)
    )
