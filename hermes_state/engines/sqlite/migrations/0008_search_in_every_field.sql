-- Search in documents, quotations and calls of tools, too. The index that there is serves until a new one is made.

DROP VIEW messages_search;
CREATE VIEW messages_search AS
  SELECT id, fts_text(fts_row(text, body)) AS text, fts_scope(chat_id, lineage_id, role, tool_name) AS scope
  FROM messages WHERE indexed = 1;
CREATE VIRTUAL TABLE messages_terms USING fts5vocab(messages_fts, row);  -- its words, for those spelt nearly alike
