package stall

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What keeps a CPU awake ends with who began it, also if that is killed at once: before the shell is there, or while it is stopped.
func TestNothingStaysAwakeForAKilledProcess(t *testing.T) {
	if os.Getenv("WEIR_AWAKE_CHILD") != "" {
		a, err := keepAwake(firstCPU(t))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(a.cmd.Process.Pid)
		time.Sleep(time.Minute)
		return
	}
	for range 5 {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "WEIR_AWAKE_CHILD=1")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(line)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		deadline := time.Now().Add(10 * time.Second)
		for unix.Kill(pid, 0) == nil && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
		}
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && len(text) > 0 {
			t.Errorf("process %d goes on: %q", pid, text)
		}
	}
}
