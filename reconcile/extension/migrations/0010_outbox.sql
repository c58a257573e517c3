-- Read in the order (xid, id), below pg_snapshot_xmin: ids alone lose a slow transaction's row.
CREATE TABLE mesh.outbox (
  id bigserial PRIMARY KEY,
  type text NOT NULL,
  subject text NOT NULL,
  data jsonb NOT NULL,
  at timestamptz NOT NULL DEFAULT mesh.mesh_now(),
  xid xid8 NOT NULL DEFAULT pg_current_xact_id()
);
CREATE INDEX outbox_order ON mesh.outbox (xid, id);

-- Where each consumer of an ordered log has read to.
CREATE TABLE mesh.cursors (
  consumer text PRIMARY KEY,
  xid xid8 NOT NULL,
  id bigint NOT NULL,
  moved timestamptz NOT NULL DEFAULT mesh.mesh_now()
);
