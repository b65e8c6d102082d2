"""Who votes: kinds of voters, each a folder with one class that keeps the contract of `pate.voters`."""
