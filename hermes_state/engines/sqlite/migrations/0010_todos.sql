-- The agent's to-do list of a conversation, with the state of each item.

CREATE TABLE todos (
  lineage_id INTEGER NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  id INTEGER NOT NULL,                                                 -- number in the list, which the model uses to name the item
  text TEXT NOT NULL CHECK (text <> ''),
  state TEXT NOT NULL CHECK (state IN ('pending','in_progress','done','cancelled')),
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (lineage_id, id)
) STRICT, WITHOUT ROWID;
