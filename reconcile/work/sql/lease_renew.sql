-- $1 holder, $2 ttl, $3 names, $4 epochs. Identity and epoch come before time: a lease that
-- has expired and that nobody took is still its holder's.
UPDATE mesh.lease_expiry AS x
SET expires = mesh.mesh_now() + $2::interval
FROM unnest($3::text[], $4::bigint[]) AS held (name, epoch)
WHERE x.name = held.name AND x.holder = $1 AND x.epoch = held.epoch
RETURNING x.name, x.epoch
