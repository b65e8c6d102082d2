"""`python -m pate` is `pate`."""

from pate.cli import main

main()
