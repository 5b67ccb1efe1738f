-- The function has the same name as in SQLite. With it, one parameter can pass many rows on both engines (as an array).
CREATE FUNCTION json_each(document text) RETURNS TABLE (key bigint, value text) IMMUTABLE STRICT LANGUAGE sql
  AS 'SELECT place - 1, item FROM json_array_elements_text(CAST(document AS json)) WITH ORDINALITY AS items(item, place)';
