-- The source as the catalogue had it when the build was asked for. The ref is resolved when the
-- build begins, so that a newer one may be what is built.
ALTER TABLE builds
  ADD COLUMN noticed_commit text NOT NULL DEFAULT '',
  ADD COLUMN noticed_tree text NOT NULL DEFAULT '';
