"""What is remembered: tuning records in a SQL database, and files to carry them to another one.

Read `contract.py` first.

contract.py        the values that are remembered, and what a store promises
buffered_store.py  a store that costs a tuning nothing if its database fails
sql/               the store in a SQL database
place.py           where a database is, its name, what its errors mean
codec.py           values of the contract as JSON
plausible.py       whether a session of somebody else holds what a tuning can measure
reading/           read-only questions of people about all records
json_lines.py      the file format of an export
import_export.py   export to a file, import from a file, merge with another database
"""

from .buffered_store import BufferedStore, buffered
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
from .sql.connection import upgrade_database
from .sql.sql_store import SqlStore, open_store

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
