"""Where a database is: a path or a URL, its name without passwords, and what its errors mean.

The place of a database is a SQLAlchemy URL (`postgresql://...`, `sqlite:///relative.db`, `sqlite://` for a database in
memory) or a plain path, which means SQLite in that file. Without a place it is `records.db` in the user's data
directory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, unquote_plus

import platformdirs
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from ..errors import StoreError, passwords_in, without_passwords


@dataclass(frozen=True)
class Place:
    """A database, for messages.

    Attributes:
        name: Its name, which holds no password.
        secrets: What no message may hold.
        file: SQLite's file; None for another database or one in memory.
        server: Whether a server keeps it, which other machines may use, too.
    """

    name: str
    secrets: tuple[str, ...] = ()
    file: Path | None = None
    server: bool = False

    def __str__(self) -> str:
        return self.name

    def reason(self, text: str) -> str:
        """The first line of a driver's message without secrets, with advice if there is any for it."""
        reason = without_passwords(_reason(text))
        for secret in self.secrets:
            reason = reason.replace(secret, "***")
        return reason

    @property
    def identity(self) -> tuple[int, int] | None:
        """What tells the file from another one of the same name; None if there is no file."""
        if self.file is None:
            return None
        try:
            status = self.file.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


def default_path() -> Path:
    """The database that is used if none is named; a relative path if there is no home directory."""
    try:
        return Path(platformdirs.user_data_dir("stormdrop", appauthor=False)) / "records.db"
    except RuntimeError:  # the system does not know this user
        return Path("~/records.db")


def why_no_default() -> str | None:
    """Why the default database cannot keep records, as in a read-only home directory; None if it can."""
    path = default_path()
    if not path.is_absolute():
        return "there is no home directory"
    try:
        check_file(path, create=True, make_directory=True)
    except StoreError as error:
        return str(error)
    return None


def url_of(place: str | Path | None) -> URL:
    """The URL of a path, a URL or the default database. Raises `StoreError` for what is neither."""
    if place is None:
        return URL.create("sqlite", database=str(default_path()))
    text = str(place)
    if not text.strip() or "\0" in text:
        raise StoreError("the database has no name; give a path or a URL such as sqlite:///records.db")
    if "://" not in text:
        return URL.create("sqlite", database=str(Path(text).expanduser()))
    try:
        return make_url(text)
    except (ArgumentError, ValueError) as error:
        kind = text.partition("://")[0]  # what follows may hold a password
        raise StoreError(f"'{kind}://...' is no database URL; one looks like sqlite:///records.db") from error


def place_of(url: URL, given: str) -> Place:
    """A database for messages, from its URL and from how the user has written it."""
    if is_file(url) and url.database:
        return Place(url.database, file=Path(url.database))
    # A driver may repeat a password as it was given, as it was meant, and in parts.
    written = [part for secret in passwords_in(given) for part in (secret, *secret.split("@"))]
    forms = {form for secret in written for form in (secret, unquote_plus(secret), unquote(secret)) if form}
    name = without_passwords(url.render_as_string(hide_password=True))
    return Place(name, tuple(sorted(forms, key=len, reverse=True)), server=not is_sqlite(url))


def name_of(place: str | Path | None) -> str:
    """The name of a database that tells it from all others: the absolute path of a file, or a URL without a password.

    Args:
        place: A path or a URL; None for the default database.

    Raises:
        StoreError: It is neither.
    """
    named = place_of(url_of(place), "" if place is None else str(place))
    return named.name if named.file is None else str(named.file.absolute())


def is_sqlite(url: URL) -> bool:
    """Whether a URL names a database of SQLite."""
    return url.get_backend_name() == "sqlite"


def is_file(url: URL) -> bool:
    """Whether the database is SQLite in a plain file."""
    return is_sqlite(url) and url.database not in (None, "", ":memory:") and "uri" not in url.query


def check_file(path: Path, *, create: bool, make_directory: bool) -> None:
    """Raises `StoreError` with the reason if SQLite would only say "unable to open database file"."""
    try:
        if make_directory and create:
            path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise StoreError(f"{path} is a directory; give the path of a database file in it")
        if not path.parent.is_dir():
            raise StoreError(f"{path} cannot be opened: there is no directory {path.parent}; create it first")
        if not create and not path.exists():
            raise StoreError(f"{path} does not exist; give the path of a stormdrop database")
        used_paths = [path, path.parent] if path.exists() else [path.parent]  # the log lies beside the file
        for used_path in used_paths:
            if not os.access(used_path, os.R_OK | os.W_OK):
                raise StoreError(
                    f"{path} cannot be opened: {used_path} is not readable and writable; give another --db"
                )
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror or error}") from error


def _reason(text: str) -> str:
    """The first line of a driver's message, with advice if there is any for it."""
    line = text.strip().splitlines()[0] if text.strip() else "the database reports an error without a message"
    for symptom, advice in _ADVICE.items():
        if symptom in line:
            return f"{line} ({advice})"
    return line


_ADVICE = {
    "file is not a database": "it is not SQLite's: give the path of a new or a stormdrop database",
    "database is locked": "another process has been writing for a long time; try again when it has finished",
    "disk is full": "free some space, or give another --db",
    "disk I/O error": "the disk or its quota fails; give another --db",
    "readonly database": "the file or its directory is not writable; give another --db",
    "unable to open database file": "it cannot be read or written; give another --db",
    "disk image is malformed": "the file is damaged; give another --db",
    "lock timeout": "locked: another process has held these records for a long time; try again when it has finished",
    "deadlock detected": "two processes have waited for each other; try again",
    "FATAL:  database": "create it first, as with createdb",
    "too many clients": "its max_connections is too low for so many processes",
}
