"""Before any training: what a mechanism costs and can answer, by public parameters or a votes file."""
