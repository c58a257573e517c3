-- How the controller asks. It has no right to write these tables; the functions run with the
-- catalogue's. Each takes effect when its transaction commits, wake-up included.

CREATE FUNCTION request_add_repository(p_url text, p_ref text, p_watch text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = catalogue, pg_temp AS $$
DECLARE
  v_id bigint;
  v_ref text := coalesce(p_ref, '');
  v_watch text := coalesce(p_watch, '');
BEGIN
  IF p_url IS NULL OR length(p_url) > 2048 OR p_url ~ '[[:cntrl:][:space:]]'
     OR p_url !~ '^(https?://[^/]+/.|ssh://[^/]+/.|git://[^/]+/.|file:///.|/.|[A-Za-z0-9._-]+@[A-Za-z0-9.-]+:.)' THEN
    RAISE EXCEPTION 'not a repository''s address: use http, https, ssh, git or file, or an absolute path'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_url ~ '^https?://[^/]*@' OR p_url ~ '^[a-z]+://[^/]*:[^/]*@' THEN
    RAISE EXCEPTION 'the address carries a credential; give it apart from the address'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF length(v_ref) > 255 OR v_ref ~ '[[:cntrl:][:space:]~^:?*\[\\]' OR v_ref ~ '^-|\.\.|^/|/$' THEN
    RAISE EXCEPTION 'not a ref''s name: %', quote_literal(v_ref) USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF v_watch <> '' AND v_watch !~ '^/' THEN
    RAISE EXCEPTION 'the directory to watch must be an absolute path' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  INSERT INTO catalogue.repositories AS r (url, ref, watch, refresh_requested)
  VALUES (p_url, v_ref, v_watch, clock_timestamp())
  ON CONFLICT (url) DO UPDATE SET
    ref = excluded.ref, watch = excluded.watch, removed = false, suspended = false,
    refresh_requested = excluded.refresh_requested,
    state = CASE WHEN r.removed OR r.ref <> excluded.ref THEN 'new' ELSE r.state END,
    message = CASE WHEN r.removed OR r.ref <> excluded.ref THEN '' ELSE r.message END,
    commit = CASE WHEN r.removed THEN NULL ELSE r.commit END
  RETURNING id INTO v_id;
  PERFORM pg_notify('catalogue', 'add');
  RETURN v_id;
END $$;

CREATE FUNCTION request_remove_repository(p_url text) RETURNS bool
LANGUAGE plpgsql SECURITY DEFINER SET search_path = catalogue, pg_temp AS $$
BEGIN
  UPDATE catalogue.repositories SET removed = true WHERE url = p_url AND NOT removed;
  IF NOT FOUND THEN RETURN false; END IF;
  PERFORM pg_notify('catalogue', 'remove');
  RETURN true;
END $$;

CREATE FUNCTION request_refresh_repository(p_url text) RETURNS bool
LANGUAGE plpgsql SECURITY DEFINER SET search_path = catalogue, pg_temp AS $$
BEGIN
  UPDATE catalogue.repositories SET refresh_requested = clock_timestamp() WHERE url = p_url AND NOT removed;
  IF NOT FOUND THEN RETURN false; END IF;
  PERFORM pg_notify('catalogue', 'refresh');
  RETURN true;
END $$;

CREATE FUNCTION request_suspend_repository(p_url text, p_suspended bool) RETURNS bool
LANGUAGE plpgsql SECURITY DEFINER SET search_path = catalogue, pg_temp AS $$
BEGIN
  UPDATE catalogue.repositories SET suspended = p_suspended WHERE url = p_url AND NOT removed;
  IF NOT FOUND THEN RETURN false; END IF;
  PERFORM pg_notify('catalogue', 'suspend');
  RETURN true;
END $$;

REVOKE EXECUTE ON FUNCTION request_add_repository(text, text, text), request_remove_repository(text),
  request_refresh_repository(text), request_suspend_repository(text, bool) FROM PUBLIC;
