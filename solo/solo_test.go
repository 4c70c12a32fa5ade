package solo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/image"
)

// role makes this test's program the run that is killed.
const role = "WEIR_SOLO_TEST_LAYOUT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(role); dir != "" {
		f, _, err := Between(context.Background(), Options{Image: "blocker", Layouts: []string{dir}, Config: map[string]any{"port": 80}}, stations())
		if err == nil {
			_, err = Serve(filepath.Join(f.inst.NetnsDir(), "server"), "exec sleep 600", nil, nil)
		}
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		fmt.Println(f.inst.Name)
		select {}
	}
	code := m.Run()
	if os.Geteuid() == 0 {
		if dir, err := built(); err == nil {
			_ = os.RemoveAll(dir)
		}
	}
	os.Exit(code)
}

func stations() Stations {
	return Stations{Client: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}, Server: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}, Timeout: DefaultTimeout}
}

// built is a layout with the images of some recipes.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "weir-solo-")
	for _, r := range []string{"../examples/blocker", "../catalogue/wire", "../catalogue/monitor"} {
		var x image.Recipe
		if err == nil {
			x, err = image.LoadRecipe(r)
		}
		if err == nil {
			_, err = x.Build(context.Background(), dir)
		}
	}
	return dir, err
})

func layout(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("not root: this test makes containers (sudo make test)")
	}
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// left is what runs have left on this machine that are named.
func left(t *testing.T, names ...string) (found []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		for _, path := range []string{"/run/weir/" + name, filepath.Join(stateDir, name)} {
			if _, err := os.Lstat(path); err == nil {
				found = append(found, path)
			}
		}
		if strings.Contains(string(text), name) {
			found = append(found, "mounts of "+name)
		}
	}
	return found
}

func TestAFunctionIsTried(t *testing.T) {
	dir := layout(t)
	in, err := ReadFrames("../examples/blocker/test/web/in.pcap")
	if err != nil {
		t.Fatal(err)
	}
	but := func(n int) []Frame { return slices.Delete(slices.Clone(in), n, n+1) }
	t.Cleanup(func() { // behind all of them
		if names, err := Sweep(context.Background()); err != nil || len(names) > 0 {
			t.Errorf("left: %v, %v", names, err)
		}
	})
	for name, tt := range map[string]struct {
		o     Options
		c     Case
		says  string // of the first difference or failure; "": passed
		fails error
	}{
		"a filter":                      {Options{Image: "blocker", Config: map[string]any{"port": 80}}, Case{In: in, AtOut: but(3), AtIn: []Frame{}, Events: []string{"PortBlocked"}}, "", nil},
		"another port":                  {Options{Image: "blocker", Config: map[string]any{"port": 8080}}, Case{In: in, AtOut: but(4)}, "", nil},
		"the other way":                 {Options{Image: "blocker", Config: map[string]any{"port": 80}}, Case{Out: in, AtIn: in, AtOut: []Frame{}}, "", nil},
		"not what is expected":          {Options{Image: "blocker", Config: map[string]any{"port": 80}}, Case{In: in, AtOut: in, Timeout: 2 * time.Second}, "missing", nil},
		"an event that is raised never": {Options{Image: "wire"}, Case{In: in, AtOut: in, Events: []string{"Never"}, Timeout: 2 * time.Second}, "event Never was not raised", nil},
		"the switch's forwarder":        {Options{Image: "wire"}, Case{In: in, Out: in, AtOut: in, AtIn: in}, "", nil},
		"a tap":                         {Options{Image: "monitor"}, Case{In: in}, "", nil},
		"a tap hands nothing on":        {Options{Image: "monitor"}, Case{In: in, AtOut: in}, "", ErrCase},
		"a config that it takes not":    {Options{Image: "blocker", Config: map[string]any{"prot": 80}}, Case{In: in}, "", ErrConfig},
		"no such image":                 {Options{Image: "nothing"}, Case{In: in}, "", image.ErrNotFound},
		"a frame that is too long":      {Options{Image: "wire"}, Case{In: []Frame{{Data: make([]byte, 2000)}}}, "", ErrFile},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait most of the time
			tt.o.Layouts = []string{dir}
			r, err := Try(t.Context(), tt.o, tt.c)
			if !errors.Is(err, tt.fails) {
				t.Fatalf("%v, want %v", err, tt.fails)
			}
			if err != nil {
				return
			}
			says := ""
			if len(r.Failures) > 0 {
				says = r.Failures[0]
			} else if len(r.Differences) > 0 {
				says = r.Differences[0].Kind
			}
			if says != tt.says || r.Passed != (says == "") {
				t.Errorf("%q, passed %v, want %q\n%+v", says, r.Passed, tt.says, r)
			}
		})
	}
}

func TestCommandsRunBetweenStations(t *testing.T) {
	dir := layout(t)
	for name, o := range map[string]Options{
		"inline": {Image: "blocker", Layouts: []string{dir}, Config: map[string]any{"port": 80}},
		"tap":    {Image: "monitor", Layouts: []string{dir}},
	} {
		t.Run(name, func(t *testing.T) {
			f, ends, err := Between(t.Context(), o, stations())
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			code, err := Command(t.Context(), ends.Client, []string{"ping", "-c", "3", "-i", "0.2", "-W", "5", "10.0.0.2"}, nil, Streams{Out: &out, Err: &out})
			if err != nil || code != 0 {
				t.Errorf("code %d, %v\n%s", code, err, out.String())
			}
			if code, err := Command(t.Context(), ends.Server, []string{"sh", "-c", "exit 7"}, nil, Streams{}); err != nil || code != 7 {
				t.Errorf("code %d, %v, want 7", code, err)
			}
			f.Stop()
			if name == "tap" && !strings.Contains(f.Log(), `"proto":"icmp"`) {
				t.Errorf("the tap has heard nothing: %s", f.Log())
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
			if found := left(t, f.inst.Name); len(found) > 0 {
				t.Error("left: ", found)
			}
		})
	}
}

// What a run leaves that is killed goes with the next one, commands of the user's included; one that goes on is left alone.
func TestWhatAKilledRunLeavesIsRemoved(t *testing.T) {
	dir := layout(t)
	start := func() (*exec.Cmd, string) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), role+"="+dir)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil || !strings.HasPrefix(line, prefix) {
			t.Fatalf("%q, %v", line, err)
		}
		return cmd, strings.TrimSpace(line)
	}
	kill := func(cmd *exec.Cmd) {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	killed, dead := start()
	goesOn, alive := start()
	defer kill(goesOn)
	kill(killed)
	swept, err := Sweep(t.Context())
	if err != nil || !slices.Contains(swept, dead) || slices.Contains(swept, alive) {
		t.Errorf("swept %v, %v; want %s and not %s", swept, err, dead, alive)
	}
	if found := left(t, dead); len(found) > 0 {
		t.Error("left: ", found)
	}
	if found := left(t, alive); len(found) != 3 {
		t.Error("of the one that goes on there is only ", found)
	}
	kill(goesOn)
	if _, err := Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if found := left(t, alive); len(found) > 0 {
		t.Error("left: ", found)
	}
}
