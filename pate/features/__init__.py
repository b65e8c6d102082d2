"""Fixed feature maps: nothing in them is learned from data, so they cost no privacy."""
