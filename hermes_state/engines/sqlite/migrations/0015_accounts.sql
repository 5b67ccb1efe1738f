-- Owners of accounts. Every send checks the epoch of the account's owner.

CREATE TABLE accounts (
  account TEXT PRIMARY KEY,
  epoch   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Partial answers of a gateway with several nodes; unused with SQLite.
CREATE TABLE previews (
  turn_id  INTEGER PRIMARY KEY,
  text     TEXT NOT NULL,
  shown_at INTEGER NOT NULL
) STRICT;
