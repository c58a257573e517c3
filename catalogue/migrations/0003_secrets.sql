-- The processes of the catalogue: the key each is trusted under, and when it last spoke. Only
-- led_at says that repositories are looked at: the leader's own loop writes it.
CREATE TABLE instances (
  fingerprint text PRIMARY KEY,
  public_key bytea NOT NULL CHECK (length(public_key) = 32), -- X25519
  hooks_url text NOT NULL DEFAULT '',  -- where forges reach its webhooks; '' takes none
  poll interval NOT NULL,
  seen_at timestamptz NOT NULL,
  led_at timestamptz
);

-- Whoever else reads private repositories: the builders.
CREATE TABLE recipients (
  name text PRIMARY KEY,
  fingerprint text NOT NULL,
  public_key bytea NOT NULL CHECK (length(public_key) = 32),
  registered_at timestamptz NOT NULL DEFAULT mesh_now()
);

-- What a repository is read with (credential), and what its webhooks are signed with (hook).
-- The values stand in sealed, once for each key, and nowhere in the clear.
CREATE TABLE secrets (
  repository_id bigint NOT NULL REFERENCES repositories,
  purpose text NOT NULL CHECK (purpose IN ('credential', 'hook')),
  kind text NOT NULL,                  -- of a credential: token, ssh-key
  version bigint NOT NULL,             -- each value has another
  given_at timestamptz NOT NULL DEFAULT mesh_now(),
  PRIMARY KEY (repository_id, purpose)
);
CREATE TABLE sealed (
  repository_id bigint NOT NULL,
  purpose text NOT NULL,
  recipient text NOT NULL,             -- fingerprint of an instance's or a recipient's key
  info text NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (repository_id, purpose, recipient),
  FOREIGN KEY (repository_id, purpose) REFERENCES secrets ON DELETE CASCADE
);
CREATE SEQUENCE secret_versions;

CREATE FUNCTION request_secret_version() RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = catalogue, pg_temp AS $$
  SELECT nextval('catalogue.secret_versions')
$$;

-- p_sealed is a list of {recipient, info, data}, data in base64.
CREATE FUNCTION request_set_secret(p_url text, p_purpose text, p_kind text, p_version bigint, p_sealed jsonb) RETURNS bool
LANGUAGE plpgsql SECURITY DEFINER SET search_path = catalogue, pg_temp AS $$
DECLARE
  v_id bigint;
BEGIN
  SELECT id INTO v_id FROM catalogue.repositories WHERE url = p_url AND NOT removed FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN false; END IF;
  DELETE FROM catalogue.secrets WHERE repository_id = v_id AND purpose = p_purpose;
  INSERT INTO catalogue.secrets (repository_id, purpose, kind, version) VALUES (v_id, p_purpose, p_kind, p_version);
  INSERT INTO catalogue.sealed (repository_id, purpose, recipient, info, data)
  SELECT v_id, p_purpose, x->>'recipient', x->>'info', decode(x->>'data', 'base64') FROM jsonb_array_elements(p_sealed) x;
  IF p_purpose = 'credential' THEN
    UPDATE catalogue.repositories SET refresh_requested = clock_timestamp() WHERE id = v_id;
  END IF;
  PERFORM pg_notify('catalogue', 'secret');
  RETURN true;
END $$;

CREATE FUNCTION request_remove_secret(p_url text, p_purpose text) RETURNS bool
LANGUAGE plpgsql SECURITY DEFINER SET search_path = catalogue, pg_temp AS $$
BEGIN
  DELETE FROM catalogue.secrets s USING catalogue.repositories r
  WHERE r.id = s.repository_id AND r.url = p_url AND s.purpose = p_purpose;
  IF NOT FOUND THEN RETURN false; END IF;
  UPDATE catalogue.repositories SET refresh_requested = clock_timestamp() WHERE url = p_url AND p_purpose = 'credential';
  PERFORM pg_notify('catalogue', 'secret');
  RETURN true;
END $$;

-- A recipient's new key takes the place of its old one, which is sealed to no longer.
CREATE FUNCTION request_register_recipient(p_name text, p_public bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = catalogue, pg_temp AS $$
DECLARE
  v_fingerprint text := 'sha256:' || encode(sha256(p_public), 'hex');
BEGIN
  DELETE FROM catalogue.sealed s USING catalogue.recipients r
  WHERE r.name = p_name AND r.fingerprint = s.recipient AND r.fingerprint <> v_fingerprint;
  INSERT INTO catalogue.recipients (name, fingerprint, public_key) VALUES (p_name, v_fingerprint, p_public)
  ON CONFLICT (name) DO UPDATE SET fingerprint = excluded.fingerprint, public_key = excluded.public_key, registered_at = excluded.registered_at;
  PERFORM pg_notify('catalogue', 'recipient');
END $$;

CREATE FUNCTION request_unregister_recipient(p_name text) RETURNS bool
LANGUAGE plpgsql SECURITY DEFINER SET search_path = catalogue, pg_temp AS $$
BEGIN
  DELETE FROM catalogue.sealed s USING catalogue.recipients r WHERE r.name = p_name AND r.fingerprint = s.recipient;
  DELETE FROM catalogue.recipients WHERE name = p_name;
  RETURN FOUND;
END $$;

-- A repository that is watched no longer keeps no secret.
CREATE OR REPLACE FUNCTION request_remove_repository(p_url text) RETURNS bool
LANGUAGE plpgsql SECURITY DEFINER SET search_path = catalogue, pg_temp AS $$
BEGIN
  UPDATE catalogue.repositories SET removed = true WHERE url = p_url AND NOT removed;
  IF NOT FOUND THEN RETURN false; END IF;
  DELETE FROM catalogue.secrets s USING catalogue.repositories r WHERE r.id = s.repository_id AND r.url = p_url;
  PERFORM pg_notify('catalogue', 'remove');
  RETURN true;
END $$;

-- What came in by webhooks and what became of it, counted. subject is the URL of a watched
-- repository, or what the sender of an unmatched one called its repository.
CREATE TABLE hooks (
  subject text NOT NULL,
  outcome text NOT NULL,               -- accepted, ignored, bad-signature, unmatched, malformed, too-large
  forge text NOT NULL,
  count bigint NOT NULL,
  first_at timestamptz NOT NULL,
  last_at timestamptz NOT NULL,
  PRIMARY KEY (subject, outcome, forge)
);

REVOKE EXECUTE ON FUNCTION request_secret_version(), request_set_secret(text, text, text, bigint, jsonb),
  request_remove_secret(text, text), request_register_recipient(text, bytea), request_unregister_recipient(text) FROM PUBLIC;
