"""What is remembered: tuning records in a SQL database, and files to carry them to another one.

Read `contract.py` first.

contract.py        the values that are remembered, and what a store promises
sql_store.py       the store in a SQL database
connection.py      where a database is, how to connect to it, what its errors mean
schema.py          the tables
rows.py            values of the contract as rows of the tables
codec.py           values of the contract as JSON
plausible.py       whether a session of somebody else holds what a tuning can measure
buffered_store.py  a store that costs a tuning nothing if its database fails
writer_process.py  which process writes a session, and whether it still runs
json_lines.py      the file format of an export
import_export.py   export to a file, import from a file, merge with another database
merging.py         how a session that two databases hold is merged
"""

from .buffered_store import BufferedStore, buffered
from .connection import default_path, why_no_default
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
    "why_no_default",
    "write_lines",
]
