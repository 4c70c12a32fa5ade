package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"weir.dev/weir/api"
)

// recalled is the intent as last heard. An agent that cannot reach its manager after a reboot goes on with it.
type recalled struct {
	Endpoints   map[string]api.Endpoint   `json:"endpoints"`
	Functions   map[string]api.Function   `json:"functions"`
	Chains      map[string]api.Chain      `json:"chains"`
	Policies    map[string]api.Policy     `json:"policies"`
	Assignments map[string]api.Assignment `json:"assignments"`
}

func (a *Agent) intentFile() string { return filepath.Join(a.Instance.Root, "intent.json") }

// hear waits for the intent: from the manager, or, when it does not answer, from the last time that it did. It reports false when ctx or
// the watch has ended.
func (a *Agent) hear(ctx context.Context, failed <-chan error) (bool, error) {
	var silent <-chan time.Time
	if a.Joined {
		t := time.NewTimer(managerWait)
		defer t.Stop()
		silent = t.C
	}
	for {
		select {
		case <-a.intent.complete:
			return true, nil
		case err := <-failed:
			return false, err
		case <-ctx.Done():
			return false, nil
		case <-silent:
			known, err := a.recall()
			if err != nil {
				a.Log.Error("read what the manager said last", "error", err)
			}
			if known {
				a.Log.Warn("the manager does not answer: going on with what it said last", "file", a.intentFile())
				return true, nil
			}
		}
	}
}

func (a *Agent) recall() (bool, error) {
	b, err := os.ReadFile(a.intentFile())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	var r recalled
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", a.intentFile(), err)
	}
	i := a.intent
	i.mu.Lock()
	defer i.mu.Unlock()
	fill(i.now.endpoints, r.Endpoints) // a kind may have been heard of meanwhile
	fill(i.now.functions, r.Functions)
	fill(i.now.chains, r.Chains)
	fill(i.now.policies, r.Policies)
	fill(i.now.assignments, r.Assignments)
	return true, nil
}

func fill[T any](m, with map[string]T) {
	if len(m) == 0 {
		maps.Copy(m, with)
	}
}

// remember writes the intent down if it has changed.
func (a *Agent) remember() {
	if !a.Joined {
		return // the manager's own store is on this host
	}
	i := a.intent
	i.mu.Lock()
	r := recalled{maps.Clone(i.now.endpoints), maps.Clone(i.now.functions), maps.Clone(i.now.chains), maps.Clone(i.now.policies), maps.Clone(i.now.assignments)}
	changes := i.changes
	i.mu.Unlock()
	if changes == a.remembered {
		return
	}
	if err := replaceFile(a.intentFile(), r); err != nil {
		a.Log.Warn("write down what the manager says", "error", err)
		return
	}
	a.remembered = changes
}
