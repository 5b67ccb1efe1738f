-- Search also in documents, quotes and tool calls. The old index is used until the new one is built.

DROP VIEW messages_search;
CREATE VIEW messages_search AS
  SELECT id, fts_text(fts_row(text, body)) AS text, fts_scope(chat_id, lineage_id, role, tool_name) AS scope
  FROM messages WHERE indexed = 1;
CREATE VIRTUAL TABLE messages_terms USING fts5vocab(messages_fts, row);  -- words of the index, to find similar spellings
