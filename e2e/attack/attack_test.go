//go:build attack

package attack

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/e2e/rig"
)

// maxResident is what the daemon may use at any time, in KiB.
const maxResident = 300 << 10

// Every request that the OpenAPI document allows, and many that it does not: no answer of 5xx, none that the document does not know, nothing refused that
// it allows or taken that it forbids; and little memory. ATTACK says for how long, SEED with which requests.
func TestAPIUnderAttack(t *testing.T) {
	long, err := time.ParseDuration(cmp.Or(os.Getenv("ATTACK"), "60s"))
	if err != nil {
		t.Fatal(err)
	}
	program, err := filepath.Abs("../../build/attack/bin/schemathesis")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: run `./peers.sh attack`", err)
	}
	data, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	r, ctx := rig.ForTest(t, rig.Options{})
	secret, err := r.Weir(ctx, "token", "create", "attacker", "--role", "admin") // its own: see testdata/hooks.py
	if err != nil {
		t.Fatal(err)
	}
	cmd := r.Command(t.Context(), "", program, "--config-file", filepath.Join(data, "schemathesis.toml"), "run", "http://127.0.0.1:7411/v1/openapi.json",
		"-H", "Authorization: Bearer "+strings.TrimSpace(secret), "--checks", "all", "--phases", "examples,coverage,fuzzing", "--seed", cmp.Or(os.Getenv("SEED"), "1"),
		"--max-time", strconv.Itoa(int(long.Seconds())), "--request-timeout", "10", "--continue-on-failure", "--no-color")
	cmd.Dir = t.TempDir() // it keeps examples there
	cmd.Env = append(os.Environ(), "PYTHONPATH="+data, "SCHEMATHESIS_HOOKS=hooks")
	out, err := cmd.CombinedOutput()
	said := string(out)
	_, summary, _ := strings.Cut(said, "Test cases:")
	t.Logf("%s; at most %d KiB resident", strings.Join(strings.Fields(summary), " "), resident(t, r.PID()))
	if err != nil || !strings.Contains(said, "generated") {
		file := filepath.Join(os.TempDir(), "weir-attack.txt")
		_ = os.WriteFile(file, out, 0o600)
		t.Errorf("%v: see %s\n%s", err, file, said[:min(len(said), 20_000)])
	}
	if most := resident(t, r.PID()); most > maxResident {
		t.Errorf("the daemon used %d KiB: want at most %d", most, maxResident)
	}
	if _, err := r.Weir(t.Context(), "status"); err != nil { // ctx may be over: an attack takes as long as it is told to
		t.Errorf("afterwards: %v", err)
	}
}

// resident is the most memory that a process has had, in KiB.
func resident(t *testing.T, pid int) int {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "VmHWM:"); ok {
			n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no VmHWM")
	return 0
}
