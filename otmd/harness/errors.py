"""What can go wrong outside of a caller's arguments, which raise ``ValueError``."""

from otmd.storage.errors import DatasetError, FolderLockedError

__all__ = ["DatasetError", "FetchError", "FolderLockedError", "HarnessError"]


class HarnessError(RuntimeError):
    """A model gave what cannot be stored; also the base of :class:`FetchError`."""


class FetchError(HarnessError):
    """A package could not be downloaded, or what came is not what was asked for."""
