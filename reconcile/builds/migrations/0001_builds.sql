-- One request to the builders and its one recorded result.
CREATE TABLE builds (
  id text PRIMARY KEY,
  repository text NOT NULL,
  path text NOT NULL,
  ref text NOT NULL DEFAULT '',
  module text NOT NULL DEFAULT '',   -- '' until it is known
  job jsonb NOT NULL,
  outcome text NOT NULL DEFAULT '',  -- '' until there is a result
  result jsonb,                      -- without the manifest and the log
  log text NOT NULL DEFAULT '',
  artifacts jsonb,
  digest text NOT NULL DEFAULT '',
  commit text NOT NULL DEFAULT '',
  tree text NOT NULL DEFAULT '',
  recipe text NOT NULL DEFAULT '',   -- wanted when it was asked for
  builder text NOT NULL DEFAULT '',
  requested_by text NOT NULL DEFAULT '',
  requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  published_at timestamptz,          -- last put on the queue
  started_at timestamptz,
  ended_at timestamptz
);
CREATE INDEX builds_requested ON builds (requested_at DESC);
CREATE INDEX builds_module ON builds (module, requested_at DESC);
CREATE INDEX builds_open ON builds (published_at) WHERE outcome = '';

-- Whose account may take builds.
CREATE TABLE builders (
  node text PRIMARY KEY REFERENCES nodes ON DELETE CASCADE,
  account text NOT NULL,
  issued_at timestamptz NOT NULL DEFAULT mesh_now(),
  revision int NOT NULL DEFAULT 1
);
