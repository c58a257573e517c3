package extension

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/work"
)

// SeverityError and the others are a finding's severities.
const (
	SeverityError   = "error"
	SeverityWarning = "warning"
	SeverityInfo    = "info"
)

// SelfCheck collects the findings of every extension. One whose check fails or panics becomes
// one error finding, extension.<name>; the others' findings stay. A check only reads: the
// Transact of its context opens read-only transactions.
func (h *Host) SelfCheck(ctx context.Context) api.SelfCheck {
	report := api.SelfCheck{OK: true, Findings: h.undeclared()}
	for _, e := range h.extensions {
		if e.SelfCheck == nil {
			continue
		}
		findings, err := h.selfCheck(ctx, e)
		if err != nil {
			findings = []api.Finding{{
				Check: "extension." + e.Name, Severity: SeverityError,
				Message: "its check of itself failed: " + err.Error(),
				Fix:     "look for extension " + e.Name + " in the controller's log",
			}}
		}
		report.Findings = append(report.Findings, findings...)
	}
	for _, f := range report.Findings {
		if f.Severity == SeverityError {
			report.OK = false
		}
	}
	return report
}

func (h *Host) selfCheck(ctx context.Context, e Extension) (findings []api.Finding, err error) {
	defer func() {
		if p := recover(); p != nil {
			findings, err = nil, fmt.Errorf("panic: %v", p)
		}
	}()
	c := *h.context
	c.Transact = func(ctx context.Context, fn func(pgx.Tx) error) error {
		return work.TransactRead(ctx, h.config.Store, fn)
	}
	return e.SelfCheck(ctx, &c)
}

// undeclared reports methods of extensions, not plugins, that the method table lacks.
func (h *Host) undeclared() []api.Finding {
	findings := []api.Finding{}
	if h.config.Table == nil {
		return findings
	}
	for _, path := range h.order {
		m := h.methods[path]
		if _, ok := h.config.Table[path]; ok || m.plugin {
			continue
		}
		findings = append(findings, api.Finding{
			Check: "catalog.undeclared", Severity: SeverityWarning,
			Message: "method " + path + " of extension " + m.owner + " is not in the method table",
			Fix:     "add it to the method table, or ship it as a plugin",
		})
	}
	return findings
}

// server is the host's own extension: what it answers about itself.
func (h *Host) server() Extension {
	return Extension{
		Name:    "server",
		Catalog: Catalog{Actions: []string{api.SystemSelfCheck.Action}},
		API: func(*Context) []Method {
			return []Method{
				// Checks may take long and each reads for itself: no transaction around all.
				Handle(api.SystemSelfCheck, Options{LongPoll: true}, func(ctx context.Context, _ *MethodContext, _ api.None) (api.SelfCheck, error) {
					return h.SelfCheck(ctx), nil
				}),
				Handle(api.SystemVersion, Options{LongPoll: true}, func(context.Context, *MethodContext, api.None) (api.VersionInfo, error) {
					return api.VersionInfo{Version: h.config.Version, Mesh: h.config.Mesh}, nil
				}),
			}
		},
	}
}
