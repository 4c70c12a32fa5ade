package api

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// State is a type of states; States lists its values, besides "" for what nobody has said yet.
type State interface{ States() []string }

// EndpointState is what its agent, or the router, makes of an endpoint.
type EndpointState string

const (
	EndpointPending EndpointState = "pending"
	EndpointUp      EndpointState = "up"
	EndpointError   EndpointState = "error"
	EndpointDeleted EndpointState = "deleted"
)

// ChainState is whether a chain's functions work.
type ChainState string

const (
	ChainPending  ChainState = "pending"
	ChainReady    ChainState = "ready"
	ChainDegraded ChainState = "degraded" // a function is down
)

// PolicyState is whether a policy is in force.
type PolicyState string

const (
	PolicyPending PolicyState = "pending"
	PolicyActive  PolicyState = "active"
	PolicyError   PolicyState = "error"
	PolicyDeleted PolicyState = "deleted"
)

// HostState is how a host is. See HostBeat.
type HostState string

const (
	HostStarting HostState = "starting"
	HostReady    HostState = "ready"
	HostLost     HostState = "lost"
)

// SwitchState is whether a switch is connected to the router.
type SwitchState string

const (
	SwitchConnected SwitchState = "connected"
	SwitchLost      SwitchState = "lost"
)

// LinkState is that of a port or an interface.
type LinkState string

const (
	LinkUp   LinkState = "up"
	LinkDown LinkState = "down"
)

// AssignmentState is what a host has made of its assignment.
type AssignmentState string

const (
	AssignmentInstalled AssignmentState = "installed"
	AssignmentPartial   AssignmentState = "partial" // rules name ports that are not there
	AssignmentError     AssignmentState = "error"
)

// States implements State.
func (EndpointState) States() []string {
	return texts(EndpointPending, EndpointUp, EndpointError, EndpointDeleted)
}

// States implements State.
func (ChainState) States() []string { return texts(ChainPending, ChainReady, ChainDegraded) }

// States implements State.
func (PolicyState) States() []string {
	return texts(PolicyPending, PolicyActive, PolicyError, PolicyDeleted)
}

// States implements State.
func (HostState) States() []string { return texts(HostStarting, HostReady, HostLost) }

// States implements State.
func (SwitchState) States() []string { return texts(SwitchConnected, SwitchLost) }

// States implements State.
func (LinkState) States() []string { return texts(LinkUp, LinkDown) }

// States implements State.
func (AssignmentState) States() []string {
	return texts(AssignmentInstalled, AssignmentPartial, AssignmentError)
}

func texts[S ~string](states ...S) []string {
	out := make([]string, len(states))
	for i, s := range states {
		out[i] = string(s)
	}
	return out
}

// ConditionType is what a condition is about.
type ConditionType string

const (
	// ConditionClosed is of a policy that is not in force: its frames are dropped until it is.
	ConditionClosed ConditionType = "Closed"
	// ConditionOpen is of a new policy while some switch or host does not catch its frames yet: they may pass as before.
	ConditionOpen ConditionType = "Open"
	// ConditionPartial is of a policy that is in force without some of its chain's functions.
	ConditionPartial ConditionType = "Partial"
	// ConditionUnselected is of a policy in force across hosts whose chain gives packets other addresses, while the policy selects by the former ones.
	ConditionUnselected ConditionType = "Unselected"
	// ConditionImpaired is of a chain some of whose functions are down, and of a policy in force that such a chain serves.
	ConditionImpaired ConditionType = "Impaired"
	// ConditionFailed is of an endpoint in error, and of a function that could not be made.
	ConditionFailed ConditionType = "Failed"
	// ConditionUnhealthy is of a function that should forward and does not: its process ended, or no probe frame comes through.
	ConditionUnhealthy ConditionType = "Unhealthy"
	// ConditionSilent is of a function that takes frames and hands none on; its image declares no probe.
	ConditionSilent ConditionType = "Silent"
	// ConditionLearning is of a function whose bridge learns addresses where that makes it drop frames.
	ConditionLearning ConditionType = "Learning"
	// ConditionOutdated is of a function that runs as it was before its last change: the change did not come up.
	ConditionOutdated ConditionType = "Outdated"
	// ConditionWaiting is of a chain that is not in force as it is wanted, of a function or endpoint that no host has yet, and of an endpoint of the
	// fabric that has not been found.
	ConditionWaiting ConditionType = "Waiting"
	// ConditionLost is of a host whose agent is silent.
	ConditionLost ConditionType = "Lost"
	// ConditionStarting is of a host whose agent does not know yet how everything on it is.
	ConditionStarting ConditionType = "Starting"
	// ConditionOverclaimed is of a host whose agent says that it has more than what counts.
	ConditionOverclaimed ConditionType = "Overclaimed"
	// ConditionDraining is of a host that is being drained, see HostDrain.
	ConditionDraining ConditionType = "Draining"
	// ConditionIncapable is of a host whose kernel lacks a feature that Weir needs, and of a function whose host has lost its runtime: it is not moved.
	ConditionIncapable ConditionType = "Incapable"
)

// Reason is why a condition holds, in one word.
type Reason string

const (
	ReasonWaiting   Reason = "Waiting"        // a part is not there yet: it will be as wanted once that comes
	ReasonRefused   Reason = "Refused"        // it cannot be in force as it is
	ReasonUnfit     Reason = "Unfit"          // a function has other ports than the chain wants of it
	ReasonRewrites  Reason = "Rewrites"       // a function changes addresses
	ReasonDropped   Reason = "Dropped"        // a function is down, and its frames are dropped
	ReasonBypassed  Reason = "Bypassed"       // a function is down, and its frames go round it
	ReasonNamespace Reason = "Namespace"      // the network namespace is not there
	ReasonUnplaced  Reason = "Unplaced"       // no host can have it
	ReasonMoved     Reason = "Moved"          // another host has it now
	ReasonBridge    Reason = "Bridge"         // a bridge inside of the function
	ReasonDown      Reason = "Down"           // a function is down
	ReasonExited    Reason = "Exited"         // its process ended
	ReasonMemory    Reason = "Memory"         // its process ran out of memory
	ReasonSilent    Reason = "Silent"         // no probe frame, or no sign of life, came
	ReasonRestart   Reason = "Restart"        // it is being restarted
	ReasonCapacity  Reason = "Capacity"       // processors or memory
	ReasonFeature   Reason = "Feature"        // of the kernel
	ReasonRuntime   Reason = "RuntimeMissing" // its host has not, or no longer, what runs it
	ReasonLeaving   Reason = "Leaving"        // functions are moving to other hosts
	ReasonStays     Reason = "Stays"          // functions are left that no other host can have
	ReasonDrained   Reason = "Drained"        // no function is left
	ReasonError     Reason = "Error"          // see the message
)

// Condition is something that programs may want to know of an object beside its state. It is there as long as it holds.
type Condition struct {
	Type    ConditionType `json:"type"`
	Reason  Reason        `json:"reason"`
	Message string        `json:"message,omitempty"` // for people
	Since   time.Time     `json:"since,omitzero"`    // written by the manager
}

// Conditions of an object, at most one of each type.
type Conditions []Condition

// Get finds the condition of a type; nil if it does not hold.
func (c Conditions) Get(t ConditionType) *Condition {
	if i := slices.IndexFunc(c, func(x Condition) bool { return x.Type == t }); i >= 0 {
		return &c[i]
	}
	return nil
}

// Dated gives those that held before, for the same reason, the time since when they do, and all others now.
func (c Conditions) Dated(before Conditions, now time.Time) Conditions {
	if len(c) == 0 {
		return nil
	}
	out := slices.Clone(c)
	for i := range out {
		out[i].Since = now
		if old := before.Get(out[i].Type); old != nil && old.Reason == out[i].Reason && !old.Since.IsZero() {
			out[i].Since = old.Since
		}
	}
	return out
}

// Equal compares them but for their times.
func (c Conditions) Equal(other Conditions) bool {
	return slices.EqualFunc(c, other, func(a, b Condition) bool { return a.Type == b.Type && a.Reason == b.Reason && a.Message == b.Message })
}

// Note adds what becomes of the frames of a policy that is not in force, Closed or Open, with the status' message, which then says so, too. "" adds
// nothing.
func (s *PolicyStatus) Note(t ConditionType, r Reason) {
	if t == "" {
		return
	}
	s.Conditions = append(s.Conditions, Condition{Type: t, Reason: r, Message: s.Message})
	s.Message = strings.ToLower(string(t)) + ": " + s.Message
}

// Say gives the status these conditions and no others. Its message is the first one's.
func (s *FunctionStatus) Say(c ...Condition) { s.Message, s.Conditions = Conditions(c).say() }

// Note adds a condition to the status, in place of a former one of its type.
func (s *FunctionStatus) Note(c Condition) { s.Say(append(s.Conditions.without(c.Type), c)...) }

// Drop takes the condition of a type away.
func (s *FunctionStatus) Drop(t ConditionType) { s.Say(s.Conditions.without(t)...) }

// Say gives the status these conditions and no others. Its message is the first one's.
func (s *ChainStatus) Say(c ...Condition) { s.Message, s.Conditions = Conditions(c).say() }

// Say gives the status these conditions and no others. Its message is the first one's.
func (s *EndpointStatus) Say(c ...Condition) { s.Message, s.Conditions = Conditions(c).say() }

func (c Conditions) say() (string, Conditions) {
	if len(c) == 0 {
		return "", nil
	}
	return c[0].Message, c
}

func (c Conditions) without(t ConditionType) Conditions {
	return slices.DeleteFunc(slices.Clone(c), func(x Condition) bool { return x.Type == t })
}

// Readiness is what an object still lacks: its state and, for people, why. The zero value is an object that is as wanted.
type Readiness struct {
	State   string // "pending", "not healthy", "changing": as wanted before its last change
	Message string
}

// Ready tells that nothing is lacking.
func (r Readiness) Ready() bool { return r.State == "" }

// String is for people.
func (r Readiness) String() string {
	if r.Message == "" {
		return r.State
	}
	return r.State + ", " + r.Message
}

// Ready tells whether the endpoint is up as it is wanted.
func (e Endpoint) Ready() Readiness {
	return readiness(e.Generation, e.Status.ObservedGeneration, e.Status.State, EndpointUp, e.Status.Message)
}

// Ready tells whether the function is in the state in which it is wanted and, if that is started, healthy.
func (f Function) Ready() Readiness {
	want := cmp.Or(f.Spec.State, FunctionStarted)
	r := readiness(f.Generation, f.Status.ObservedGeneration, f.Status.State, want, f.Status.Message)
	if r.Ready() && want == FunctionStarted && !f.Status.Healthy {
		return Readiness{"not healthy", f.Status.Message}
	}
	return r
}

// Ready tells whether all functions of the chain work.
func (c Chain) Ready() Readiness {
	return readiness(c.Generation, c.Status.ObservedGeneration, c.Status.State, ChainReady, c.Status.Message)
}

// Ready tells whether the policy is in force as it is wanted.
func (p Policy) Ready() Readiness {
	return readiness(p.Generation, p.Status.ObservedGeneration, p.Status.State, PolicyActive, p.Status.Message)
}

// Ready tells whether the switch is connected.
func (s Switch) Ready() Readiness {
	return readiness(0, 0, s.Status.State, SwitchConnected, s.Status.Message)
}

// Ready tells whether the host's agent is there and knows how everything is.
func (h Host) Ready() Readiness {
	var message string
	if len(h.Status.Conditions) > 0 {
		message = h.Status.Conditions[0].Message
	}
	return readiness(0, 0, h.Status.State, HostReady, message)
}

func readiness[S ~string](generation, observed int64, state, want S, message string) Readiness {
	switch {
	case state == want && observed >= generation:
		return Readiness{}
	case state == want:
		state = "changing"
	}
	return Readiness{cmp.Or(string(state), "pending"), message}
}
