package extension

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/store"
)

// read reads the outbox in batches of two, from the cursor on, until it has read want events
// and finds no more. It waits for them: a transaction of another database on this server
// holds back what may be read here.
func read(t *testing.T, pool *store.Pool, after Cursor, want int) (subjects string, cursor Cursor) {
	t.Helper()
	var all []string
	deadline := time.Now().Add(time.Minute)
	for {
		var entries []Entry
		err := pool.Tx(t.Context(), func(tx pgx.Tx) (err error) {
			entries, err = ReadOutbox(t.Context(), tx, after, 2)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			all = append(all, e.Subject)
			after = e.Cursor
		}
		if len(entries) == 0 && (len(all) >= want || time.Now().After(deadline)) {
			return strings.Join(all, " "), after
		}
		if len(entries) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func publish(t *testing.T, tx pgx.Tx, subjects ...string) {
	t.Helper()
	for _, subject := range subjects {
		if err := (outbox{}).Publish(t.Context(), tx, Event{Type: "t", Subject: subject, Data: map[string]int{"n": 1}}); err != nil {
			t.Error(err)
		}
	}
}

// A transaction that is slow to commit has the lower transaction id and, here, both a lower
// and a higher row id than one that overtakes it: a reader that went by row id, or did not
// stop below the slow one, would lose one of its rows.
func TestS2_205_NothingCommittedIsMissedAndNothingRolledBackIsSeen(t *testing.T) {
	t.Parallel()
	_, pool := hosted(t)
	slow, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Rollback(t.Context())
	publish(t, slow, "slow-1")
	err = pool.Tx(t.Context(), func(tx pgx.Tx) error { publish(t, tx, "quick-1", "quick-2", "quick-3"); return nil })
	if err != nil {
		t.Fatal(err)
	}
	failure := errors.New("rolled back")
	err = pool.Tx(t.Context(), func(tx pgx.Tx) error { publish(t, tx, "never"); return failure })
	if !errors.Is(err, failure) {
		t.Fatal(err)
	}
	early, cursor := read(t, pool, Cursor{}, 0)
	if early != "" {
		t.Errorf("read %q past a transaction still running", early)
	}
	publish(t, slow, "slow-2")
	if err := slow.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all, _ := read(t, pool, cursor, 5); all != "slow-1 slow-2 quick-1 quick-2 quick-3" {
		t.Errorf("read %q", all)
	}
}

// The overtaking transaction has the lower id here: it commits after the other's rows, with
// lower row ids than a reader has seen, were it to go by those.
func TestOutboxOrderIsTheTransactions(t *testing.T) {
	t.Parallel()
	_, pool := hosted(t)
	first, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Rollback(t.Context())
	second, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Rollback(t.Context())
	if _, err := first.Exec(t.Context(), `SELECT pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	publish(t, second, "second") // the lower row id, the higher transaction
	publish(t, first, "first")
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen, cursor := read(t, pool, Cursor{}, 1)
	if err := second.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	rest, _ := read(t, pool, cursor, 1)
	if seen != "first" || rest != "second" {
		t.Errorf("read %q, then %q", seen, rest)
	}
}

func TestS2_229_AConsumerAtTheTailMissesNothingThatComes(t *testing.T) {
	t.Parallel()
	_, pool := hosted(t)
	tx := func(fn func(tx pgx.Tx) error) {
		t.Helper()
		if err := pool.Tx(t.Context(), fn); err != nil {
			t.Fatal(err)
		}
	}
	tx(func(tx pgx.Tx) error { publish(t, tx, "old"); return nil })
	// The tail is where readers have come to, and they must have come past it.
	if got, _ := read(t, pool, Cursor{}, 1); got != "old" {
		t.Fatalf("read %q", got)
	}
	tx(func(tx pgx.Tx) error {
		tail, err := OutboxTail(t.Context(), tx)
		if err != nil {
			return err
		}
		return SaveCursor(t.Context(), tx, "fan-out", tail)
	})
	tx(func(tx pgx.Tx) error { publish(t, tx, "new"); return nil })
	var cursor Cursor
	tx(func(tx pgx.Tx) (err error) { cursor, err = LoadCursor(t.Context(), tx, "fan-out"); return err })
	if got, _ := read(t, pool, cursor, 1); got != "new" {
		t.Errorf("read %q", got)
	}
}
