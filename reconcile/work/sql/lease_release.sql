-- $1 holder, $2 names, $3 epochs
UPDATE mesh.lease_expiry AS x
SET holder = '', expires = '-infinity'
FROM unnest($2::text[], $3::bigint[]) AS held (name, epoch)
WHERE x.name = held.name AND x.holder = $1 AND x.epoch = held.epoch
