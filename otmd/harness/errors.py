"""What can go wrong outside the caller's arguments: the network, the disk, another process."""


class HarnessError(RuntimeError):
    """Base of the errors below; wrong arguments raise ``ValueError`` instead."""


class FetchError(HarnessError):
    """A package could not be downloaded, or what came is not what was asked for."""


class DatasetError(HarnessError):
    """A stored data set is unfinished, torn or altered."""


class FolderLockedError(HarnessError):
    """Another process is writing into the same folder."""
