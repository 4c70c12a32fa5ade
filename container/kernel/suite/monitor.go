package suite

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
)

// MonitorKilled is for an engine whose program stays beside each container, as the parent of the container's first process: killed, it takes nothing with
// it. The container runs, is entered, ends as it is told, and can be removed.
func (k Kit) MonitorKilled(t *testing.T) {
	inst := NewInstance(t)
	r := k.open(t, inst, kernel.Options{})
	defer r.Close()
	defer func() { must(t, r.Destroy(context.Background())) }()
	spec := container.Spec{ID: "a", Rootfs: Rootfs(t), ReadOnly: true, Args: sh("trap 'exit 6' TERM; while :; do sleep 1000 & wait; done")}
	for round := range 20 {
		must(t, r.Create(t.Context(), spec))
		st, err := r.Status(t.Context(), "a")
		must(t, err)
		if round%2 == 0 { // before the start, and after it
			killMonitor(t, st.PID)
		}
		must(t, r.Start(t.Context(), "a"))
		if round%2 == 1 {
			killMonitor(t, st.PID)
		}
		var out bytes.Buffer
		code, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"echo", "inside"}, Stdout: &out})
		if err != nil || code != 0 || out.String() != "inside\n" {
			t.Fatalf("round %d: exit code %d, %v, %q", round, code, err, out.String())
		}
		must(t, r.Stop(t.Context(), "a", 10*time.Second))
		if st, err := r.Status(t.Context(), "a"); err != nil || st.State != container.Stopped || st.ExitCode != 6 {
			t.Fatalf("round %d: %+v, %v", round, st, err)
		}
		must(t, r.Delete(t.Context(), "a"))
	}
}

// killMonitor kills the parent of a process.
func killMonitor(t *testing.T, pid int) {
	t.Helper()
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	must(t, err)
	_, rest, _ := strings.Cut(string(raw), "\nPPid:")
	monitor, err := strconv.Atoi(strings.Fields(rest)[0])
	must(t, err)
	if monitor <= 1 || monitor == os.Getpid() {
		t.Fatalf("process %d has parent %d: no program of the engine is beside it", pid, monitor)
	}
	must(t, unix.Kill(monitor, unix.SIGKILL))
	eventually(t, "the end of the engine's program", func() bool {
		raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		return err != nil || !strings.Contains(string(raw), "\nPPid:\t"+strconv.Itoa(monitor)+"\n")
	})
}
