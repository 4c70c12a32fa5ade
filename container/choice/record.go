package choice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"weir.dev/weir/instance"
)

// idPattern are ids that can be names of files. Runtimes refuse others.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// entry is a container. turn is held through each call that makes, moves or removes it; the other fields are guarded by Runtime.mu.
type entry struct {
	turn    chan struct{} // a lock that ctx can leave
	runtime string        // whose it is; "": nobody's, only a turn
	gone    bool          // whoever waited for turn looks again
}

// record is what is written down of a container.
type record struct {
	Runtime string `json:"runtime"`
}

// inTurn runs f in a container's turn.
func (r *Runtime) inTurn(ctx context.Context, id string, f func(*entry) error) error {
	e, err := r.take(ctx, id)
	if err != nil {
		return fmt.Errorf("container %s: %w", id, err)
	}
	defer r.release(id, e)
	return f(e)
}

func (r *Runtime) take(ctx context.Context, id string) (*entry, error) {
	for {
		r.mu.Lock()
		e := r.ids[id]
		if e == nil {
			e = &entry{turn: make(chan struct{}, 1)}
			r.ids[id] = e
		}
		r.mu.Unlock()
		select {
		case e.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		r.mu.Lock()
		gone := e.gone
		r.mu.Unlock()
		if !gone {
			return e, nil
		}
		<-e.turn
	}
}

// release ends a turn; an entry that is no container goes.
func (r *Runtime) release(id string, e *entry) {
	r.mu.Lock()
	if e.runtime == "" {
		e.gone = true
		delete(r.ids, id)
	}
	r.mu.Unlock()
	<-e.turn
}

// Of names the runtime that has a container; "" none.
func (r *Runtime) Of(id string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.ids[id]; e != nil {
		return e.runtime
	}
	return ""
}

func (r *Runtime) owner(e *entry) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return e.runtime
}

// idsOf are the containers of a runtime, sorted.
func (r *Runtime) idsOf(name string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for id, e := range r.ids {
		if e.runtime == name {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// owes tells whether a runtime has containers.
func (r *Runtime) owes(name string) bool { return len(r.idsOf(name)) > 0 }

func (r *Runtime) file(id string) string { return filepath.Join(r.o.Dir, id) }

// note writes down whose a container is. The caller has its turn.
func (r *Runtime) note(e *entry, id, name string) error {
	if r.owner(e) == name {
		return nil
	}
	if idPattern.MatchString(id) { // others no runtime makes
		text, err := json.Marshal(record{Runtime: name})
		if err == nil {
			err = os.MkdirAll(r.o.Dir, 0o700)
		}
		if err == nil {
			err = instance.Replace(r.file(id), text, 0o600)
		}
		if err != nil {
			return fmt.Errorf("container %s: write down its runtime: %w", id, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e.runtime = name
	return nil
}

// forget ends what is known of a container. The caller has its turn.
func (r *Runtime) forget(e *entry, id string) error {
	if idPattern.MatchString(id) {
		if err := os.Remove(r.file(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("container %s: %w", id, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e.runtime = ""
	return nil
}

// readRecords finds out whose containers were when this instance last ran. What cannot be read, or is of a runtime that this program has not, is left
// out: who has a container says so.
func (r *Runtime) readRecords() error {
	entries, err := os.ReadDir(r.o.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("runtimes of containers: %w", err)
	}
	for _, d := range entries {
		id := d.Name()
		if !idPattern.MatchString(id) || strings.HasSuffix(id, instance.FileNew) {
			continue
		}
		text, err := os.ReadFile(r.file(id))
		var rec record
		if err == nil {
			err = json.Unmarshal(text, &rec)
		}
		if err != nil || r.slots[rec.Runtime] == nil {
			r.o.Log.Warn("runtime of a container", "container", id, "runtime", rec.Runtime, "error", err)
			continue
		}
		r.ids[id] = &entry{turn: make(chan struct{}, 1), runtime: rec.Runtime}
	}
	return nil
}
