-- A request to look names its repository, so that the leader loads one row and not all.
CREATE OR REPLACE FUNCTION request_refresh_repository(p_url text) RETURNS bool
LANGUAGE plpgsql SECURITY DEFINER SET search_path = catalogue, pg_temp AS $$
DECLARE
  v_id bigint;
BEGIN
  UPDATE catalogue.repositories SET refresh_requested = clock_timestamp() WHERE url = p_url AND NOT removed RETURNING id INTO v_id;
  IF NOT FOUND THEN RETURN false; END IF;
  PERFORM pg_notify('catalogue', 'refresh ' || v_id);
  RETURN true;
END $$;

-- A repository that is watched no longer keeps no secret, and nobody counts its notices.
CREATE OR REPLACE FUNCTION request_remove_repository(p_url text) RETURNS bool
LANGUAGE plpgsql SECURITY DEFINER SET search_path = catalogue, pg_temp AS $$
BEGIN
  UPDATE catalogue.repositories SET removed = true WHERE url = p_url AND NOT removed;
  IF NOT FOUND THEN RETURN false; END IF;
  DELETE FROM catalogue.secrets s USING catalogue.repositories r WHERE r.id = s.repository_id AND r.url = p_url;
  DELETE FROM catalogue.hooks WHERE subject = p_url;
  PERFORM pg_notify('catalogue', 'remove');
  RETURN true;
END $$;

-- The unmatched are few, and the latest are kept.
CREATE INDEX hooks_last ON hooks (outcome, last_at);
