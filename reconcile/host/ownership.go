package host

import (
	"maps"
	"sync"
)

// ownership is the record of what this host made, kept on disk at every change.
type ownership struct {
	layout   Layout
	complete bool // false when an earlier record was lost

	mu    sync.Mutex
	items map[string]owned
}

func openOwnership(layout Layout) *ownership {
	items, complete := loadOwned(layout)
	return &ownership{layout: layout, complete: complete, items: items}
}

func (o *ownership) all() map[string]owned {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.items)
}

func (o *ownership) get(id string) owned {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.items[id]
}

func (o *ownership) set(id string, item owned) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.items[id] == item {
		return nil
	}
	o.items[id] = item
	return writeJSON(o.layout.state(ownedFile), o.items)
}

func (o *ownership) drop(id string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.items[id]; !ok {
		return nil
	}
	delete(o.items, id)
	return writeJSON(o.layout.state(ownedFile), o.items)
}
