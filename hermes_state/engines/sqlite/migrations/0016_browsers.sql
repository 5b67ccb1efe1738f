-- Browsers signed in to the web chat, one row each. The single note used before could only be written as a whole.

CREATE TABLE browsers (
  id INTEGER PRIMARY KEY AUTOINCREMENT,                                -- the order in which they were signed in
  digest TEXT NOT NULL UNIQUE,                                         -- SHA-256 of cookie and key together
  agent TEXT NOT NULL,                                                 -- name that the browser reports
  created_at INTEGER NOT NULL
) STRICT;

-- Leave out entries from before keys existed: they have no name and give no access.
INSERT INTO browsers (digest, agent, created_at)
SELECT json_extract(one.value, '$.digest'), json_extract(one.value, '$.agent'), json_extract(one.value, '$.since')
FROM meta, json_each(meta.value) AS one
WHERE meta.key = 'local.cookies' AND json_extract(one.value, '$.agent') IS NOT NULL ORDER BY one.key;

DELETE FROM meta WHERE key = 'local.cookies';
