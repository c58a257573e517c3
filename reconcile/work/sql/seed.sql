-- $1 kind, $2 key, $3 shard: a periodic key that is there already keeps its due
INSERT INTO mesh.work (kind, key, shard) VALUES ($1, $2, $3)
ON CONFLICT (kind, key) DO NOTHING
