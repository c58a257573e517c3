-- Values a module calls its own, one per node. sealed can be opened by that node only.
CREATE TABLE secrets (
  node text NOT NULL REFERENCES nodes ON DELETE CASCADE,
  module text NOT NULL,
  name text NOT NULL,
  origin text NOT NULL CHECK (origin IN ('generated', 'given')),
  variant text NOT NULL DEFAULT '',  -- of what it was made from; another one remakes it
  recipient text NOT NULL,           -- fingerprint of the node's sealing key
  info text NOT NULL,
  sealed bytea NOT NULL,
  version int NOT NULL,
  made_at timestamptz NOT NULL DEFAULT mesh_now(),
  PRIMARY KEY (node, module, name)
);

-- A provision's credential, one per consumer, node and provider: sealed to the consumer's
-- node, and again to the provider's as what is asked of it.
CREATE TABLE credentials (
  consumer text NOT NULL,
  node text NOT NULL REFERENCES nodes ON DELETE CASCADE,
  provision text NOT NULL,
  provider text NOT NULL,
  provider_node text NOT NULL,       -- '' for the foundation
  variant text NOT NULL,
  landing jsonb NOT NULL,            -- sealed to node
  request jsonb,                     -- sealed to provider_node; null for the foundation
  version int NOT NULL,
  made_at timestamptz NOT NULL DEFAULT mesh_now(),
  PRIMARY KEY (consumer, node, provision)
);
CREATE INDEX credentials_provider ON credentials (provider_node, provider);
