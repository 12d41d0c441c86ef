"""Errors of files and folders, each told in one line."""


class DatasetError(ValueError):
    """A stored file or folder is unfinished, torn or altered."""


class FolderLockedError(RuntimeError):
    """Another process is writing into the same folder."""


def one_line(said: object) -> str:
    """Return the text of an error, or of a field of a file, without line breaks."""
    return " ".join(str(said).split())


def named(field: str) -> str:
    """Return the name that a file gives a field, short enough for a message."""
    return one_line(field)[:40]
