-- $1 role
SELECT id FROM mesh.workers WHERE role = $1 AND expires > mesh.mesh_now() ORDER BY id
