"""Before any training: what a mechanism costs and can answer, from public parameters or a votes file."""
