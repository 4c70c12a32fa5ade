package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
)

// world is what an agent of host h1 knows, in lines:
//
//	endpoint alice h1 joined     of a host, "-" of none; joined: it is a port of the switch
//	function fw h1 up bypass     up: its ports are there and it was up; bypass: on_fail
//	chain c fw | w1              deleting at the end
//	policy p alice bob c h1      from, to, chain and owner: a host, router, or "-" for nobody; replica, deleting at the end
//	policy p alice bob c h1 after router   the second decision; the first one said router. A number behind it: the decision's
//	assignment 2 1               of the router, which knows of the second decision and has taken over what follows from the first
//	caught p                     the assignment has a rule that catches frames of p
type world string

func (w world) read(t *testing.T) (share, map[string]view, map[string]bool) {
	t.Helper()
	all := state{endpoints: map[string]api.Endpoint{}, functions: map[string]api.Function{}, chains: map[string]api.Chain{}, policies: map[string]api.Policy{}}
	views, joined := map[string]view{}, map[string]bool{}
	at := func(host string) *api.Placement {
		switch host {
		case "-":
			return nil
		case "router":
			return &api.Placement{Router: true}
		}
		return &api.Placement{Host: host}
	}
	now := time.Now()
	for line := range strings.Lines(string(w)) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		has := func(word string) bool { return slices.Contains(f[2:], word) }
		var m api.Meta
		if len(f) > 2 && has("deleting") {
			m.Deleting = &now
		}
		switch m.Name = f[1]; f[0] {
		case "endpoint":
			all.endpoints[f[1]] = api.Endpoint{Meta: m, Placement: at(f[2])}
			joined[f[1]] = has("joined")
		case "function":
			s := api.FunctionSpec{}
			if has("bypass") {
				s.OnFail = api.OnFailBypass
			}
			all.functions[f[1]] = api.Function{Meta: m, Placement: at(f[2]), Spec: s}
			if f[2] == "h1" {
				views[f[1]] = view{placed: has("up"), wasUp: has("up"), status: api.FunctionStatus{Healthy: has("up")}, onFail: s.OnFail}
			}
		case "chain":
			all.chains[f[1]] = api.Chain{Meta: m, Spec: api.ChainSpec{Path: strings.TrimSuffix(strings.Join(f[2:], " "), " deleting")}}
		case "policy":
			s := api.PolicySpec{From: f[2], To: f[3], Chain: f[4]}
			if has("replica") {
				s.Mode = api.ModeReplica
			}
			p := at(f[5])
			if p != nil {
				p.Decision = 1
			}
			if i := slices.Index(f, "after"); i > 0 {
				p.Decision = 2
				if len(f) > i+2 {
					if _, err := fmt.Sscan(f[i+2], &p.Decision); err != nil {
						t.Fatal(err)
					}
				}
				if p.FormerRouter = f[i+1] == "router"; !p.FormerRouter {
					p.FormerHost = f[i+1]
				}
			}
			all.policies[f[1]] = api.Policy{Meta: m, Placement: p, Spec: s}
		case "assignment":
			var a api.AssignmentSpec
			if _, err := fmt.Sscan(f[1]+" "+f[2], &a.Known, &a.Taken); err != nil {
				t.Fatal(err)
			}
			all.assignment = &api.Assignment{Spec: a}
		case "caught":
			all.assignment.Spec.Rules = append(all.assignment.Spec.Rules, api.HostRule{Stage: "egress", Policy: f[1]},
				api.HostRule{Stage: "ingress", Match: api.HostMatch{InPort: "function/fw/out"}, Policy: f[1]})
		default:
			t.Fatal(line)
		}
	}
	return New(Options{Host: "h1"}).mine(all), views, joined
}

// inForceNow is a choice in lines: "chain c: fw | w1", "policy p: alice bob c", "closed p", "waits p: why".
func inForceNow(c choice) (out []string) {
	for name, x := range c.chains {
		out = append(out, fmt.Sprintf("chain %s: %s", name, x.Path))
	}
	for name, p := range c.policies {
		out = append(out, fmt.Sprintf("policy %s: %s %s %s", name, p.From, p.To, p.Chain))
	}
	for name := range c.closed {
		out = append(out, "closed "+name)
	}
	for name, why := range c.waitingPolicy {
		out = append(out, fmt.Sprintf("waits %s: %s", name, why))
	}
	slices.Sort(out)
	return out
}

const (
	ends   = "endpoint alice h1 joined\nendpoint bob h1 joined\n"
	policy = "policy p alice bob c h1\n"
	works  = ends + "function fw h1 up\nchain c fw\n" + policy
	routed = ends + "function fw h1 up\nchain c fw\npolicy p alice bob c router\n"
	taken  = ends + "function fw h1 up\nchain c fw\npolicy p alice bob c router after h1\n"
	again  = ends + "function fw h1 up\nchain c fw\npolicy p alice bob c h1 after router 3\n"
	given  = ends + "function fw h1 up\nchain c fw\npolicy p alice bob c h1 after router\n"
)

// What comes into force, step by step, each from what the one before has left.
func TestChoose(t *testing.T) {
	type step struct {
		world world
		want  []string
	}
	inForce := []string{"chain c: fw", "policy p: alice bob c"}
	for name, steps := range map[string][]step{
		"a new policy is closed until its function is up": {
			{ends + "function fw h1\nchain c fw\n" + policy, []string{"closed p", "waits p: chain c: waiting for function fw"}},
			{works, inForce},
			{ends + "function fw h1\nchain c fw\n" + policy, inForce}, // its switch does what on_fail says
		},
		"one that fails open lets frames pass meanwhile": {
			{ends + "function fw h1 bypass\nchain c fw\n" + policy, []string{"waits p: chain c: waiting for function fw"}},
		},
		"what may be left out is not waited for where something else closes": {
			{ends + "function fw h1 up\nfunction w1 h1 bypass\nchain c fw | w1\n" + policy, []string{"chain c: fw | w1", "policy p: alice bob c", "waits p: chain c: waiting for function w1"}},
		},
		"copies close nothing": {
			{ends + "function mon h1\nchain c tap:mon\npolicy p alice bob c h1 replica\n", []string{"waits p: chain c: waiting for function mon"}},
		},
		"a policy waits for its endpoint": {
			{"endpoint alice h1 joined\nendpoint bob h1\nfunction fw h1 up\nchain c fw\n" + policy, []string{"chain c: fw", "closed p", "waits p: waiting for endpoint bob"}},
			{works, inForce},
			{"endpoint alice h1 joined\nendpoint bob h1\nfunction fw h1 up\nchain c fw\n" + policy, []string{"chain c: fw", "closed p", "waits p: waiting for endpoint bob"}},
		},
		"a chain that is edited stays as it was until its new functions are up": {
			{works, inForce},
			{ends + "function fw h1 up\nfunction w1 h1\nchain c fw | w1\n" + policy, []string{"chain c: fw", "policy p: alice bob c", "waits p: chain c: waiting for function w1"}},
			{ends + "function fw h1 up\nfunction w1 h1 up\nchain c fw | w1\n" + policy, []string{"chain c: fw | w1", "policy p: alice bob c"}},
		},
		"a policy that comes to a chain takes its wanted form": {
			{works, inForce},
			{ends + "function fw h1 up\nfunction w1 h1\nchain c fw | w1\n" + policy + "policy q any alice c h1\n",
				[]string{"chain c: fw", "closed q", "policy p: alice bob c", "waits p: chain c: waiting for function w1", "waits q: chain c: waiting for function w1"}},
		},
		"a function leaves one chain and joins another in one step": {
			{works, inForce},
			{ends + "function fw h1 up\nfunction w1 h1\nchain c w1\nchain d fw\n" + policy + "policy q any alice d h1\n",
				[]string{"chain c: fw", "closed q", "policy p: alice bob c", "waits p: chain c: waiting for function w1", "waits q: chain d: waiting for function fw, which still serves chain c"}},
			{ends + "function fw h1 up\nfunction w1 h1 up\nchain c w1\nchain d fw\n" + policy + "policy q any alice d h1\n",
				[]string{"chain c: w1", "chain d: fw", "policy p: alice bob c", "policy q: any alice d"}},
		},
		"two chains exchange functions in one step": {
			{ends + "function fw h1 up\nfunction w1 h1 up\nchain c fw\nchain d w1\n", []string{"chain c: fw", "chain d: w1"}},
			{ends + "function fw h1 up\nfunction w1 h1 up\nchain c w1\nchain d fw\n", []string{"chain c: w1", "chain d: fw"}},
		},
		"what is deleted goes at once, its chain with its last policy": {
			{works, inForce},
			{ends + "function fw h1 up\nchain c fw deleting\n" + policy, inForce},
			{ends + "function fw h1 up\nchain c fw deleting\npolicy p alice bob c h1 deleting\n", nil},
		},
		"the router takes a policy over: it stays in force until then": {
			{works, inForce},
			{taken, inForce},
			{taken + "assignment 1 1\n", inForce},
			{taken + "assignment 2 1\n", inForce},
			{taken + "assignment 2 2\n", []string{"chain c: fw"}},
		},
		"or until the router's rules catch its frames": {
			{works, inForce},
			{taken + "assignment 2 1\ncaught p\n", []string{"chain c: fw"}},
		},
		"one that was not in force is closed until then": {
			{world(strings.Replace(taken, "fw h1 up", "fw h1", 1)), []string{"closed p"}},
			{world(strings.Replace(taken, "fw h1 up", "fw h1", 1) + "assignment 2 1\n"), []string{"closed p"}},
			{world(strings.Replace(taken, "fw h1 up", "fw h1", 1) + "assignment 2 2\n"), nil},
		},
		"and gives it back: it is the router's until the assignment follows that": {
			{routed + "assignment 1 1\ncaught p\n", []string{"chain c: fw"}},
			{given + "assignment 1 1\ncaught p\n", []string{"chain c: fw"}},
			{given + "assignment 1 1\n", []string{"chain c: fw", "closed p"}},
			{given + "assignment 2 2\n", inForce},
		},
		"and gives it back before it has taken it over: it is closed until the assignment follows that": {
			{works, inForce},
			{taken + "assignment 1 1\n", inForce},
			{again + "assignment 1 1\n", []string{"chain c: fw", "closed p"}},
			{again + "assignment 2 2\n", []string{"chain c: fw", "closed p"}},
			{again + "assignment 3 3\n", inForce},
		},
		"and gives one back that it never had in force: it stays closed": {
			{routed + "assignment 0 0\n", []string{"chain c: fw", "closed p"}},
			{given + "assignment 0 0\n", []string{"chain c: fw", "closed p"}},
			{given + "assignment 2 2\n", inForce},
		},
		"the router's policy is closed here until the assignment follows that": {
			{ends + "function fw h2\nchain c fw\npolicy p alice bob c router\n", []string{"closed p"}},
			{ends + "function fw h2\nchain c fw\npolicy p alice bob c router\nassignment 0 0\n", []string{"closed p"}},
			{ends + "function fw h2\nchain c fw\npolicy p alice bob c router\nassignment 1 1\n", nil},
		},
		"its rules catch the frames of a policy that has been another's": {
			{ends + "function fw h2\nchain c fw\npolicy p alice bob c router after h2\nassignment 1 1\ncaught p\n", nil},
		},
		"what another host has steered is not in force here": {
			{works, inForce},
			{ends + "function fw h1 up\nchain c fw\npolicy p alice bob c router after h2\n", []string{"chain c: fw", "closed p"}},
		},
		"another host steers it now": {
			{works, inForce},
			{"endpoint alice h2\nendpoint bob h2\nfunction fw h2\nchain c fw\npolicy p alice bob c h2\n", []string{"closed p"}},
		},
		"nobody has decided: what is in force stays, what is new is closed": {
			{works, inForce},
			{ends + "function fw h1 up\nchain c fw\npolicy p alice bob c -\npolicy q any alice c -\n", append([]string{"chain c: fw", "closed q"}, inForce[1:]...)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var now choice
			for i, s := range steps {
				want, views, joined := s.world.read(t)
				before := fmt.Sprint(now.chains, now.policies)
				next := choose(want, views, joined, now)
				if fmt.Sprint(now.chains, now.policies) != before {
					t.Fatal("what was in force has been written to")
				}
				if d := cmp.Diff(s.want, inForceNow(next)); d != "" {
					t.Fatalf("step %d: -want +got\n%s", i, d)
				}
				now = next
			}
		})
	}
}
