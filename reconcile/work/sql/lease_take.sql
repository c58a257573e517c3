-- $1 names, $2 holder, $3 ttl. Rows in use (a transaction that fenced, a heartbeat) are
-- passed over and tried again at the next beat.
WITH free AS MATERIALIZED (
  SELECT l.name
  FROM mesh.leases AS l
  JOIN mesh.lease_expiry AS x ON x.name = l.name
  WHERE l.name = ANY ($1::text[]) AND x.expires <= mesh.mesh_now()
  ORDER BY l.name
  FOR UPDATE OF l, x SKIP LOCKED
), taken AS (
  UPDATE mesh.leases AS l SET epoch = l.epoch + 1
  FROM free WHERE l.name = free.name
  RETURNING l.name, l.epoch
)
UPDATE mesh.lease_expiry AS x
SET holder = $2, epoch = taken.epoch, expires = mesh.mesh_now() + $3::interval
FROM taken WHERE x.name = taken.name
RETURNING x.name, x.epoch
