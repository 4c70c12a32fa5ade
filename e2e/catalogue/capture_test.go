package catalogue

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"weir.dev/weir/e2e/rig"
)

// capturing runs weir capture until it has begun, does something, and gives what it printed and what tshark reads in its file.
func capturing(ctx context.Context, t *testing.T, r *rig.Rig, do func(), args ...string) (said, frames string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "c.pcapng")
	cmd := r.Command(ctx, "", append([]string{r.Bin, "capture", "-w", file, "--duration", "20s"}, args...)...)
	cmd.Env = r.Env()
	var out strings.Builder
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	rig.Eventually(ctx, t, "the capture has begun", func() (bool, string) {
		i, err := os.Stat(file)
		return err == nil && i.Size() > 0 || len(ended) > 0, fmt.Sprint(err)
	})
	do()
	if err := <-ended; err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out.String())
	}
	frames, err := r.Run(ctx, "", "tshark", "-nr", file)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file: %v, %v", info.Mode(), err)
	}
	return out.String(), frames
}

// Both directions are heard at every port, whatever the switch and whoever forwards; a filter is carried out; a flood is bounded, and what is dropped from the capture is
// said.
func TestPortsAreCaptured(t *testing.T) {
	t.Parallel()
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			r.MustApply(ctx, t, r.Endpoints()+
				"functions:\n  fw: {image: firewall, config: {allow: [icmp, udp]}}\n  w: {image: wire}\n  mon: {image: monitor}\n"+
				"chains:\n  c: fw | w | tap:mon\n"+
				"policies:\n  p: {from: alice, to: bob, chain: c, symmetric: true}\n")
			ping := func() {
				if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 2, "0.05"); err != nil {
					t.Error(err)
				}
			}
			for _, port := range []string{"fw", "fw/out", "w/in", "w/out", "mon", "endpoint/bob"} {
				var said, frames string
				counting(func() { said, frames = capturing(ctx, t, r, ping, port, "--count", "4", "--filter", "icmp") })
				if strings.Count(frames, "Echo (ping) request") != 2 || strings.Count(frames, "Echo (ping) reply") != 2 || !strings.Contains(said, "4 frames, 0 dropped") {
					t.Errorf("%s: %s\n%s", port, said, frames)
				}
			}
			// Wider frames are cut, and their length is kept.
			counting(func() {
				_, frames := capturing(ctx, t, r, func() {
					if _, err := r.Run(ctx, r.Alice(), "ping", "-c", "1", "-s", "1000", rig.BobAddr); err != nil {
						t.Error(err)
					}
				}, "fw", "--count", "1", "--snaplen", "60", "--filter", "icmp and greater 500")
				if !strings.Contains(frames, " 1042 ") {
					t.Error(frames)
				}
			})
			// What cannot be is refused.
			for _, args := range [][]string{{"none"}, {"fw/up"}, {"fw/tap"}, {"fw", "--filter", "no such thing"}, {"fw", "--snaplen", "0x"}, {"fw", "--duration", "99h"}} {
				if out, err := r.Weir(ctx, append([]string{"capture", "-w", filepath.Join(t.TempDir(), "x")}, args...)...); err == nil {
					t.Errorf("%v: no error: %s", args, out)
				}
			}
			var said string
			filling(func() {
				said, _ = capturing(ctx, t, r, func() {
					if _, err := r.Run(ctx, r.Alice(), "timeout", "5", "ping", "-q", "-f", "-s", "1400", "-l", "60", "-c", "2000", rig.BobAddr); err != nil {
						t.Error(err)
					}
				}, "w/in", "--bytes", "1000000")
			})
			m := regexp.MustCompile(`^(\d+) frames, (\d+) dropped`).FindStringSubmatch(said)
			if m == nil {
				t.Fatal(said)
			}
			if n, _ := strconv.Atoi(m[1]); n < 600 || n > 1500 {
				t.Errorf("a capture of 1 MB has %d frames of 1442 bytes", n)
			}
		})
	}
}
