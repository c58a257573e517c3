package foundation

import (
	"slices"
	"testing"
)

func TestNewestVersionWins(t *testing.T) {
	t.Parallel()
	for _, c := range [][]string{
		{"/usr/lib/postgresql/9.6/bin", "/usr/lib/postgresql/15/bin"},
		{"/lib/rabbitmq_server-3.9.13/sbin", "/lib/rabbitmq_server-3.10.8/sbin", "/lib/rabbitmq_server-4.0.1/sbin"},
	} {
		shuffled := slices.Clone(c)
		slices.Reverse(shuffled)
		if got, want := slices.MaxFunc(shuffled, compareVersions), c[len(c)-1]; got != want {
			t.Errorf("newest is %s, want %s", got, want)
		}
	}
}
