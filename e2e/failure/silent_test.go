package failure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/image"
)

// hole is an image without a probe, whose program only sleeps.
func hole(ctx context.Context, t *testing.T) (layout string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"note": "it takes all and hands nothing on\n",
		image.RecipeFile: `
name: hole
tag: "1"
description: Hands nothing on
entrypoint: [/bin/busybox, sleep, "1000000"]
files:
  - {to: /note, from: note}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := image.LoadRecipe(dir)
	if err != nil {
		t.Fatal(err)
	}
	layout = filepath.Join(dir, "images")
	if _, err := r.Build(ctx, layout); err != nil {
		t.Fatal(err)
	}
	return layout
}

// A function that no probe can tell about takes frames and hands none on: it stays healthy, and who operates it is warned, with figures.
func TestWhatHandsNothingOnIsTold(t *testing.T) {
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.Bare(t, rig.Options{Args: []string{"--switch", sw}})
			r.Images = hole(ctx, t)
			if err := r.Up(ctx); err != nil {
				t.Fatal(err)
			}
			r.MustApply(ctx, t, r.Endpoints()+`
functions:
  f: {image: hole}
  w: {image: wire}
chains:
  c: w | f
policies:
  p: {from: alice, to: bob, match: [udp], chain: c}
`)
			s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9000, 100)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = s.Stop() }()
			rig.Eventually(ctx, t, "the warning", func() (bool, string) {
				return len(events(ctx, t, r, "NothingComesBack", "f")) > 0, fmt.Sprintf("%+v", function(ctx, t, r, "f").Status)
			})
			warned := events(ctx, t, r, "NothingComesBack", "f")
			frames := 0
			if _, err := fmt.Sscanf(warned[0].Message, "%d frames went in within", &frames); err != nil || frames < 100 || warned[0].Severity != api.Warning {
				t.Errorf("%v: %+v", err, warned[0])
			}
			if f := function(ctx, t, r, "f"); !f.Status.Healthy || !strings.HasPrefix(f.Status.Message, "nothing comes back: ") {
				t.Errorf("%+v", f.Status)
			}
			for name, says := range map[string]string{"f": "health: process only: its image declares no probe", "w": "health: by probe"} {
				if out, err := r.Weir(ctx, "describe", "function", name); err != nil || !strings.Contains(out, says) {
					t.Errorf("%v: not %q: %s", err, says, out)
				}
			}
			if of := events(ctx, t, r, "NothingComesBack", "w"); len(of) > 0 {
				t.Errorf("of one that hands on: %+v", of)
			}
		})
	}
}

// While somebody waits for a function that runs and never becomes ready he is told why, and at the end again.
func TestWhoWaitsForWhatHangsIsToldWhy(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	const why = "its process runs, but no probe frame has come through: waits for its license"
	for verb, args := range map[string][]string{
		"start": {"function", "start", "starts", "--timeout", "9s"},
		"apply": {"apply", "-f", "-", "--timeout", "9s"},
	} {
		name := map[string]string{"start": "starts", "apply": "applied"}[verb]
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			create := []string{"function", "create", name, "--image", "firewall", "--wait=false", "--", "/bin/busybox", "sh", "-c", "echo waits for its license; exec sleep 100000"}
			if _, err := r.Weir(ctx, create...); err != nil {
				t.Fatal(err)
			}
			_, err := r.WeirInput(ctx, "functions: {"+name+": {image: firewall, state: started, command: [/bin/busybox, sh, -c, 'echo waits for its license; exec sleep 100000']}}", args...)
			var exit *rig.ExitError
			if !errors.As(err, &exit) || exit.Code != command.ExitTimeout {
				t.Fatalf("%s: %v", verb, err)
			}
			for _, text := range []string{"weir: function/" + name + ": not ready after ", why, verb + ": not done after 9s", "weir function logs " + name, "weir function exec " + name} {
				if !strings.Contains(exit.Stderr, text) {
					t.Errorf("%s does not say %q: %s", verb, text, exit.Stderr)
				}
			}
		})
	}
}
