"""A run on a cluster somewhere else: handing it in, following it, fetching what may leave, checking the cluster."""
