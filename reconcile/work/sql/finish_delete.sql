-- $1 kind, $2 key, $3 generation
DELETE FROM mesh.work WHERE kind = $1 AND key = $2 AND generation = $3
