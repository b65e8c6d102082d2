"""A ledger without a run: open it, draw noise and store label and charge together, go over the limit, verify.

python examples/ledger_by_hand.py
"""

import tempfile
from pathlib import Path

import numpy as np

from pate import BudgetExceeded, Charge, GNMax, Ledger, Limits


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "ledger.db"
        mechanism = GNMax(sigma=5)
        limits = Limits(max_queries=3, max_answers=3, mechanism=repr(mechanism))  # fixed before the first query
        ledger = Ledger.open(file, limits)  # its key is in ledger.db.key: keep it apart, it can write any history

        queries = [b"first", b"second"]
        votes = np.array([[40, 8, 2], [3, 45, 2]])
        with ledger.batch(len(queries)):  # refused here, before noise is drawn, if it does not fit
            labels = mechanism.release(votes)
            ledger.charge_and_store(queries, labels.tolist(), Charge(asked=2, answered=2))
        print("released:", labels.tolist(), "after it was stored")

        print("asked again, free:", ledger.stored([b"first"])[b"first"] == labels[0])
        print("room for:", ledger.room(), "more")
        try:
            with ledger.batch(2):
                pass
        except BudgetExceeded as refusal:
            print("refused:", refusal)
        ledger.close()
        Ledger.open(file, limits).close()  # opening checks every link
        print("verified: nothing was changed or removed")


if __name__ == "__main__":
    main()
