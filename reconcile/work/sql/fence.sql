-- $1 lease, $2 epoch, $3 how long the transaction may sit idle. Only FOR SHARE (or stronger)
-- keeps a successor from taking the lease before this transaction has ended; a plain read
-- lets a stale holder commit.
SELECT set_config('idle_in_transaction_session_timeout', $3, true)
FROM mesh.leases WHERE name = $1 AND epoch = $2 FOR SHARE
