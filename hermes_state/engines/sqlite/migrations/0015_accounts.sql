-- Owners of accounts: what is sent for one states the epoch of whoever serves it.

CREATE TABLE accounts (
  account TEXT PRIMARY KEY,
  epoch   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Answers as they grow, for a gateway that has several nodes; here nobody writes any.
CREATE TABLE previews (
  turn_id  INTEGER PRIMARY KEY,
  text     TEXT NOT NULL,
  shown_at INTEGER NOT NULL
) STRICT;
