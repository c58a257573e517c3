-- Only the SHA-256 of a token is kept. Actions are patterns: mesh:*:* is everything.
CREATE TABLE mesh.operators (
  name text PRIMARY KEY,
  token_sha256 bytea NOT NULL UNIQUE CHECK (octet_length(token_sha256) = 32),
  actions text[] NOT NULL DEFAULT '{mesh:*:*}',
  created timestamptz NOT NULL DEFAULT mesh.mesh_now()
);
