-- When a node first said that it has applied what it has: reports come every few seconds.
ALTER TABLE reports ADD COLUMN applied_at timestamptz;
UPDATE reports SET applied_at = received_at WHERE applied > 0;
