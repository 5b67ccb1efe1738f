-- Fencing token: each new owner of a turn increases its epoch, and every write for the turn checks it.

ALTER TABLE turns ADD COLUMN epoch INTEGER NOT NULL DEFAULT 1;
