-- One row per dirty key. There is no status column: under a lease the lease is the claim,
-- so due keys are read without a write, and a crash leaves the key due.
CREATE TABLE mesh.work (
  kind text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  shard smallint NOT NULL CHECK (shard BETWEEN 0 AND 255),
  generation bigint NOT NULL DEFAULT 1,
  due timestamptz NOT NULL DEFAULT mesh.mesh_now(),
  attempts int NOT NULL DEFAULT 0,
  last_error text,
  PRIMARY KEY (kind, key),
  CHECK (char_length(key) BETWEEN 1 AND 512)
) WITH (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0,
  autovacuum_analyze_threshold = 5000
);
CREATE INDEX work_due ON mesh.work (kind, shard, due);

-- The epoch is what transactions fence on; it only grows. Who holds the lease and until when
-- stands in another row, or a fence would block the holder's own heartbeat.
CREATE TABLE mesh.leases (
  name text COLLATE "C" PRIMARY KEY,
  epoch bigint NOT NULL DEFAULT 0
);
CREATE TABLE mesh.lease_expiry (
  name text COLLATE "C" PRIMARY KEY REFERENCES mesh.leases,
  holder text NOT NULL DEFAULT '',
  epoch bigint NOT NULL DEFAULT 0,
  expires timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

-- The live workers of each role: <id> for controllers, scheduler/<id> for schedulers.
CREATE TABLE mesh.workers (
  id text COLLATE "C" PRIMARY KEY,
  role text NOT NULL,
  started timestamptz NOT NULL DEFAULT mesh.mesh_now(),
  expires timestamptz NOT NULL
);
