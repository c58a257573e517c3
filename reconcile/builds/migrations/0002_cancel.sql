-- A build that was cancelled: by whom or by what, whether the broker says so to builders, and
-- when a builder answered, after which nobody has to be told any more.
ALTER TABLE builds
  ADD COLUMN cancelled_at timestamptz,
  ADD COLUMN cancel_error jsonb,
  ADD COLUMN cancel_bound boolean NOT NULL DEFAULT false,
  ADD COLUMN answered_at timestamptz;
CREATE INDEX builds_cancelled ON builds (cancelled_at) WHERE cancel_bound OR cancelled_at IS NOT NULL AND outcome = '';
