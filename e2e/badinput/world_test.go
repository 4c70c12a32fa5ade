// Package badinput gives the real binary what is wrong, missing, taken, full or broken. Each case has to say what, where and what
// would be right, to end with the documented code, and to leave everything as it was.
package badinput

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

const chain = `
functions:
  fw: {image: firewall, config: {allow: [udp, tcp, icmp]}}
  w1: {image: wire}
chains:
  web: fw | w1
policies:
  guests: {from: alice, to: bob, match: [udp, icmp, tcp/80], chain: web}
`

// world is what bad input may not change: the intent, the rules and ports in force, the links.
type world struct {
	Objects map[string]string
	Rules   []string
	Ports   []string
	Version uint32
	Links   []string
}

func look(ctx context.Context, t *testing.T, r *rig.Rig) world {
	t.Helper()
	w := world{Objects: map[string]string{}, Links: links(t, r)}
	var all map[string]struct {
		Items []struct {
			api.Meta
			Spec json.RawMessage `json:"spec"`
		} `json:"items"`
	}
	if err := r.Get(ctx, &all, "all"); err != nil {
		t.Fatal(err)
	}
	for kind, list := range all {
		for _, o := range list.Items {
			w.Objects[kind+"/"+o.Name] = fmt.Sprintf("%s generation %d deleting %v: %s", o.UID, o.Generation, o.Deleting != nil, compact(t, o.Spec))
		}
	}
	if len(w.Objects) < 6 {
		t.Fatalf("too little to compare: %v", w.Objects)
	}
	var c api.Counters
	if err := r.Get(ctx, &c, "counters"); err != nil {
		t.Fatal(err)
	}
	w.Version = c.Version
	for _, x := range c.Rules {
		w.Rules = append(w.Rules, x.Cookie+" "+x.Note)
	}
	for _, p := range c.Ports {
		w.Ports = append(w.Ports, fmt.Sprint(p.Port, p.Name, p.Link, p.State))
	}
	slices.Sort(w.Rules)
	return w
}

func compact(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// links are those of the three namespaces.
func links(t *testing.T, r *rig.Rig) []string {
	t.Helper()
	var out []string
	for _, space := range []string{r.Netns, r.Alice(), r.Bob()} {
		s, err := netns.At(space)
		if err != nil {
			t.Fatal(err)
		}
		all, err := s.Links("")
		if err := first(err, s.Close()); err != nil {
			t.Fatal(err)
		}
		for _, l := range all {
			out = append(out, fmt.Sprintf("%s: %+v", space, l))
		}
	}
	slices.Sort(out)
	return out
}

// same compares the world with what it was.
func same(ctx context.Context, t *testing.T, r *rig.Rig, before world) {
	t.Helper()
	if d := cmp.Diff(before, look(ctx, t, r)); d != "" {
		t.Errorf("not as before (-before +after):\n%s", d)
	}
}

// refused checks a command's end: its code, and all that has to be said.
func refused(t *testing.T, err error, code int, say ...string) {
	t.Helper()
	var exit *rig.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("not refused: %v", err)
	}
	if exit.Code != code {
		t.Errorf("exit code %d, want %d:\n%s", exit.Code, code, exit.Stderr)
	}
	for _, s := range say {
		if !strings.Contains(exit.Stderr, s) {
			t.Errorf("it does not say %q:\n%s", s, exit.Stderr)
		}
	}
	if strings.Contains(exit.Stderr, "panic") || strings.Contains(exit.Stderr, "goroutine ") {
		t.Errorf("a crash:\n%s", exit.Stderr)
	}
	if testing.Verbose() {
		t.Logf("code %d: %s", exit.Code, strings.TrimSpace(exit.Stderr))
	}
}

// flowing expects that pings pass the chain.
func flowing(ctx context.Context, t *testing.T, r *rig.Rig) {
	t.Helper()
	if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.02"); err != nil {
		t.Errorf("traffic does not flow: %v", err)
	}
}

// settled waits until everything is well.
func settled(ctx context.Context, t *testing.T, r *rig.Rig) {
	t.Helper()
	rig.Eventually(ctx, t, "all is well", func() (bool, string) {
		var s struct {
			Healthy bool `json:"healthy"`
		}
		out, err := r.Weir(ctx, "status", "-o", "json")
		if err != nil {
			return false, err.Error()
		}
		if err := json.Unmarshal([]byte(out), &s); err != nil {
			return false, err.Error()
		}
		return s.Healthy, out
	})
}

// exists tells whether a path does.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// The documented codes, by shorter names.
const (
	failure     = command.ExitFailure
	usage       = command.ExitUsage
	invalid     = command.ExitInvalid
	notFound    = command.ExitNotFound
	conflict    = command.ExitConflict
	unreachable = command.ExitUnreachable
	forbidden   = command.ExitForbidden
	timeout     = command.ExitTimeout
	full        = command.ExitFull
)

func splitLines(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") }
