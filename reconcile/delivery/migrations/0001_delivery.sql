-- What each node should be now, and what it was last told to be.
CREATE TABLE node_state (
  node text PRIMARY KEY REFERENCES nodes ON DELETE CASCADE,
  hash text NOT NULL,
  document jsonb NOT NULL,           -- the declaration without epoch, generation and signature
  blocked jsonb NOT NULL DEFAULT '[]',
  composed_at timestamptz NOT NULL DEFAULT mesh_now(),
  pushed bigint NOT NULL DEFAULT 0,  -- generation; 0 is never
  pushed_hash text NOT NULL DEFAULT '',
  pushed_at timestamptz,
  pushed_by text NOT NULL DEFAULT ''
);

-- Every declaration that was pushed, signed, as it is sent.
CREATE TABLE declarations (
  node text NOT NULL REFERENCES nodes ON DELETE CASCADE,
  epoch bigint NOT NULL,
  generation bigint NOT NULL,
  hash text NOT NULL,
  body jsonb NOT NULL,
  pushed_by text NOT NULL,
  pushed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  published_at timestamptz,          -- last given to the broker
  acknowledged_at timestamptz,       -- the node has said that it saw it
  PRIMARY KEY (node, epoch, generation)
);
CREATE INDEX declarations_open ON declarations (published_at) WHERE acknowledged_at IS NULL;
