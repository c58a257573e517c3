package catalogue

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the service; those of git are package source's.
type metrics struct {
	repositories *prometheus.GaugeVec
	parsed       prometheus.Counter
	read         prometheus.Histogram
	notices      *prometheus.CounterVec
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		repositories: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "mesh_catalogue_repositories", Help: "Repositories watched, by state.",
		}, []string{"state"}),
		parsed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mesh_catalogue_parsed_total", Help: "module.json files parsed.",
		}),
		read: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "mesh_catalogue_read_seconds", Help: "Fetching, reading and recording one commit.",
			Buckets: prometheus.ExponentialBuckets(0.01, 4, 8),
		}),
		notices: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mesh_catalogue_notices_total", Help: "Notices of forges, by what became of them.",
		}, []string{"forge", "outcome"}),
	}
	if registry != nil {
		registry.MustRegister(m.repositories, m.parsed, m.read, m.notices)
	}
	return m
}

func (m *metrics) count(list []repository) {
	states := map[string]float64{}
	for _, r := range list {
		switch {
		case r.Removed:
		case r.Suspended:
			states["suspended"]++
		default:
			states[r.State]++
		}
	}
	m.repositories.Reset()
	for state := range maps.Keys(states) {
		m.repositories.WithLabelValues(state).Set(states[state])
	}
}
