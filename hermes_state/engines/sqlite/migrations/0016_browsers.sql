-- Browsers that are signed in to the web chat, a row each: kept in one note, they were only ever written all at once.

CREATE TABLE browsers (
  id INTEGER PRIMARY KEY AUTOINCREMENT,                                -- the order in which they were signed in
  digest TEXT NOT NULL UNIQUE,                                         -- SHA-256 of cookie and key together
  agent TEXT NOT NULL,                                                 -- name that it gave itself
  created_at INTEGER NOT NULL
) STRICT;

-- Not those from before there were keys: they have no name, and open nothing.
INSERT INTO browsers (digest, agent, created_at)
SELECT json_extract(one.value, '$.digest'), json_extract(one.value, '$.agent'), json_extract(one.value, '$.since')
FROM meta, json_each(meta.value) AS one
WHERE meta.key = 'local.cookies' AND json_extract(one.value, '$.agent') IS NOT NULL ORDER BY one.key;

DELETE FROM meta WHERE key = 'local.cookies';
