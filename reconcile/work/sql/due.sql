-- $1 kind, $2 shards, $3 rows per shard, $4 rows in all: the oldest due keys of each shard,
-- so that a busy shard does not starve the others
SELECT w.key, w.shard, w.generation, w.attempts
FROM unnest($2::smallint[]) AS s (shard)
CROSS JOIN LATERAL (
  SELECT key, shard, generation, attempts, due
  FROM mesh.work
  WHERE kind = $1 AND shard = s.shard AND due <= mesh.mesh_now()
  ORDER BY due
  LIMIT $3
) AS w
ORDER BY w.due
LIMIT $4
