"""Private learners that need no teachers, to compare PATE with."""
