package catalogue_test

import (
	"fmt"
	"testing"
	"time"
)

func TestTheLeaderSaysThatItLooks(t *testing.T) {
	t.Parallel()
	r := start(t, every(time.Second))
	spoke := func() (at time.Time) {
		r.t.Helper()
		if err := r.pool.QueryRow(t.Context(), `SELECT coalesce(max(led_at), 'epoch') FROM catalogue.instances WHERE poll = '1 second'`).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	var first time.Time
	r.eventually("first word", func() (bool, string) { first = spoke(); return first.Year() > 2000, first.String() })
	r.eventually("next word", func() (bool, string) { return spoke().After(first), fmt.Sprint(first) })
}
