"""The embedded run from Python: 80 teachers on a local Ray, a private vote, a student. Less than a minute.

python examples/run_digits.py OUT [key=value …]
"""

import sys

import pate


def main() -> None:
    out, *overrides = sys.argv[1:] or ["runs/from-python"]
    config = pate.load_config(overrides=overrides)  # the embedded one; give a path for yours
    outcome = pate.run(config, out)
    report = outcome.report
    print(f"student: {report.student.accuracy:.1%} right, ε = {report.privacy.epsilon:.2f} to publish")
    print(f"student folder: {outcome.path}/student")


if __name__ == "__main__":
    main()
