"""What is remembered: tuning records in a SQL database, and files to carry them to another one.

Read `contract.py` first.

contract.py          the values that are remembered, and what a store promises
sql_store.py         the store in a SQL database
place.py             where a database is, its name, what its errors mean
connection.py        how to connect to a database, and its transactions
postgresql.py        what a PostgreSQL server needs besides
answer_limit.py      ends a connection whose server answers nothing
schema.py            the tables
migrations/          brings the tables of an older version to the present one
rows.py              values of the contract as rows of the tables
codec.py             values of the contract as JSON
plausible.py         whether a session of somebody else holds what a tuning can measure
buffered_store.py    a store that costs a tuning nothing if its database fails
reader.py            read-only questions of people about all records
session_lines.py     lists of sessions: filters, orders, what is shown of each
trial_search.py      a search through all trials, a bounded number of rows at a time
session_document.py  a session with its trials as one JSON document
session_progress.py  the best so far of a session over time, and how its trials ended
writer_process.py    which process writes a session, and whether it still runs
json_lines.py        the file format of an export
import_export.py     export to a file, import from a file, merge with another database
merging.py           how a session that two databases hold is merged
"""

from .buffered_store import BufferedStore, buffered
from .connection import upgrade_database
from .contract import (
    Absorbed,
    Config,
    Dump,
    Filter,
    Outcome,
    Problem,
    Record,
    Setting,
    State,
    Store,
    StoredSession,
    StoredTrial,
    Summary,
)
from .import_export import export_file, import_file, merge_database
from .json_lines import read_lines, write_lines
from .place import default_path, why_no_default
from .sql_store import SqlStore, open_store

__all__ = [
    "Absorbed",
    "BufferedStore",
    "Config",
    "Dump",
    "Filter",
    "Outcome",
    "Problem",
    "Record",
    "Setting",
    "SqlStore",
    "State",
    "Store",
    "StoredSession",
    "StoredTrial",
    "Summary",
    "buffered",
    "default_path",
    "export_file",
    "import_file",
    "merge_database",
    "open_store",
    "read_lines",
    "upgrade_database",
    "why_no_default",
    "write_lines",
]
