package cli

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

// nouns lists every kind, in the order of `weir get all`.
func nouns() []noun {
	return []noun{endpoints(), functions(), chains(), policies(), hosts(nil), switches(), assignments(), operations(), events()}
}

// state is a status word, or what the object's going says.
func state[S ~string](m api.Meta, s S) string {
	switch {
	case m.Deleting != nil:
		return "deleting"
	case s == "":
		return "pending"
	}
	return string(s)
}

func since(t time.Time) string { return command.Age(t, time.Now()) }

func number[N int | int64 | uint32 | uint64](n N) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func decimal(x float64) string {
	if x == 0 {
		return ""
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func endpoints() noun {
	return stored(nounOf[api.Endpoint]{
		k: api.KindEndpoint, other: []string{"ep", "eps"},
		columns: []column[api.Endpoint]{
			{head: "NAME", cell: func(e api.Endpoint) string { return e.Name }},
			{head: "STATE", state: true, cell: func(e api.Endpoint) string { return state(e.Meta, e.Status.State) }},
			{head: "PORT", cell: func(e api.Endpoint) string { return number(e.Status.Port) }},
			{head: "NETNS", cell: func(e api.Endpoint) string { return e.Spec.Netns }},
			{head: "INTERFACE", cell: func(e api.Endpoint) string { return e.Spec.Interface }},
			{head: "ADDRESS", cell: func(e api.Endpoint) string {
				if n := len(e.Spec.Addresses); n > 0 && e.Spec.Address != "" {
					return fmt.Sprintf("%s +%d", e.Spec.Address, n)
				} else if n > 0 {
					return strings.Join(e.Spec.Addresses, ",")
				}
				return e.Spec.Address
			}},
			{head: "MAC", wide: true, cell: func(e api.Endpoint) string { return cmp.Or(e.Status.MAC, e.Spec.MAC) }},
			{head: "LINK", wide: true, cell: func(e api.Endpoint) string { return e.Status.Link }},
			{head: "AT", cell: where},
			{head: "AGE", cell: func(e api.Endpoint) string { return since(e.Created) }},
			{head: "MESSAGE", cell: func(e api.Endpoint) string { return e.Status.Message }},
		},
	}, (*api.Client).Endpoints)
}

func functions() noun {
	return stored(nounOf[api.Function]{
		k: api.KindFunction, other: []string{"fn", "fns", "nf", "nfs"},
		columns: []column[api.Function]{
			{head: "NAME", cell: func(f api.Function) string { return f.Name }},
			{head: "STATE", state: true, cell: func(f api.Function) string { return state(f.Meta, f.Status.State) }},
			{head: "HEALTHY", state: true, cell: func(f api.Function) string { return health(f) }},
			{head: "IMAGE", cell: func(f api.Function) string { return f.Spec.Image }},
			{head: "HOST", cell: func(f api.Function) string { return f.At() }},
			{head: "PORTS", cell: func(f api.Function) string { return ports(f.Status.Ports) }},
			{head: "RESTARTS", cell: func(f api.Function) string { return fmt.Sprint(f.Status.Restarts) }},
			{head: "RUNTIME", wide: true, cell: func(f api.Function) string { return cmp.Or(f.Status.Runtime, f.Spec.Runtime) }},
			{head: "PID", wide: true, cell: func(f api.Function) string { return number(f.Status.PID) }},
			{head: "CPUS", wide: true, cell: func(f api.Function) string { return cmp.Or(f.Spec.CPUs, decimal(f.Status.Limits.CPUs)) }},
			{head: "MEMORY", wide: true, cell: func(f api.Function) string { return cmp.Or(f.Spec.Memory, command.Size(f.Status.Limits.MemoryBytes)) }},
			{head: "DISK", wide: true, cell: func(f api.Function) string {
				if n := f.Status.Limits.DiskBytesPerS; n > 0 {
					return command.Size(n) + "/s"
				}
				return ""
			}},
			{head: "PROCESSES", wide: true, cell: func(f api.Function) string { return number(f.Status.Limits.Processes) }},
			{head: "ON_FAIL", wide: true, cell: func(f api.Function) string { return cmp.Or(string(f.Spec.OnFail), string(api.OnFailDrop)) }},
			{head: "PROBE", wide: true, cell: func(f api.Function) string {
				if f.Status.RTTns == 0 {
					return ""
				}
				return time.Duration(f.Status.RTTns).Round(100 * time.Nanosecond).String()
			}},
			{head: "DIGEST", wide: true, cell: func(f api.Function) string { return command.ShortDigest(f.Status.Image) }},
			{head: "AGE", cell: func(f api.Function) string { return since(f.Created) }},
			{head: "MESSAGE", cell: func(f api.Function) string { return f.Status.Message }},
		},
	}, (*api.Client).Functions)
}

// health of a function that should run; of the others there is nothing to say.
func health(f api.Function) string {
	if f.Status.State != api.FunctionStarted && f.Status.State != api.FunctionFailed {
		return ""
	}
	return yesNo(f.Status.Healthy)
}

func ports(p api.FunctionPorts) string {
	switch {
	case p.Tap != 0:
		return fmt.Sprintf("tap %d", p.Tap)
	case p.In != 0:
		return fmt.Sprintf("%d > %d", p.In, p.Out)
	}
	return ""
}

func chains() noun {
	return stored(nounOf[api.Chain]{
		k: api.KindChain,
		columns: []column[api.Chain]{
			{head: "NAME", cell: func(x api.Chain) string { return x.Name }},
			{head: "STATE", state: true, cell: func(x api.Chain) string { return state(x.Meta, x.Status.State) }},
			{head: "PATH", cell: func(x api.Chain) string { return x.Spec.Path }},
			{head: "AGE", cell: func(x api.Chain) string { return since(x.Created) }},
			{head: "MESSAGE", cell: func(x api.Chain) string { return x.Status.Message }},
		},
	}, (*api.Client).Chains)
}

func policies() noun {
	return stored(nounOf[api.Policy]{
		k: api.KindPolicy, other: []string{"pol"},
		columns: []column[api.Policy]{
			{head: "NAME", cell: func(p api.Policy) string { return p.Name }},
			{head: "STATE", state: true, cell: func(p api.Policy) string { return state(p.Meta, p.Status.State) }},
			{head: "MODE", cell: func(p api.Policy) string { return string(p.Spec.ModeOrDefault()) }},
			{head: "FROM", cell: func(p api.Policy) string { return cmp.Or(p.Spec.From, "any") }},
			{head: "TO", cell: func(p api.Policy) string { return cmp.Or(p.Spec.To, "any") }},
			{head: "MATCH", cell: func(p api.Policy) string { return cmp.Or(strings.Join(p.Spec.Match, ","), "all") }},
			{head: "CHAIN", cell: func(p api.Policy) string { return p.Spec.Chain }},
			{head: "PRIORITY", cell: func(p api.Policy) string { return number(p.Spec.PriorityOrDefault()) }},
			{head: "MATCH_BY", wide: true, cell: func(p api.Policy) string { return string(p.Spec.MatchBy) }},
			{head: "SYMMETRIC", wide: true, cell: func(p api.Policy) string { return yesNo(p.Spec.IsSymmetric()) }},
			{head: "RULES", wide: true, cell: func(p api.Policy) string { return number(p.Status.Rules) }},
			{head: "RENDERED", wide: true, cell: func(p api.Policy) string { return strings.Join(p.Status.RenderedPath, " > ") }},
			{head: "AGE", cell: func(p api.Policy) string { return since(p.Created) }},
			{head: "MESSAGE", cell: func(p api.Policy) string { return p.Status.Message }},
		},
	}, (*api.Client).Policies)
}

func operations() noun {
	return nounOf[api.Operation]{
		k: api.KindOperation, other: []string{"op", "ops"},
		reader: func(c *api.Client) api.Reader[api.Operation] { return c.Operations() },
		columns: []column[api.Operation]{
			{head: "NAME", cell: func(o api.Operation) string { return o.Name }},
			{head: "STATE", state: true, cell: func(o api.Operation) string { return string(o.State) }},
			{head: "VERB", cell: func(o api.Operation) string { return o.Verb }},
			{head: "OBJECT", cell: func(o api.Operation) string { return string(o.Kind) + "/" + o.Object }},
			{head: "TOOK", cell: func(o api.Operation) string {
				if o.Finished.IsZero() {
					return ""
				}
				return o.Finished.Sub(o.Started).Round(time.Millisecond).String()
			}},
			{head: "AGE", cell: func(o api.Operation) string { return since(o.Started) }},
			{head: "MESSAGE", cell: func(o api.Operation) string { return o.Message }},
		},
	}
}

func events() noun {
	return nounOf[api.Event]{
		k: api.KindEvent, other: []string{"ev"},
		reader: func(c *api.Client) api.Reader[api.Event] { return c.Events() },
		columns: []column[api.Event]{
			{head: "TIME", cell: func(e api.Event) string { return e.Time.Local().Format("2006-01-02 15:04:05.000") }},
			{head: "SEVERITY", state: true, cell: func(e api.Event) string { return string(e.Severity) }},
			{head: "REASON", cell: func(e api.Event) string { return e.Reason }},
			{head: "OBJECT", cell: func(e api.Event) string { return eventObject(e) }},
			{head: "HOST", wide: true, cell: func(e api.Event) string { return e.Host }},
			{head: "MESSAGE", cell: func(e api.Event) string { return eventMessage(e) }},
		},
	}
}

func eventObject(e api.Event) string {
	if e.Kind == "" {
		return e.Object
	}
	return string(e.Kind) + "/" + e.Object
}

func eventMessage(e api.Event) string {
	text := e.Message
	if e.OutageNs != 0 {
		text += fmt.Sprintf(" (outage %v)", time.Duration(e.OutageNs).Round(10*time.Microsecond))
	}
	if e.Count > 1 {
		text += fmt.Sprintf(" (x%d over %s)", e.Count, command.Age(e.First, e.Time))
	}
	return text
}
