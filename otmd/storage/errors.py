"""What is wrong with a file, in one line."""


class TornFileError(ValueError):
    """A file is cut short, or not what its name says."""


def one_line(said: object) -> str:
    """What an error says, or a file holds, without its line breaks."""
    return " ".join(str(said).split())


def named(field: str) -> str:
    """The name that a file gives a field, for a message of one line."""
    return one_line(field)[:40]
