"""Errors of files and folders, each told in one line."""


class DatasetError(ValueError):
    """A stored file or folder is unfinished, torn or altered."""


class FolderLockedError(RuntimeError):
    """Another process is writing into the same folder."""


def one_line(said: object) -> str:
    """What an error says, or a file holds, without its line breaks; control characters are escaped."""
    text = " ".join(str(said).split())
    return "".join(own if own.isprintable() else ascii(own)[1:-1] for own in text)


def named(field: str) -> str:
    """Return the name that a file gives a field, short enough for a message."""
    return one_line(field)[:40]
