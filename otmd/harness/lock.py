"""One process at a time may write into a folder."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from otmd.harness.errors import FolderLockedError
from otmd.harness.files import advice_on_failure, make_folder

FILE = "otmd.lock"


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock while the block runs; the folder is created where it is missing.

    The lock is the operating system's, on the file ``otmd.lock``: it ends with the process that
    holds it, however that ends, so a lock file that a killed process left stops nobody.

    Raises
    ------
    FolderLockedError
        If another process holds it; the message says which.
    """
    path = make_folder(folder) / FILE
    with advice_on_failure(path):
        # Unbuffered, since a buffer that a full disk refused is written again when it is closed.
        stream = path.open("a+b", buffering=0)
    with stream:
        with advice_on_failure(path):
            held = _try_lock(stream.fileno())
            if held:
                stream.truncate(0)
                stream.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        if not held:
            stream.seek(0)
            holder = (
                stream.read().decode("utf-8", "replace").strip() or "a process that left no name"
            )
            raise FolderLockedError(
                f"another process is writing into {folder} ({holder}). Wait for it, or stop it and "
                f"run the same again, which goes on from what it finished; its lock ends with it, "
                f"and {path.name} may be deleted only once no process is writing here"
            )
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
