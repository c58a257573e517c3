-- What the tags that modules borrow mean now, as the controller last saw it. What a manifest
-- has stays what it was when it was built.
CREATE TABLE upstreams (
  reference text PRIMARY KEY, -- as written in module.json, by tag
  digest text NOT NULL DEFAULT '', -- '' as long as nobody could be asked
  looked_at timestamptz, -- when the question that gave the digest was asked
  error text NOT NULL DEFAULT '', -- of the last question; '' when it was answered
  failing_since timestamptz
);
