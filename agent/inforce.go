package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/instance"
)

// inForce is which form of chains and policies was compiled last. It survives the agent and a reboot, so that the next agent goes on from
// there: until a newer form is ready the former one stays, and after a reboot what was in force is enforced from the first frame on.
type inForce struct {
	Chains   map[string]api.ChainSpec  `json:"chains"`
	Policies map[string]api.PolicySpec `json:"policies"`
	LeftOut  []string                  `json:"left_out,omitempty"` // of the policies: the switch had no room for them
}

// holdFor bounds how long a new agent waits for the functions of what was in force before it touches endpoints and rules.
const holdFor = 5 * time.Second

func (a *Agent) inForceFile() string { return filepath.Join(a.Instance.Root, "inforce.json") }

func (a *Agent) loadInForce() error {
	b, err := os.ReadFile(a.inForceFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var f inForce
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil {
		return fmt.Errorf("%s: %w (what is wanted now is taken for it)", a.inForceFile(), err)
	}
	for name, c := range f.Chains {
		a.chains[name] = c
	}
	for name, p := range f.Policies {
		a.policies[name] = p
	}
	a.fitted = maps.Clone(f.Policies)
	for _, name := range f.LeftOut {
		delete(a.fitted, name)
	}
	return nil
}

// assumeInForce takes the intent for what was in force: better to hold traffic up than to let it past a function.
func (a *Agent) assumeInForce() error {
	want := a.mine(a.intent.snapshot(time.Now()))
	for name, c := range want.chains {
		if c.Deleting == nil && want.hosts(c.Spec) {
			a.chains[name] = c.Spec
		}
	}
	for name, p := range want.policies {
		if _, ok := a.chains[p.Spec.Chain]; ok && p.Deleting == nil {
			a.policies[name] = p.Spec
		}
	}
	return a.saveInForce()
}

func (a *Agent) saveInForce() error {
	f := inForce{Chains: a.chains, Policies: a.policies}
	if a.full != nil {
		f.LeftOut = slices.Sorted(maps.Keys(a.full.left))
	}
	return replaceFile(a.inForceFile(), f)
}

// replaceFile writes a value as JSON, so that a crash leaves the former file or the new one.
func replaceFile(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return instance.WriteFile(path, b)
}

// holds reports whether endpoints and rules have to wait: a function of what was in force has no ports yet. Until then the
// kernel goes on with the rules it has; after a reboot, endpoints come up just before their rules, not long before.
func (a *Agent) holds(want share, now time.Time) bool {
	if a.held {
		return false
	}
	views := a.views()
	needed := want.assignedFunctions()
	for _, c := range a.chains {
		needed = append(needed, c.Functions()...)
	}
	for _, f := range needed {
		if _, wanted := want.functions[f]; wanted && !views[f].placed && now.Sub(a.begun) < holdFor {
			return true
		}
	}
	a.held = true
	return false
}
