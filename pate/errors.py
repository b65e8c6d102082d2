"""What a user can cause. Every message is one line that names the key or file, the value, and what would do."""


class PateError(Exception):
    """A mistake the user can mend; the command line prints it as one line and ends with status 2."""

    def __str__(self) -> str:
        """One line, whatever of other people's errors it quotes."""
        return " ".join(super().__str__().split())


class ConfigError(PateError):
    """The configuration is not one that can run."""


class NotTrusted(ConfigError):
    """A file names something that would have to be imported, and nobody said that it may be."""


class DataError(PateError):
    """A data file is missing, or holds what cannot be used."""


class RunError(PateError):
    """The run directory, or the cluster behind the run, is not in a state to go on from."""


class RunBegun(RunError):
    """There is a run already, and nobody said that it is to go on."""


class BudgetExceeded(PateError):
    """The charge does not fit into the limits that were fixed before the first query."""


def first_line(error: Exception) -> str:
    """What an error of somebody else says, fit for one line of ours."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
