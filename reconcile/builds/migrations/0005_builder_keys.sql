-- What is sealed for a builder alone, such as a private repository's credential, is sealed to
-- this key; NULL of one issued before builders had any.
ALTER TABLE builders ADD COLUMN public_key bytea;
