-- The first schema, for SQLite >= 3.37 (STRICT). Times are UTC milliseconds. Every connection registers the deterministic
-- fts_text(text). PRAGMA application_id marks the file as ours; the migration runner sets user_version.

CREATE TABLE meta (                                                    -- segmenter version, checksums, notes of adapters
  key TEXT PRIMARY KEY, value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE chats (
  id INTEGER PRIMARY KEY,
  platform TEXT NOT NULL, account TEXT NOT NULL, chat_ref TEXT NOT NULL, thread_ref TEXT NOT NULL DEFAULT '',
  user_ref TEXT NOT NULL DEFAULT '',                                   -- set only under sessions.groups = per_user
  kind TEXT NOT NULL CHECK (kind IN ('direct','group','channel','thread','local')),
  title TEXT, settings TEXT NOT NULL DEFAULT '{}',
  active_session_id INTEGER REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
  UNIQUE (platform, account, chat_ref, thread_ref, user_ref)
) STRICT;

CREATE TABLE sessions (
  id INTEGER PRIMARY KEY AUTOINCREMENT,                                -- never reused: lineages and notices refer to it
  key TEXT NOT NULL UNIQUE,                    -- key: public id, sortable text; people see its first 8 characters
  chat_id INTEGER NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
  parent_session_id INTEGER REFERENCES sessions(id) ON DELETE SET NULL,
  lineage_id INTEGER NOT NULL,                                         -- id of the first session of this unbroken chain
  depth INTEGER NOT NULL DEFAULT 0 CHECK (depth >= 0),
  kind TEXT NOT NULL DEFAULT 'root' CHECK (kind IN ('root','continuation','branch','subagent')),
  model TEXT, title TEXT, system_prompt TEXT, context_state TEXT,      -- context_state: JSON of the context engine
  started_at INTEGER NOT NULL, ended_at INTEGER,
  end_reason TEXT CHECK (end_reason IN ('compression','undo','reset','expired','switched','finished')),
  version INTEGER NOT NULL DEFAULT 0,                                  -- compared before a split (optimistic lock)
  next_seq INTEGER NOT NULL DEFAULT 1, next_view_seq INTEGER NOT NULL DEFAULT -1,
  message_count INTEGER NOT NULL DEFAULT 0,
  reported_prompt_tokens INTEGER,                                      -- the provider's last count, with the seq it covers
  reported_at_seq INTEGER,
  input_tokens INTEGER NOT NULL DEFAULT 0, output_tokens INTEGER NOT NULL DEFAULT 0, cache_read_tokens INTEGER NOT NULL DEFAULT 0,
  cache_write_tokens INTEGER NOT NULL DEFAULT 0, reasoning_tokens INTEGER NOT NULL DEFAULT 0,
  last_human_at INTEGER,                                               -- used by the idle expiry
  CHECK ((ended_at IS NULL) = (end_reason IS NULL)),
  CHECK ((kind = 'continuation') = (depth > 0)),
  UNIQUE (lineage_id, depth)                                           -- a session is continued at most once; the tip has the greatest depth
) STRICT;
CREATE INDEX sessions_parent ON sessions(parent_session_id) WHERE parent_session_id IS NOT NULL;
CREATE INDEX sessions_chat ON sessions(chat_id, started_at);
CREATE INDEX sessions_open ON sessions(last_human_at) WHERE ended_at IS NULL;

CREATE TABLE turns (                                                   -- the journal: a turn belongs to a lineage, so a split can happen during it
  id INTEGER PRIMARY KEY AUTOINCREMENT, chat_id INTEGER NOT NULL REFERENCES chats(id) ON DELETE CASCADE, lineage_id INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('running','waiting','finished','stopped','failed')),
  started_by TEXT NOT NULL, restarts INTEGER NOT NULL DEFAULT 0, preview_ref TEXT, error TEXT,
  started_at INTEGER NOT NULL, ended_at INTEGER,
  CHECK ((ended_at IS NULL) = (state IN ('running','waiting')))
) STRICT;
CREATE UNIQUE INDEX turns_open ON turns(chat_id) WHERE state IN ('running','waiting');   -- one chat, one turn
CREATE INDEX turns_lineage ON turns(lineage_id);

CREATE TABLE inbox (                                                   -- committed before the platform event is acknowledged
  id INTEGER PRIMARY KEY AUTOINCREMENT,                                -- never reused: dedupe keys of the outbox refer to it
  platform TEXT NOT NULL, account TEXT NOT NULL, event_ref TEXT NOT NULL,   -- event_ref starts with the bot's id
  chat_id INTEGER NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
  kind TEXT NOT NULL CHECK (kind IN ('message','command','notice')),   -- notice: edit of a message that a turn has already claimed
  mode TEXT NOT NULL DEFAULT 'queue' CHECK (mode IN ('queue','steer','alone')), -- alone: never merged with its neighbours
  sender_ref TEXT NOT NULL, sender_name TEXT NOT NULL, message_ref TEXT NOT NULL,
  payload TEXT NOT NULL,                                               -- JSON; emptied when settled
  expects_more INTEGER NOT NULL DEFAULT 0 CHECK (expects_more IN (0,1)),
  state TEXT NOT NULL DEFAULT 'new' CHECK (state IN ('new','claimed','done','dropped','withdrawn','dead')),
  turn_id INTEGER REFERENCES turns(id) ON DELETE SET NULL,
  sent_at INTEGER NOT NULL, received_at INTEGER NOT NULL, settled_at INTEGER,
  CHECK ((settled_at IS NULL) = (state IN ('new','claimed'))),
  UNIQUE (platform, account, event_ref)                                -- redelivery is a no-op
) STRICT;
CREATE INDEX inbox_open ON inbox(chat_id, id) WHERE state IN ('new','claimed');
CREATE INDEX inbox_message ON inbox(chat_id, message_ref);
CREATE INDEX inbox_turn ON inbox(turn_id) WHERE turn_id IS NOT NULL;
CREATE INDEX inbox_settled ON inbox(settled_at) WHERE settled_at IS NOT NULL;

CREATE TABLE messages (
  id INTEGER PRIMARY KEY AUTOINCREMENT,                                -- never reused: recall ids refer to it
  session_id INTEGER NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  chat_id INTEGER NOT NULL, lineage_id INTEGER NOT NULL,               -- copies that never change: searches need no join, deletes cascade exactly
  seq INTEGER NOT NULL CHECK (seq <> 0),                               -- messages: 1 and up; rows made for a view (handoff, stub, block): -1 and down
  role TEXT NOT NULL CHECK (role IN ('user','assistant','tool')),
  origin TEXT NOT NULL CHECK (origin IN ('human','assistant','tool','summary','notice','todo','system')),
  text TEXT, body TEXT,                                                -- text: as written; body: JSON of the rest (calls, documents, images), NULL if none
  sender_ref TEXT, sender_name TEXT, turn_id INTEGER REFERENCES turns(id) ON DELETE SET NULL,
  inbox_id INTEGER UNIQUE REFERENCES inbox(id) ON DELETE SET NULL,     -- a restart cannot insert a human row twice
  tool_call_id TEXT, tool_name TEXT,
  replaces_id INTEGER REFERENCES messages(id) ON DELETE SET NULL,      -- set on a stub or rewritten row
  indexed INTEGER NOT NULL DEFAULT 1 CHECK (indexed IN (0,1)),         -- 0: rows made for a view only
  created_at INTEGER NOT NULL,
  CHECK ((role = 'tool') = (tool_call_id IS NOT NULL)),
  UNIQUE (session_id, seq)
) STRICT;
CREATE INDEX messages_replaces ON messages(replaces_id) WHERE replaces_id IS NOT NULL;
CREATE INDEX messages_turn ON messages(turn_id) WHERE turn_id IS NOT NULL;
CREATE INDEX messages_lineage ON messages(lineage_id, id);

CREATE TABLE platform_messages (                                       -- a platform's message id -> our row and part
  chat_id INTEGER NOT NULL REFERENCES chats(id) ON DELETE CASCADE, ref TEXT NOT NULL,
  message_id INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE, part INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (chat_id, ref)
) STRICT, WITHOUT ROWID;
CREATE INDEX platform_messages_row ON platform_messages(message_id);

CREATE TABLE session_context (                                         -- view at the start of a continuation: references, no copies
  session_id INTEGER NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  pos INTEGER NOT NULL, message_id INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
  PRIMARY KEY (session_id, pos)
) STRICT, WITHOUT ROWID;
CREATE INDEX session_context_message ON session_context(message_id);

CREATE TABLE view_edits (                                              -- undo, retry, edited message, persisted output, pruning
  session_id INTEGER NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  message_id INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
  replacement_id INTEGER REFERENCES messages(id) ON DELETE CASCADE,    -- NULL: hidden from the model
  reason TEXT NOT NULL, created_at INTEGER NOT NULL,
  PRIMARY KEY (session_id, message_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX view_edits_message ON view_edits(message_id);
CREATE INDEX view_edits_replacement ON view_edits(replacement_id) WHERE replacement_id IS NOT NULL;

CREATE TABLE tool_runs (                                               -- the started row is committed before the tool begins
  id INTEGER PRIMARY KEY, turn_id INTEGER NOT NULL REFERENCES turns(id) ON DELETE CASCADE,
  call_message_id INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE, tool_call_id TEXT NOT NULL, tool_name TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('started','done','failed','unknown','stopped')),
  started_at INTEGER NOT NULL, ended_at INTEGER,
  CHECK ((ended_at IS NULL) = (state = 'started')),
  UNIQUE (call_message_id, tool_call_id)
) STRICT;
CREATE INDEX tool_runs_turn ON tool_runs(turn_id);

CREATE TABLE model_calls (                                             -- the ledger: every call, including failed calls
  id INTEGER PRIMARY KEY, lineage_id INTEGER, session_id INTEGER REFERENCES sessions(id) ON DELETE SET NULL,
  turn_id INTEGER REFERENCES turns(id) ON DELETE SET NULL,
  purpose TEXT NOT NULL CHECK (purpose IN ('turn','summary','flush','title','transcription','tool')),
  route TEXT NOT NULL, model TEXT NOT NULL, outcome TEXT NOT NULL, estimated INTEGER NOT NULL DEFAULT 0 CHECK (estimated IN (0,1)),
  input_tokens INTEGER, output_tokens INTEGER, cache_read_tokens INTEGER, cache_write_tokens INTEGER, reasoning_tokens INTEGER,
  cost_microusd INTEGER, took_ms INTEGER, created_at INTEGER NOT NULL   -- cost NULL: price unknown, never zero
) STRICT;
CREATE INDEX model_calls_time ON model_calls(created_at);
CREATE INDEX model_calls_lineage ON model_calls(lineage_id, created_at);
CREATE INDEX model_calls_session ON model_calls(session_id) WHERE session_id IS NOT NULL;
CREATE INDEX model_calls_turn ON model_calls(turn_id) WHERE turn_id IS NOT NULL;

CREATE TABLE compressions (                                            -- attempts, for admins and for the verdict
  id INTEGER PRIMARY KEY, parent_id INTEGER NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  child_id INTEGER UNIQUE REFERENCES sessions(id) ON DELETE SET NULL, undone_by INTEGER REFERENCES sessions(id) ON DELETE SET NULL,
  layer TEXT NOT NULL CHECK (layer IN ('hygiene','preflight','in_loop','overflow','manual','background')), focus TEXT,
  outcome TEXT NOT NULL CHECK (outcome IN ('compressed','not_needed','aborted')), reason TEXT,
  summary_kind TEXT CHECK (summary_kind IN ('model','deterministic')), model TEXT, verdict TEXT,
  tokens_before INTEGER, tokens_after INTEGER, messages_before INTEGER, messages_after INTEGER,
  took_ms INTEGER, created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX compressions_parent ON compressions(parent_id);

CREATE TABLE outbox (                                                  -- written in the transaction that finishes the turn
  id INTEGER PRIMARY KEY, chat_id INTEGER NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
  turn_id INTEGER REFERENCES turns(id) ON DELETE SET NULL, message_id INTEGER REFERENCES messages(id) ON DELETE SET NULL,
  dedupe_key TEXT NOT NULL, part INTEGER NOT NULL DEFAULT 0,
  kind TEXT NOT NULL CHECK (kind IN ('final','error','status')),
  payload TEXT NOT NULL,                                               -- JSON: Markdown until rendered, then the bytes of one part; emptied when sent
  rendered INTEGER NOT NULL DEFAULT 0 CHECK (rendered IN (0,1)),       -- parts are committed before the first send
  reply_to TEXT, ticket TEXT, replaces TEXT,                           -- replaces: preview message that this part replaces
  state TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending','sending','sent','ambiguous','dead')),
  attempts INTEGER NOT NULL DEFAULT 0, next_at INTEGER NOT NULL, first_tried_at INTEGER, platform_ref TEXT, error TEXT,
  created_at INTEGER NOT NULL, settled_at INTEGER,
  CHECK ((settled_at IS NULL) = (state IN ('pending','sending','ambiguous'))),
  UNIQUE (dedupe_key, part)
) STRICT;
CREATE INDEX outbox_open ON outbox(chat_id, id) WHERE state IN ('pending','sending','ambiguous');
CREATE INDEX outbox_turn ON outbox(turn_id) WHERE turn_id IS NOT NULL;
CREATE INDEX outbox_message ON outbox(message_id) WHERE message_id IS NOT NULL;
CREATE INDEX outbox_settled ON outbox(settled_at) WHERE settled_at IS NOT NULL;

CREATE TABLE cursors (                                                 -- position up to which all messages were seen, even ignored messages
  platform TEXT NOT NULL, account TEXT NOT NULL, channel_ref TEXT NOT NULL, seen_ref TEXT NOT NULL,
  PRIMARY KEY (platform, account, channel_ref)
) STRICT, WITHOUT ROWID;

CREATE TABLE attachments (
  id INTEGER PRIMARY KEY, chat_id INTEGER NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
  message_id INTEGER REFERENCES messages(id) ON DELETE CASCADE,
  sha256 TEXT NOT NULL, path TEXT NOT NULL, name TEXT NOT NULL, mime TEXT, bytes INTEGER NOT NULL, created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX attachments_message ON attachments(message_id) WHERE message_id IS NOT NULL;
CREATE INDEX attachments_sha ON attachments(sha256);

CREATE TABLE model_profiles (                                          -- learned per route and model: calibration and context window
  route TEXT NOT NULL, model TEXT NOT NULL, calibration TEXT NOT NULL, learned_context INTEGER, updated_at INTEGER NOT NULL,
  PRIMARY KEY (route, model)
) STRICT, WITHOUT ROWID;

CREATE TABLE pairings (
  code_hash TEXT PRIMARY KEY, platform TEXT NOT NULL, user_ref TEXT NOT NULL, display_name TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('pending','approved','revoked')),
  role TEXT NOT NULL DEFAULT 'user' CHECK (role IN ('user','admin')),
  expires_at INTEGER NOT NULL, decided_by TEXT, decided_at INTEGER, created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX pairings_user ON pairings(user_ref);

-- One full-text index over segmented text (CJK bigrams, emoji tokens) and scope tokens. Scope first would cost 73 bytes a message.
CREATE VIEW messages_search AS
  SELECT id, fts_text(text) AS text, 'c' || chat_id || ' l' || lineage_id || ' r' || role AS scope FROM messages WHERE indexed = 1;
CREATE VIRTUAL TABLE messages_fts USING fts5(text, scope, content='messages_search', content_rowid='id',
  tokenize='unicode61 remove_diacritics 2');
INSERT INTO messages_fts(messages_fts, rank) VALUES ('automerge', 8);
CREATE TRIGGER messages_fts_ai AFTER INSERT ON messages WHEN new.indexed = 1 BEGIN
  INSERT INTO messages_fts(rowid, text, scope) VALUES (new.id, fts_text(new.text), 'c' || new.chat_id || ' l' || new.lineage_id || ' r' || new.role);
END;
CREATE TRIGGER messages_fts_ad AFTER DELETE ON messages WHEN old.indexed = 1 BEGIN
  INSERT INTO messages_fts(messages_fts, rowid, text, scope) VALUES ('delete', old.id, fts_text(old.text), 'c' || old.chat_id || ' l' || old.lineage_id || ' r' || old.role);
END;
CREATE TRIGGER messages_fts_bu BEFORE UPDATE OF text, indexed, role, chat_id, lineage_id ON messages WHEN old.indexed = 1 BEGIN
  INSERT INTO messages_fts(messages_fts, rowid, text, scope) VALUES ('delete', old.id, fts_text(old.text), 'c' || old.chat_id || ' l' || old.lineage_id || ' r' || old.role);
END;
CREATE TRIGGER messages_fts_au AFTER UPDATE OF text, indexed, role, chat_id, lineage_id ON messages WHEN new.indexed = 1 BEGIN
  INSERT INTO messages_fts(rowid, text, scope) VALUES (new.id, fts_text(new.text), 'c' || new.chat_id || ' l' || new.lineage_id || ' r' || new.role);
END;
