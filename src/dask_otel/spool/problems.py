"""What makes a file unusable as a spool, as a person is told it; and disk trouble."""

from __future__ import annotations

import errno
import sqlite3
from typing import Final

_PRIMARY: Final = 0xFF
#: SQLite's result codes that have a name of the system's; all others are input/output errors.
_ERRNO: Final = {8: errno.EROFS, 13: errno.ENOSPC, 5: errno.EBUSY, 6: errno.EBUSY, 3: errno.EACCES}


class SpoolError(Exception):
    """A file can't be the spool; the text says which, why, and what to do."""


def as_os_error(error: sqlite3.Error) -> OSError:
    """Return what SQLite says as trouble with the disk."""
    code = getattr(error, "sqlite_errorcode", None)  # Python 3.11 has it
    number = errno.EIO
    if code is not None:
        number = _ERRNO.get(code & _PRIMARY, errno.EIO)
    elif "full" in str(error):
        number = errno.ENOSPC
    elif "readonly" in str(error):
        number = errno.EROFS
    return OSError(number, f"the spool can't be written: {error}")
