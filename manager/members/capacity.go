package members

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
)

// What a host that has joined counts for at most, as long as no operator has said what it has: it wins functions by what it claims.
const (
	maxClaimCores  = 64
	maxClaimMemory = 256 << 30
)

// memorySlack is the part of a host's memory by which its claim may grow without a word: kernels keep more or less of it for themselves.
const memorySlack = 20

// Count replaces what a host claims by what counts: what an operator declared in the host's spec; else what the host claimed first, up to
// a bound if it has joined. A claim beyond that stays visible in Claims. before is the host's former status. It tells whether there is news
// of a claim beyond what counts.
func Count(spec api.HostSpec, before api.HostStatus, s *api.HostStatus, joined bool) (news bool) {
	claim := api.HostCapacity{Cores: s.Cores, Memory: s.Memory}
	accepted := before.Accepted
	if accepted == nil && joined {
		accepted = &api.HostCapacity{Cores: min(claim.Cores, maxClaimCores), Memory: min(claim.Memory, maxClaimMemory)}
		if before.Cores > 0 && before.Memory > 0 { // it was there before its claim was bounded
			accepted = &api.HostCapacity{Cores: before.Cores, Memory: before.Memory}
		}
	}
	bound := api.HostCapacity{Cores: math.MaxInt, Memory: math.MaxInt64}
	if accepted != nil {
		bound = *accepted
	}
	if n, err := api.ParseCPUs(spec.CPUs); err == nil && n > 0 {
		bound.Cores = max(1, int(n))
	}
	if n, err := api.ParseMemory(spec.Memory); err == nil && n > 0 {
		bound.Memory = n
	}
	s.Accepted, s.Claims = accepted, nil
	s.Cores, s.Memory = min(claim.Cores, bound.Cores), min(claim.Memory, bound.Memory)
	if claim.Cores <= bound.Cores && claim.Memory-bound.Memory <= bound.Memory/memorySlack {
		return false
	}
	s.Claims = &claim
	return before.Claims == nil || *before.Claims != claim
}

// Recount is Count for a spec that has changed.
func Recount(o *object.Object, now time.Time) error {
	h := api.Host{Meta: o.Meta}
	if err := o.Into(&h.Spec, &h.Status); err != nil {
		return err
	}
	if h.Status.Cores == 0 {
		return nil // it has not reported yet
	}
	next := h.Status
	if next.Claims != nil {
		next.Cores, next.Memory = next.Claims.Cores, next.Claims.Memory
	}
	Count(h.Spec, h.Status, &next, h.Status.Accepted != nil)
	next.Conditions = Conditions(o.Name, &next).Dated(h.Status.Conditions, now)
	o.Status = object.Marshal(next)
	return nil
}

// ClaimsMore is the event of a host that claims more than counts.
func ClaimsMore(name string, s *api.HostStatus) api.Event {
	return api.Event{Severity: api.Warning, Reason: "HostClaimsMore", Kind: api.KindHost, Object: name, Host: name, Message: claimText(name, s)}
}

func claimText(name string, s *api.HostStatus) string {
	return fmt.Sprintf("host %s says that it has %d cores and %d MiB of memory; %d cores and %d MiB count: if it is right, weir host set %s --cpus %d --memory %dM",
		name, s.Claims.Cores, s.Claims.Memory>>20, s.Cores, s.Memory>>20, name, s.Claims.Cores, s.Claims.Memory>>20)
}

// CheckHostSpec refuses capacities that are none.
func CheckHostSpec(raw json.RawMessage) error {
	var spec api.HostSpec
	if err := json.Unmarshal(raw, &spec); err != nil {
		return err
	}
	if problems := CheckCapacity(spec.CPUs, spec.Memory, "spec."); len(problems) > 0 {
		return api.Refuse(http.StatusUnprocessableEntity, "the host's capacity is refused", problems...)
	}
	return nil
}

// CheckCapacity refuses capacities that are none, each with its path.
func CheckCapacity(cpus, memory, path string) (problems []api.Problem) {
	if n, err := api.ParseCPUs(cpus); err != nil {
		problems = append(problems, api.Problem{Path: path + "cpus", Message: err.Error()})
	} else if cpus != "" && n < 1 {
		problems = append(problems, api.Problem{Path: path + "cpus", Message: "is " + cpus, Hint: "want the whole cores of a host, as 8"})
	}
	if _, err := api.ParseMemory(memory); err != nil {
		problems = append(problems, api.Problem{Path: path + "memory", Message: err.Error()})
	}
	return problems
}
