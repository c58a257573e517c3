-- $1 kind, $2 keys in order, $3 their shards, $4 not before (null: now)
INSERT INTO mesh.work AS w (kind, key, shard, due)
SELECT $1, k.key, k.shard, GREATEST(mesh.mesh_now(), $4::timestamptz)
FROM unnest($2::text[], $3::smallint[]) WITH ORDINALITY AS k (key, shard, position)
ORDER BY k.position
ON CONFLICT (kind, key) DO UPDATE
SET generation = w.generation + 1, due = LEAST(w.due, EXCLUDED.due)
