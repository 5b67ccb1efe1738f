-- A search index over segmented text and scope tokens, with its triggers. text comes first, because putting scope first
-- would cost 73 bytes a message. {index} is the table. {new} and {old} limit the messages it covers (empty: no limit).
-- Messages above the mark have no words in the index yet: batches add them.

CREATE VIRTUAL TABLE {index} USING fts5(text, scope, content='messages_search', content_rowid='id',
  tokenize='unicode61 remove_diacritics 2');
INSERT INTO {index}({index}, rank) VALUES ('automerge', 8);
CREATE TRIGGER {index}_ai AFTER INSERT ON messages
WHEN new.indexed = 1{new} BEGIN
  INSERT INTO {index}(rowid, text, scope) VALUES (new.id, fts_text(fts_row(new.text, new.body)),
    fts_scope(new.chat_id, new.lineage_id, new.role, new.tool_name));
END;
CREATE TRIGGER {index}_ad AFTER DELETE ON messages
WHEN old.indexed = 1{old} BEGIN
  INSERT INTO {index}({index}, rowid, text, scope) VALUES ('delete', old.id, fts_text(fts_row(old.text, old.body)),
    fts_scope(old.chat_id, old.lineage_id, old.role, old.tool_name));
END;
CREATE TRIGGER {index}_bu BEFORE UPDATE OF text, body, indexed, role, chat_id, lineage_id, tool_name ON messages
WHEN old.indexed = 1{old} BEGIN
  INSERT INTO {index}({index}, rowid, text, scope) VALUES ('delete', old.id, fts_text(fts_row(old.text, old.body)),
    fts_scope(old.chat_id, old.lineage_id, old.role, old.tool_name));
END;
CREATE TRIGGER {index}_au AFTER UPDATE OF text, body, indexed, role, chat_id, lineage_id, tool_name ON messages
WHEN new.indexed = 1{new} BEGIN
  INSERT INTO {index}(rowid, text, scope) VALUES (new.id, fts_text(fts_row(new.text, new.body)),
    fts_scope(new.chat_id, new.lineage_id, new.role, new.tool_name));
END;
