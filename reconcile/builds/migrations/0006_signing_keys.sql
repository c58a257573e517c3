-- The public keys that builders sign provenance with. A key outlives its builder, because what
-- it signed while it was in use is still to be checked.
CREATE TABLE signing_keys (
  public_key bytea PRIMARY KEY,
  builder text NOT NULL, -- the node's name
  issued_at timestamptz NOT NULL DEFAULT mesh_now(),
  withdrawn_at timestamptz
);
CREATE INDEX signing_keys_in_use ON signing_keys (builder) WHERE withdrawn_at IS NULL;

-- When a result came in, by the controller's clock: what a withdrawn key signed is believed
-- when it was recorded before. NULL of builds that ended before there was provenance.
ALTER TABLE builds ADD COLUMN recorded_at timestamptz;

CREATE FUNCTION withdraw_signing_keys() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE mesh.signing_keys SET withdrawn_at = mesh.mesh_now() WHERE builder = OLD.node AND withdrawn_at IS NULL;
  RETURN NULL;
END $$;
CREATE TRIGGER withdraw_signing_keys AFTER DELETE ON builders FOR EACH ROW EXECUTE FUNCTION withdraw_signing_keys();
