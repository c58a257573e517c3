package source

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mesh-control/mesh/internal/git"
)

// metrics count what was asked of remotes. The label is "ok" or a [git.Reason], never an address.
type metrics struct {
	lsRemote *prometheus.CounterVec
	fetch    *prometheus.CounterVec
	bytes    prometheus.Counter
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		lsRemote: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mesh_git_ls_remote_total", Help: "Times a remote was asked where a ref stands, by outcome.",
		}, []string{"outcome"}),
		fetch: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mesh_git_fetch_total", Help: "Times a commit was fetched, by outcome.",
		}, []string{"outcome"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mesh_git_fetch_bytes_total", Help: "Bytes of packs received.",
		}),
	}
	if registry != nil {
		registry.MustRegister(m.lsRemote, m.fetch, m.bytes)
	}
	return m
}

func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	if reason := git.ReasonOf(err); reason != "" {
		return string(reason)
	}
	return "cancelled"
}
