-- The machines. Keys are public halves.
CREATE TABLE nodes (
  name text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9-]{0,62}$'),
  address text NOT NULL,
  identity bytea NOT NULL,
  sealing_key bytea NOT NULL,
  fingerprint text NOT NULL,         -- of sealing_key
  labels jsonb NOT NULL DEFAULT '{}',
  platform text NOT NULL DEFAULT '', -- os/arch, as last reported
  schema int NOT NULL DEFAULT 0,     -- newest document schema its host knows
  capabilities text[] NOT NULL DEFAULT '{}',
  added_at timestamptz NOT NULL DEFAULT mesh_now()
);

-- The last report of each node, by the sequence its host gives.
CREATE TABLE reports (
  node text PRIMARY KEY REFERENCES nodes ON DELETE CASCADE,
  epoch bigint NOT NULL,
  sequence bigint NOT NULL,
  seen bigint NOT NULL,
  applied bigint NOT NULL,
  applied_hash text NOT NULL DEFAULT '',
  outcome text NOT NULL DEFAULT '',
  cause text NOT NULL DEFAULT '',
  body jsonb NOT NULL,
  received_at timestamptz NOT NULL DEFAULT mesh_now()
);

-- Messages that were not what they claimed to be.
CREATE TABLE refused_messages (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue text NOT NULL,
  user_id text NOT NULL,
  key text NOT NULL,
  reason text NOT NULL,
  at timestamptz NOT NULL DEFAULT mesh_now()
);

CREATE TABLE assignments (
  module text NOT NULL,
  node text NOT NULL REFERENCES nodes ON DELETE CASCADE,
  settings jsonb NOT NULL DEFAULT '{}',
  bindings jsonb NOT NULL DEFAULT '{}',
  origin text NOT NULL CHECK (origin IN ('hand', 'placer', 'genesis', 'brought')),
  made_at timestamptz NOT NULL DEFAULT mesh_now(),
  PRIMARY KEY (node, module)
);
CREATE INDEX assignments_module ON assignments (module);

-- What the mesh holds of each module.
CREATE TABLE manifests (
  module text PRIMARY KEY,
  digest text NOT NULL,
  document jsonb NOT NULL,
  build text NOT NULL,               -- that made it
  recorded_at timestamptz NOT NULL DEFAULT mesh_now()
);

-- What genesis laid on a node beneath every module.
CREATE TABLE foundation_resources (
  node text NOT NULL REFERENCES nodes ON DELETE CASCADE,
  id text NOT NULL CHECK (id LIKE 'foundation/%'),
  document jsonb NOT NULL,
  PRIMARY KEY (node, id)
);
