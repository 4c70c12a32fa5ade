package badinput

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir.dev/weir/e2e/rig"
)

// A function's process is root in its container. What it is given of the host it can use, not change: neither put files where the host has its memory,
// nor lay a link where the agent is about to make a socket.
func TestFunctionChangesNothingOfTheHost(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, r.Endpoints()+`
functions:
  fw: {image: firewall, config: {allow: [udp]}}
  evil:
    image: monitor
    command: [sh, -c, "for f in /run/weir /etc/weir; do touch $f/x; rm -f $f/*; ln -s /etc/shadow $f/link; mkdir $f/d; done; echo tried; exec sleep 100000"]
chains:
  only: fw
policies:
  all: {from: alice, to: bob, match: [icmp], chain: only}
`)
	rig.Eventually(ctx, t, "the function tries", func() (bool, string) {
		out, err := r.Weir(ctx, "function", "logs", "evil")
		return err == nil && strings.Contains(out, "tried"), out
	})
	for dir, want := range map[string][]string{"run": {"events.sock", "metrics.sock"}, "etc": {"config.json", "probe"}} {
		list, err := os.ReadDir(filepath.Join("/run/weir", r.Name, "functions", "evil", dir))
		var names []string
		for _, e := range list {
			names = append(names, e.Name())
		}
		if err != nil || !slices.Equal(names, want) {
			t.Errorf("in %s: %v, %v; want %v only", dir, names, err, want)
		}
	}
	// The events' socket is there to be used, from where nothing can be written: the firewall raises an event at it.
	rig.Eventually(ctx, t, "the firewall's event", func() (bool, string) {
		_, _ = r.Run(ctx, r.Alice(), "ping", "-c1", "-W1", rig.BobAddr) // is not let through
		out, err := r.Weir(ctx, "events")
		return err == nil && strings.Contains(out, "TrafficDenied"), out
	})
}
