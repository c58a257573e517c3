-- $1 kind, $2 key, $3 generation claimed, $4 delay, $5 attempts, $6 error.
-- A key dirtied while it ran keeps the due its enqueue gave it.
UPDATE mesh.work
SET due = CASE WHEN generation = $3 THEN mesh.mesh_now() + $4::interval ELSE due END,
    attempts = $5,
    last_error = $6
WHERE kind = $1 AND key = $2
