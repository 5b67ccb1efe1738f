-- The ledger distinguishes calls of sub-agents and scheduled turns. A CHECK cannot be changed in place, so the table is rebuilt.

ALTER TABLE model_calls RENAME TO model_calls_before;
CREATE TABLE model_calls (                                             -- the ledger: every call, including failed calls
  id INTEGER PRIMARY KEY, lineage_id INTEGER, session_id INTEGER REFERENCES sessions(id) ON DELETE SET NULL,
  turn_id INTEGER REFERENCES turns(id) ON DELETE SET NULL,
  purpose TEXT NOT NULL
    CHECK (purpose IN ('turn','schedule','subagent','summary','flush','title','transcription','tool')),
  route TEXT NOT NULL, model TEXT NOT NULL, outcome TEXT NOT NULL, estimated INTEGER NOT NULL DEFAULT 0 CHECK (estimated IN (0,1)),
  input_tokens INTEGER, output_tokens INTEGER, cache_read_tokens INTEGER, cache_write_tokens INTEGER, reasoning_tokens INTEGER,
  cost_microusd INTEGER, took_ms INTEGER, created_at INTEGER NOT NULL,  -- cost NULL: price unknown, never zero
  chat_id INTEGER REFERENCES chats(id) ON DELETE SET NULL
) STRICT;
INSERT INTO model_calls (id, lineage_id, session_id, turn_id, purpose, route, model, outcome, estimated, input_tokens,
  output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, cost_microusd, took_ms, created_at, chat_id)
SELECT id, lineage_id, session_id, turn_id, purpose, route, model, outcome, estimated, input_tokens,
  output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, cost_microusd, took_ms, created_at, chat_id
FROM model_calls_before;
DROP TABLE model_calls_before;
CREATE INDEX model_calls_time ON model_calls(created_at);
CREATE INDEX model_calls_lineage ON model_calls(lineage_id, created_at);
CREATE INDEX model_calls_session ON model_calls(session_id) WHERE session_id IS NOT NULL;
CREATE INDEX model_calls_turn ON model_calls(turn_id) WHERE turn_id IS NOT NULL;
CREATE INDEX model_calls_chat ON model_calls(chat_id, created_at, cost_microusd) WHERE chat_id IS NOT NULL;
