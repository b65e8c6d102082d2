"""Figure 2 of Abadi et al. 2016: ε over the epochs, by the moments accountant and by strong composition.

    python benchmarks/moments_accountant.py [--out moments.png]

q = 0.01, σ = 4, δ = 1e-5. Beside the paper's two curves stand what the same steps cost by today's accountants.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pate.accounting.calculators import moments_epsilon, strong_composition_epsilon
from pate.baselines._sgd_accounting import epsilon_of

RATE, SIGMA, DELTA = 0.01, 4.0, 1e-5
EPOCHS = (1, 5, 10, 20, 50, 100, 150, 200, 250, 300, 350, 400)
CURVES = {
    "strong composition": lambda steps: strong_composition_epsilon(RATE, SIGMA, steps, DELTA),
    "moments, the paper's": lambda steps: moments_epsilon(RATE, SIGMA, steps, DELTA),
    "RDP": lambda steps: epsilon_of([(SIGMA, RATE, steps)], DELTA, "rdp"),
    "PLD": lambda steps: epsilon_of([(SIGMA, RATE, steps)], DELTA, "pld"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("moments.png"))
    out = parser.parse_args().out
    table = {name: [curve(round(epochs / RATE)) for epochs in EPOCHS] for name, curve in CURVES.items()}
    print(f"{'epochs':>8}" + "".join(f"{name:>22}" for name in table))
    for i, epochs in enumerate(EPOCHS):
        print(f"{epochs:>8}" + "".join(f"{curve[i]:>22.3f}" for curve in table.values()))

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for (name, curve), style in zip(table.items(), ("--", "-", "-.", ":"), strict=True):
        axes.plot(EPOCHS, curve, style, label=name)
    axes.set(xlabel="epochs", ylabel=f"ε at δ = {DELTA:g}", title=f"q = {RATE:g}, σ = {SIGMA:g}", ylim=(0, None))
    axes.legend()
    figure.savefig(out, dpi=150)
    print(f"written: {out}")


if __name__ == "__main__":
    main()
