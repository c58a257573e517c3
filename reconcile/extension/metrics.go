package extension

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are one host's, in a registry of their own.
type metrics struct {
	registry *prometheus.Registry
	calls    *prometheus.HistogramVec
	runs     *prometheus.HistogramVec
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mesh_method_seconds", Help: "How long calls took, by method and code (OK or the error's).",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}, []string{"method", "code"}),
		runs: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mesh_reconcile_seconds", Help: "How long runs took, by reconciler and outcome.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}, []string{"reconciler", "outcome"}),
	}
	m.registry.MustRegister(m.calls, m.runs, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) run(reconciler, outcome string, took time.Duration) {
	m.runs.WithLabelValues(reconciler, outcome).Observe(took.Seconds())
}

func (m *metrics) call(method, code string, took time.Duration) {
	m.calls.WithLabelValues(method, code).Observe(took.Seconds())
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
