package events

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/agent/metrics"
	"weir.dev/weir/agent/socket"
	"weir.dev/weir/api"
	"weir.dev/weir/image/event"
)

// The program that images have for scripts speaks to the sockets that functions find.
func TestScriptsRaiseEventsByAProgram(t *testing.T) {
	if event.Program() == nil {
		t.Fatal("there is no weir-event for this machine's processor: see image/event/event.c")
	}
	dir := t.TempDir()
	program, path := filepath.Join(dir, "weir-event"), filepath.Join(dir, "events.sock")
	if err := os.WriteFile(program, event.Program(), 0o755); err != nil {
		t.Fatal(err)
	}
	raised := make(chan api.Event, 100)
	s, err := Serve(filepath.Join(dir, "fresh"), path, "fw", func(e api.Event) { raised <- e })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	run := func(input string, args ...string) (complaint string, code int) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, args...)
		var out bytes.Buffer
		cmd.Stdin, cmd.Stderr = strings.NewReader(input), &out
		_ = cmd.Run()
		return out.String(), cmd.ProcessState.ExitCode()
	}
	events := func() (all []string) {
		for {
			select {
			case e := <-raised:
				all = append(all, string(e.Severity)+" "+e.Reason+" "+e.Message)
			default:
				return all
			}
		}
	}
	at := []string{"-socket", path}
	long := strings.Repeat("x", 8<<10)
	for _, tt := range []struct {
		name, input string
		args        []string
		code        int
		says        string
		raised      []string
	}{
		{"words", "", []string{"warning", "PortBlocked", "dropped", "5", "packets"}, 0, "", []string{"warning PortBlocked dropped 5 packets"}},
		{"any bytes", "", []string{"info", "Odd", "\"q\" \\ \t\x01 \x7f é\n$(x)"}, 0, "", []string{"info Odd \"q\" \\ \t\x01 \x7f é\n$(x)"}},
		{"lines", "info A one  two \n\n\t error B three\r\ninfo C no end of line", nil, 0, "", []string{"info A one  two", "error B three", "info C no end of line"}},
		{"no lines", "", nil, 0, "", nil},
		{"some are refused", "info FunctionDied x\nloud A x\nshort\ninfo A x", nil, 1, "reason: FunctionDied is reserved for Weir's own events", []string{"info A x"}},
		{"a severity", "", []string{"loud", "A", "x"}, 1, "weir-event: event refused: severity: want info, warning or error\n", nil},
		{"the longest", "", []string{"info", "A", long[:8<<10-len(`{"severity": "info", "reason": "A", "message": ""}`)]}, 0, "", []string{"info A " + long[:8<<10-len(`{"severity": "info", "reason": "A", "message": ""}`)]}},
		{"too long", "", []string{"info", "A", long}, 1, "more than 8 KiB", nil},
		{"a line that is too long", "info A " + long + "\ninfo B x\n", nil, 1, "a line of more than 8 KiB", []string{"info B x"}},
		{"too long when it is escaped", "", []string{"info", "A", strings.Repeat("\x01", 2000)}, 1, "more than 8 KiB", nil},
		{"no message", "", []string{"info", "A"}, 2, "want SEVERITY REASON MESSAGE", nil},
		{"no such option", "", []string{"-x"}, 2, "-x: no such option", nil},
		{"help", "", []string{"--help"}, 0, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			says, code := run(tt.input, append(at, tt.args...)...)
			if code != tt.code || !strings.Contains(says, tt.says) || tt.code == 0 && says != "" {
				t.Errorf("code %d: %.200s", code, says)
			}
			if d := cmp.Diff(tt.raised, events()); d != "" {
				t.Error(d)
			}
		})
	}
	if says, code := run("info A x\ninfo B y\n", "-socket", filepath.Join(dir, "nowhere")); code != 2 || strings.Count(says, "no such file: the platform does not listen there") != 1 {
		t.Errorf("no socket: code %d: %s", code, says)
	}
	// More than the platform takes at once: the rest has to wait, and comes.
	if says, code := run(strings.Repeat("info Many x\n", burst+5), at...); code != 0 || len(events()) != burst+5 {
		t.Errorf("many: code %d: %s", code, says)
	}

	told, err := metrics.Serve(filepath.Join(dir, "fresh"), path+".numbers")
	if err != nil {
		t.Fatal(err)
	}
	defer told.Close()
	at = []string{"-socket", path + ".numbers", "-numbers"}
	const numbers = "# HELP dropped_total Packets.\n# TYPE dropped_total counter\ndropped_total %d\n"
	for n := range 2 { // the second comes too soon, and again
		says, code := run(fmt.Sprintf(numbers, n), at...)
		if all, _ := told.Last(time.Now()); code != 0 || len(all) != 1 || all[0].Value != float64(n) {
			t.Errorf("numbers: code %d: %s: %+v", code, says, all)
		}
	}
	if says, code := run("a b c\n", at...); code != 1 || !strings.Contains(says, "weir-event: numbers refused: ") {
		t.Errorf("no numbers: code %d: %s", code, says)
	}
	if says, code := run(strings.Repeat("# x\n", 17<<10), at...); code != 1 || !strings.Contains(says, "more than 64 KiB") {
		t.Errorf("many numbers: code %d: %s", code, says)
	}
}

// A platform that hangs does not hang a function.
func TestTheProgramWaitsNotForEver(t *testing.T) {
	dir := t.TempDir()
	program, path := filepath.Join(dir, "weir-event"), filepath.Join(dir, "s")
	if err := os.WriteFile(program, event.Program(), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := socket.Listen(filepath.Join(dir, "fresh"), path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	begin := time.Now()
	out, err := exec.CommandContext(t.Context(), program, "-socket", path, "info", "A", "x").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the platform does not answer") || time.Since(begin) > 20*time.Second {
		t.Errorf("after %v: %v: %s", time.Since(begin), err, out)
	}
}
