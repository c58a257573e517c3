-- Modules that building what is behind leaves alone until somebody resumes them.
CREATE TABLE suspended_modules (
  module text PRIMARY KEY,
  suspended_by text NOT NULL,
  suspended_at timestamptz NOT NULL DEFAULT mesh_now()
);
