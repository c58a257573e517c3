-- $1 names in order
WITH made AS (
  INSERT INTO mesh.leases (name) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING RETURNING name
)
INSERT INTO mesh.lease_expiry (name) SELECT name FROM made ON CONFLICT DO NOTHING
