-- $1 id, $2 role, $3 ttl
INSERT INTO mesh.workers (id, role, expires) VALUES ($1, $2, mesh.mesh_now() + $3::interval)
ON CONFLICT (id) DO UPDATE SET expires = EXCLUDED.expires
