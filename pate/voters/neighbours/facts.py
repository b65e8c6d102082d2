"""What is published about neighbours: how many cells there were, and how many public examples got a label."""

from __future__ import annotations

from collections.abc import Sequence

from pate.data.public import PublicData
from pate.mechanisms.cell_costs import Round
from pate.report.schema import VotersFacts
from pate.voters.neighbours.settings import NeighboursConfig


def neighbours_facts(
    config: NeighboursConfig, rounds: Sequence[Round], public: PublicData, labelled: int
) -> VotersFacts:
    """The facts of records that vote near themselves; `labelled` public examples got a label from their cell."""
    votes, cells = config.neighbours.votes_per_record, [one.cells for one in rounds]
    total, title = sum(cells), rounds[0].mechanism.title
    each = "1 vote" if votes == 1 else f"{votes} votes"
    nearest = "in the one" if votes == 1 else f"in the {votes}"
    counted = "1 round" if len(cells) == 1 else f"{len(cells)} rounds"
    in_turn = ", then ".join(f"{n:,}" for n in cells)
    return VotersFacts(
        kind=config.voters,
        method=f"neighbours, {rounds[0].mechanism.name}, {total} cells",
        settings={
            "votes_per_record": votes,
            "cells": cells,
            "features": [step.name for step in config.neighbours.features],
        },
        labelled=labelled,
        figures=(
            ("cells", f"{in_turn}; {each} per {public.unit}"),
            ("labelled", f"{labelled:,} of {len(public.X_public):,} public examples"),
        ),
        counts=(("public examples with a label", f"{labelled:,}"), ("cells of public examples", f"{total:,}")),
        steps=(
            ("Private records", "their number is not published"),
            (f"{each} each", "near public examples, in different cells" if votes > 1 else "near public examples"),
            (f"{total:,} cells", f"votes and noise: {title}"),
            (f"{labelled:,} labels", "of public examples, from what was released of their cells"),
        ),
        summary=(
            f"Public examples were grouped into {' and then '.join(f'{n:,}' for n in cells)} cells, and every private "
            f"record voted, with its own label, {nearest} nearest to it. Noise hid the exact votes; what was released "
            f"of them gave {labelled:,} public examples their labels. The student learned from those and from public "
            "examples alone."
        ),
        sensitivity=(
            f"Neighbours. Public examples are grouped into cells; each record, or all records of one id, has {each} in "
            "each round, in different cells, those nearest to it. Added or removed it changes that many counts by 1, "
            "changed twice as many, whatever the number of cells."
        ),
        limits=(
            f"Fixed before the first: {counted} of votes, with {', '.join(map(str, cells))} cells. ε is the cost of "
            "all of them, however many cells.",
            "A round is stored whole, with its charge, before anything of it is shown; later it is read from there.",
        ),
        labels=f"labels.npz: labels of {labelled:,} public examples, from noisy votes in {in_turn} cells",
    )
