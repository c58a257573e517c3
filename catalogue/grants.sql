-- Run at every start, since the role may be made after the schema was.
DO $$
BEGIN
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'mesh_controller') THEN
    GRANT USAGE ON SCHEMA catalogue TO mesh_controller;
    GRANT SELECT ON catalogue.repositories, catalogue.sources, catalogue.changes, catalogue.instances,
      catalogue.recipients, catalogue.secrets, catalogue.sealed, catalogue.hooks TO mesh_controller;
    GRANT EXECUTE ON FUNCTION catalogue.request_add_repository(text, text, text),
      catalogue.request_remove_repository(text), catalogue.request_refresh_repository(text),
      catalogue.request_suspend_repository(text, bool),
      catalogue.request_secret_version(), catalogue.request_set_secret(text, text, text, bigint, jsonb),
      catalogue.request_remove_secret(text, text), catalogue.request_register_recipient(text, bytea),
      catalogue.request_unregister_recipient(text) TO mesh_controller;
  END IF;
END $$;
