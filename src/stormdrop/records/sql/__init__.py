"""The store in a SQL database.

sql_store.py       the store
connection.py      how to connect to a database, and its transactions
postgresql.py      what a PostgreSQL server needs besides
answer_limit.py    ends a connection whose server answers nothing
schema.py          the tables
migrations/        brings the tables of an older version to the present one
rows.py            values of the contract as rows of the tables
merging.py         how a session that two databases hold is merged
writer_process.py  which process writes a session, and whether it still runs
"""
