package runtimes

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// An operator removes the container of a function from Docker's engine: Weir makes another one by itself, and the chain is as before.
func TestAContainerRemovedByHandComesBack(t *testing.T) {
	host := rig.DockerEngine(t)
	t.Setenv("DOCKER_HOST", host)
	r, ctx := rig.ForTest(t, rig.Options{})
	docker := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(ctx, "docker", append([]string{"--host", host}, args...)...)
		cmd.Env = append(os.Environ(), "DOCKER_CONFIG="+t.TempDir())
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("docker %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	containers := func() []string { return strings.Fields(docker("ps", "--all", "--no-trunc", "--format", "{{.ID}}")) }
	r.MustApply(ctx, t, r.Endpoints()+`functions:
  fw: {image: firewall, runtime: docker, on_fail: drop, config: {default: accept, deny: [udp/9001]}}
chains:
  c: fw
policies:
  p: {from: alice, to: bob, match: [icmp, udp], chain: c}
`)
	if !passes(t, r, 9000) || passes(t, r, 9001) {
		t.Fatal("the firewall does not work before its container is removed")
	}
	for round := range 2 {
		before, had := status(ctx, t, r, "fw"), containers()
		if len(had) != 1 {
			t.Fatalf("round %d: the engine has the containers %q, want that of the function alone", round, had)
		}
		docker("rm", "--force", had[0])
		begun := time.Now()
		healed, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		rig.Eventually(healed, t, "the function runs in another container", func() (bool, string) {
			var f api.Function
			err := r.Get(ctx, &f, "function", "fw")
			s := f.Status
			return err == nil && s.Healthy && s.State == "started" && s.PID != 0 && s.PID != before.PID && s.Restarts > before.Restarts, fmt.Sprintf("%+v, %v", s, err)
		})
		t.Logf("round %d: another container after %v", round, time.Since(begun).Round(time.Millisecond))
		if now := containers(); len(now) != 1 || now[0] == had[0] {
			t.Errorf("round %d: the engine has the containers %q, had %q", round, now, had)
		}
		if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.02"); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		if !passes(t, r, 9000) || passes(t, r, 9001) {
			t.Errorf("round %d: the firewall's rules do not hold in the new container", round)
		}
	}
}
