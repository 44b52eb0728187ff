"""What we remember: tuning records in a SQL database. Read `contract.py` first.

contract.py  the values and what a store promises      location.py  places, connections, errors
sql.py       the store                                 schema.py    the tables
merging.py   taking in another database                rows.py      values to rows and back
lines.py     JSON lines                                codec.py     values to JSON and back
files.py     export, import, merge by path             writer.py    who writes a session
"""

from .contract import (
    Absorbed,
    Config,
    Dump,
    Filter,
    Outcome,
    Problem,
    Record,
    Session,
    Setting,
    State,
    Store,
    StoredTrial,
    Summary,
)
from .exchange import export_file, import_file, merge_database
from .json_lines import read_lines, write_lines
from .location import default_path
from .sql import SqlStore, open_store

__all__ = [
    "Absorbed",
    "Config",
    "Dump",
    "Filter",
    "Outcome",
    "Problem",
    "Record",
    "Session",
    "Setting",
    "SqlStore",
    "State",
    "Store",
    "StoredTrial",
    "Summary",
    "default_path",
    "export_file",
    "import_file",
    "merge_database",
    "open_store",
    "read_lines",
    "write_lines",
]
