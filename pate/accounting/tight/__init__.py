"""The tight worst-case bounds: code of the long proofs."""
