"""Everything a config names, built and tried on public data before anything is charged."""
