-- $1 id: this worker, and those that have been silent for an hour
DELETE FROM mesh.workers WHERE id = $1 OR expires < mesh.mesh_now() - interval '1 hour'
