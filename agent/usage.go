package agent

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"weir.dev/weir/api"
	"weir.dev/weir/container/kernel"
)

var meter = sync.OnceValues(kernel.NewMeter)

// used is what all functions that run here have used.
func (a *Agent) used() []api.FunctionUsage {
	m, err := meter()
	if err != nil {
		a.Log.Debug("what functions use", "error", err)
		return nil
	}
	a.mu.Lock()
	running := maps.Clone(a.functions)
	a.mu.Unlock()
	var out []api.FunctionUsage
	for name, f := range running {
		if u, ok := m.Usage(f.view().status.PID); ok {
			out = append(out, api.FunctionUsage{Name: name, CPUNs: uint64(u.CPU), MemoryBytes: u.Memory})
		}
	}
	slices.SortFunc(out, func(x, y api.FunctionUsage) int { return strings.Compare(x.Name, y.Name) })
	return out
}
