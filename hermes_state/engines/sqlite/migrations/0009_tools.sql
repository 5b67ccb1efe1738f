-- Tools: the offer of a session, calls that wait for approval, and lasting grants.
CREATE TABLE tool_offers (                                             -- names of the tools a session's prompts list, as JSON
  session_id INTEGER PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE,
  names TEXT NOT NULL
) STRICT;

CREATE TABLE approvals (                                               -- one question about one call
  id INTEGER PRIMARY KEY AUTOINCREMENT,                                -- never reused: buttons refer to it
  turn_id INTEGER NOT NULL REFERENCES turns(id) ON DELETE CASCADE,
  call_message_id INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE, tool_call_id TEXT NOT NULL,
  tool_name TEXT NOT NULL, shape TEXT NOT NULL,                        -- shape: calls that a lasting grant would allow
  state TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending','approved','denied','expired')),
  asked_at INTEGER NOT NULL, expires_at INTEGER NOT NULL,
  decided_by TEXT, decided_at INTEGER, reason TEXT,
  CHECK ((decided_at IS NULL) = (state = 'pending')),
  UNIQUE (call_message_id, tool_call_id)
) STRICT;
CREATE INDEX approvals_pending ON approvals(expires_at) WHERE state = 'pending';
CREATE INDEX approvals_turn ON approvals(turn_id);

CREATE TABLE tool_grants (                                             -- calls of this shape no longer need a question
  id INTEGER PRIMARY KEY,
  chat_id INTEGER NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
  lineage_id INTEGER NOT NULL DEFAULT 0,                               -- 0: in every conversation of the chat
  tool_name TEXT NOT NULL, shape TEXT NOT NULL, granted_by TEXT NOT NULL, created_at INTEGER NOT NULL,
  UNIQUE (chat_id, lineage_id, tool_name, shape)
) STRICT;
