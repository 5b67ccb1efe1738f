-- Fencing: each time that a turn is taken up it has another epoch, which everything that is written for it states.

ALTER TABLE turns ADD COLUMN epoch INTEGER NOT NULL DEFAULT 1;
