"""The table of a database that says which parts it has."""

from __future__ import annotations

from headrace.sinks.sql.transactions import Transaction

COMMITS = "headrace_commits"


def make_commits(transaction: Transaction) -> None:
    """Make the table, if there is none."""
    if transaction.columns(COMMITS) is None:
        transaction.execute(
            f"CREATE TABLE IF NOT EXISTS {COMMITS} (run VARCHAR(64) NOT NULL, part VARCHAR(200) NOT NULL, "
            "table_name VARCHAR(200) NOT NULL, rows BIGINT NOT NULL, PRIMARY KEY (run, part))"
        )


def noted_parts(transaction: Transaction, run: str) -> set[str]:
    """Return the names of the parts of a run that were noted."""
    if transaction.columns(COMMITS) is None:
        return set()
    return {str(part) for (part,) in transaction.rows(f"SELECT part FROM {COMMITS} WHERE run = '{run}'")}


def forget(transaction: Transaction, run: str) -> None:
    """Remove what is noted of a run."""
    if transaction.columns(COMMITS) is not None:
        transaction.execute(f"DELETE FROM {COMMITS} WHERE run = '{run}'")


def note(transaction: Transaction, run: str, part: str, table: str, rows: int) -> bool:
    """Note a part, in the transaction that inserts its rows, before it does; False if another one has.

    It waits for a transaction that notes the same part, such as one of a driver that was killed while it committed.
    """
    name = table.replace("'", "''")
    noted = transaction.rows(
        f"INSERT INTO {COMMITS} (run, part, table_name, rows) VALUES ('{run}', '{part}', '{name}', {rows}) "
        "ON CONFLICT DO NOTHING RETURNING rows"
    )
    return bool(noted)
