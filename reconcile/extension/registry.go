package extension

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/work"
)

var (
	nameForm       = regexp.MustCompile(`^[a-z][a-z0-9-]{0,63}$`)
	actionForm     = regexp.MustCompile(`^mesh:[a-z][a-z0-9-]*:[a-z][A-Za-z0-9-]*$`)
	routeForm      = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,63}$`)
	reconcilerForm = regexp.MustCompile(`^[a-z][a-z0-9._-]{0,63}$`)

	reservedNames       = []string{"core", "server", "plugins"}
	reservedRoutes      = []string{"then", "catch", "finally", "toJSON", "constructor", "prototype", "__proto__", "plugins"}
	reservedReconcilers = []string{"command-sweeper", "outbox-dispatch", "event-subscribers"}
)

// registration collects what is registered, and every problem on the way.
type registration struct {
	problems    []error
	names       map[string]bool
	routes      map[string]string // route to owner
	reconcilers map[string]string // name to owner
	actions     map[string]bool
	nodes       string // the owner of Nodes
	pools       string
	migrations  []store.Migration
}

func (r *registration) problem(format string, args ...any) {
	r.problems = append(r.problems, fmt.Errorf(format, args...))
}

// err is all problems as one INVALID_CONFIG.
func (r *registration) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	return invalidConfig(errors.Join(r.problems...))
}

func invalidConfig(err error) error {
	return &api.Error{Code: api.CodeInvalidConfig, Message: err.Error(), Remedy: "correct the extensions named and start again"}
}

// check looks at everything but the methods, which are made later and checked by route.
func (r *registration) check(extensions []Extension) {
	for _, e := range extensions {
		r.checkName(e)
		r.checkCatalog(e)
		r.checkReconcilers(e)
		r.checkMigrations(e)
		if e.Nodes != nil {
			r.only("the list of nodes", &r.nodes, e.Name)
		}
		if e.Pools != nil {
			r.only("the list of pools", &r.pools, e.Name)
		}
	}
	for _, e := range extensions {
		for _, required := range e.Requires {
			if !r.names[required] {
				r.problem("extension %s requires %s, which is not registered", e.Name, required)
			}
		}
	}
	if err := store.CheckMigrations(r.migrations); err != nil {
		r.problems = append(r.problems, err)
	}
}

func (r *registration) only(what string, owner *string, name string) {
	if *owner != "" {
		r.problem("extensions %s and %s both give %s", *owner, name, what)
		return
	}
	*owner = name
}

func (r *registration) checkName(e Extension) {
	if e.plugin && e.pluginID == "" {
		r.problem("plugin %q: it has no id", e.Name)
	}
	if e.plugin && e.pluginID != "" && !nameForm.MatchString(e.pluginID) {
		r.problem("plugin %q: its id must match %s", e.pluginID, nameForm)
	}
	switch {
	case !nameForm.MatchString(e.Name):
		r.problem("extension %q: its name must match %s", e.Name, nameForm)
	case slices.Contains(reservedNames, e.Name):
		r.problem("extension %s: the name is reserved", e.Name)
	case r.names[e.Name]:
		r.problem("extension %s: registered twice", e.Name)
	}
	r.names[e.Name] = true
}

func (r *registration) checkCatalog(e Extension) {
	for _, action := range e.Catalog.Actions {
		if !actionForm.MatchString(action) {
			r.problem("extension %s: action %q must have the form mesh:<area>:<verb>", e.Name, action)
			continue
		}
		if e.plugin && strings.Split(action, ":")[1] != e.pluginID {
			r.problem("plugin %s: action %s must be mesh:%s:<verb>", e.Name, action, e.pluginID)
			continue
		}
		r.actions[action] = true
	}
}

func (r *registration) checkReconcilers(e Extension) {
	for _, rec := range e.Reconcilers {
		if !reconcilerForm.MatchString(rec.Name) {
			r.problem("extension %s: reconciler %q must match %s", e.Name, rec.Name, reconcilerForm)
		}
		if slices.Contains(reservedReconcilers, rec.Name) {
			r.problem("extension %s: reconciler %s: the name is reserved", e.Name, rec.Name)
		}
		if owner, ok := r.reconcilers[rec.Name]; ok {
			r.problem("extensions %s and %s both have a reconciler %s", owner, e.Name, rec.Name)
		}
		r.reconcilers[rec.Name] = e.Name
		if !slices.Contains([]string{ShardNode, ShardPool, ShardNone}, rec.ShardBy) {
			r.problem("extension %s: reconciler %s: shardBy %q is none of node, pool, none", e.Name, rec.Name, rec.ShardBy)
		}
		if !slices.Contains([]string{"", RoleControllers, RoleScheduler}, rec.Role) {
			r.problem("extension %s: reconciler %s: role %q is neither controllers nor scheduler", e.Name, rec.Name, rec.Role)
		}
		if rec.Run == nil {
			r.problem("extension %s: reconciler %s has no run", e.Name, rec.Name)
		}
		for _, p := range rec.Periodic {
			if err := work.CheckKey(p.Key); err != nil {
				r.problem("extension %s: reconciler %s: %w", e.Name, rec.Name, err)
			}
			if p.Every < time.Second {
				r.problem("extension %s: reconciler %s: key %s: every %s is under 1s", e.Name, rec.Name, p.Key, p.Every)
			}
		}
	}
}

func (r *registration) checkMigrations(e Extension) {
	for _, m := range e.Migrations {
		if owner := m.Owner(); owner != "" && owner != e.Name {
			r.problem("extension %s: migration %s belongs to %s", e.Name, m.Name, owner)
		}
	}
	r.migrations = append(r.migrations, e.Migrations...)
}

// addRoute checks one method of an extension and answers its route below the base path.
func (r *registration) addRoute(e Extension, m Method) string {
	route := m.Group + "/" + m.Name
	if e.plugin {
		route = "plugins/" + e.pluginID + "/" + route
	}
	for _, part := range []string{m.Group, m.Name} {
		switch {
		case slices.Contains(reservedRoutes, part):
			r.problem("extension %s: method %s: the name %s is reserved", e.Name, route, part)
		case !routeForm.MatchString(part):
			r.problem("extension %s: method %s: %q must match %s", e.Name, route, part, routeForm)
		}
	}
	if owner, ok := r.routes[route]; ok {
		r.problem("extensions %s and %s both serve %s", owner, e.Name, route)
	}
	r.routes[route] = e.Name
	if m.call == nil {
		r.problem("extension %s: method %s was not made by Handle", e.Name, route)
	}
	if m.Kind != api.Query && m.Kind != api.Mutation {
		r.problem("extension %s: method %s: kind %q is neither query nor mutation", e.Name, route, m.Kind)
	}
	if e.plugin {
		if area := strings.Split(m.Action, ":"); len(area) != 3 || area[1] != e.pluginID {
			r.problem("plugin %s: method %s: action %q must be mesh:%s:<verb>", e.Name, route, m.Action, e.pluginID)
		}
	}
	return route
}
