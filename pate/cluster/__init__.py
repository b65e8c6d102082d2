"""Ray: starting, joining and leaving it; runs as jobs of a cluster elsewhere; checking a cluster."""
