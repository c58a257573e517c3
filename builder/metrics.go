package builder

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mesh-control/mesh/schema"
)

// metrics of a worker; nil measures nothing.
type metrics struct {
	builds   *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	building prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		builds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mesh_builder_builds_total", Help: "Builds that ended, by outcome and, of those that failed, reason.",
		}, []string{"outcome", "reason"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mesh_builder_build_seconds", Help: "Time of the builds that ended, by outcome.",
			Buckets: prometheus.ExponentialBuckets(0.1, 4, 8),
		}, []string{"outcome"}),
		building: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mesh_builder_building", Help: "Builds under way.",
		}),
	}
	registry.MustRegister(m.builds, m.seconds, m.building)
	return m
}

// begun counts a build as under way until the function it gives is called.
func (m *metrics) begun() (done func()) {
	if m == nil {
		return func() {}
	}
	m.building.Inc()
	return m.building.Dec
}

func (m *metrics) ended(result schema.Result) {
	if m == nil {
		return
	}
	reason := ""
	if result.Error != nil {
		reason = result.Error.Reason
	}
	m.builds.WithLabelValues(string(result.Outcome), reason).Inc()
	m.seconds.WithLabelValues(string(result.Outcome)).Observe(result.Ended.Sub(result.Started).Seconds())
}
