-- SQLite's function of this name, for arrays: one SQL text passes many rows as one parameter on both engines.
CREATE FUNCTION json_each(document text) RETURNS TABLE (key bigint, value text) IMMUTABLE STRICT LANGUAGE sql
  AS 'SELECT place - 1, item FROM json_array_elements_text(CAST(document AS json)) WITH ORDINALITY AS items(item, place)';
