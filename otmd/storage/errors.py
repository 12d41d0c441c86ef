"""What is wrong with a file, in one line."""


class TornFileError(ValueError):
    """A file is cut short, or not what its name says."""


def one_line(said: object) -> str:
    """What an error says, or a file holds, without its line breaks; control characters are escaped."""
    text = " ".join(str(said).split())
    return "".join(own if own.isprintable() else ascii(own)[1:-1] for own in text)


def named(field: str) -> str:
    """The name that a file gives a field, for a message of one line."""
    return one_line(field)[:40]
