"""One process at a time may collect into a folder."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from otmd.harness.errors import FolderLockedError


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock while the block runs.

    The lock is the operating system's, on the file ``collect.lock``: it ends with the process
    that holds it, however that ends, so a lock file that a killed process left stops nobody.

    Raises
    ------
    FolderLockedError
        If another process holds it; the message says which.
    """
    path = folder / "collect.lock"
    with path.open("a+", encoding="utf-8") as stream:
        if not _try_lock(stream.fileno()):
            stream.seek(0)
            holder = stream.read().strip() or "a process that left no name"
            raise FolderLockedError(
                f"another process is collecting into {folder} ({holder}). Wait for it or stop it; "
                f"its lock ends with it, and {path.name} may be deleted only once no process "
                "is collecting here"
            )
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        stream.flush()
        yield


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        # Locked bytes cannot be read by others here, so a byte far behind the text is locked.
        position = os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        os.lseek(descriptor, -position, os.SEEK_CUR)
        return True
else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
