package choice_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/container"
	"weir.dev/weir/container/choice"
	"weir.dev/weir/container/fake"
	"weir.dev/weir/container/suite"
	"weir.dev/weir/portkind"
)

// Through a choice of two, each behaves as it does alone.
func TestConformance(t *testing.T) {
	for _, runtime := range []string{"", "one", "two"} {
		t.Run("runtime="+runtime, func(t *testing.T) {
			suite.Run(t, func(t *testing.T) suite.Driver {
				return suite.Driver{
					Runtime:  newBench(t).open(),
					Spec:     container.Spec{Runtime: runtime},
					Wait:     []string{"wait"},
					Stubborn: []string{"stubborn"},
					Exit:     func(code int) []string { return []string{"exit", strconv.Itoa(code)} },
					Print:    func(text string) []string { return []string{"print", text} },
					Cat:      []string{"cat"}, ExitCodes: true,
				}
			})
		})
	}
}

// bench has two runtimes in memory; the first is the default. They outlive a choice, as containers do.
type bench struct {
	*testing.T
	dir      string
	one, two *fake.Runtime

	mu      sync.Mutex
	missing string // why two cannot be opened; "" it can
	left    func() bool
	opens   map[string]int
}

func newBench(t *testing.T) *bench {
	return &bench{T: t, dir: filepath.Join(t.TempDir(), "runtimes"), one: fake.New(), two: fake.New(), opens: map[string]int{}, left: func() bool { return false }}
}

func (b *bench) set(missing string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.missing = missing
}

func (b *bench) why() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.missing
}

func (b *bench) opened(name string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.opens[name]
}

func (b *bench) driver(name string, rt *fake.Runtime) choice.Driver {
	return choice.Driver{
		Open: func(context.Context) (container.Runtime, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.opens[name]++
			if name == "two" && b.missing != "" {
				return nil, errors.New("dial: no such file")
			}
			return rt, nil
		},
		About: func(context.Context) container.About {
			a := container.About{Version: "1", Ports: rt.Kinds}
			if name == "two" {
				a.Missing = b.why()
			}
			return a
		},
		Left: b.left,
	}
}

func (b *bench) open() *choice.Runtime {
	b.Helper()
	r, err := choice.Open(b.Context(), choice.Options{Dir: b.dir, Default: "one", Drivers: map[string]choice.Driver{"one": b.driver("one", b.one), "two": b.driver("two", b.two)}})
	if err != nil {
		b.Fatal(err)
	}
	return r
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// has checks who has which containers: those of one, those of two, and those of the choice.
func (b *bench) has(r *choice.Runtime, one, two string) {
	b.Helper()
	for _, x := range []struct {
		rt   container.Runtime
		want string
	}{{b.one, one}, {b.two, two}, {r, sorted(one + " " + two)}} {
		list, err := x.rt.List(b.Context())
		b.must(err)
		var ids []string
		for _, c := range list {
			ids = append(ids, c.ID)
		}
		if got := strings.Join(ids, " "); got != x.want {
			b.Errorf("%T has %q, want %q", x.rt, got, x.want)
		}
	}
}

func sorted(ids string) string {
	list := strings.Fields(ids)
	slices.Sort(list)
	return strings.Join(list, " ")
}

func spec(id, runtime string, args ...string) container.Spec {
	if len(args) == 0 {
		args = []string{"wait"}
	}
	return container.Spec{ID: id, Runtime: runtime, Args: args}
}

func TestEachContainerIsInTheRuntimeThatItNames(t *testing.T) {
	b := newBench(t)
	r := b.open()
	b.must(r.Run(t.Context(), spec("a", "")))
	if n := b.opened("two"); n != 0 {
		t.Errorf("two was opened %d times, and nobody wants it", n)
	}
	b.must(r.Run(t.Context(), spec("b", "two")))
	b.must(r.Create(t.Context(), spec("c", "one")))
	b.has(r, "a c", "b")
	for id, want := range map[string]string{"a": "one", "b": "two", "c": "one", "d": ""} {
		if got := r.Of(id); got != want {
			t.Errorf("%s is of %q, want %q", id, got, want)
		}
	}
	err := r.Run(t.Context(), spec("d", "three"))
	if !errors.Is(err, container.ErrMissing) || !strings.Contains(err.Error(), `"three"`) || !strings.Contains(err.Error(), "this program has one, two") {
		t.Errorf("a runtime that there is not: %v", err)
	}
	b.must(r.Delete(t.Context(), "b"))
	b.has(r, "a c", "")
}

// What one choice made the next one finds, each with its runtime; what was not written down, too.
func TestTheNextChoiceFindsAll(t *testing.T) {
	b := newBench(t)
	first := b.open()
	b.must(first.Run(t.Context(), spec("a", "")))
	b.must(first.Run(t.Context(), spec("b", "two", "exit", "7")))
	b.must(b.one.Run(t.Context(), spec("former", ""))) // of a version that wrote nothing down
	r := b.open()
	b.has(r, "a former", "b")
	if r.Of("former") != "one" || r.Of("b") != "two" {
		t.Errorf("former is of %q, b of %q", r.Of("former"), r.Of("b"))
	}
	if c, err := r.Wait(t.Context(), "b"); err != nil || c.ExitCode != 7 {
		t.Errorf("b ended: %+v, %v", c, err)
	}
	b.must(r.Start(t.Context(), "b"))
	b.must(b.two.Delete(t.Context(), "b")) // by hand, while nobody looks
	b.left = func() bool { return true }
	r = b.open()
	b.has(r, "a former", "")
	if files, err := os.ReadDir(b.dir); err != nil || len(files) != 2 {
		t.Errorf("written down are %v, %v", files, err)
	}
}

// A stopped container gives way to one in another runtime; one that is alive does not.
func TestAContainerMovesBetweenRuntimes(t *testing.T) {
	b := newBench(t)
	r := b.open()
	b.must(r.Run(t.Context(), spec("a", "one")))
	err := r.Run(t.Context(), spec("a", "two"))
	if !errors.Is(err, container.ErrState) || !strings.Contains(err.Error(), "runtime one") {
		t.Errorf("it runs: %v", err)
	}
	b.must(r.Stop(t.Context(), "a", time.Second))
	b.must(r.Run(t.Context(), spec("a", "two")))
	b.has(r, "", "a")
	// By default the one that is alive is left where it is.
	err = r.Run(t.Context(), spec("a", ""))
	if !errors.Is(err, container.ErrState) { // another spec: two says so
		t.Errorf("another spec: %v", err)
	}
	b.has(r, "", "a")
	b.must(r.Stop(t.Context(), "a", time.Second))
	b.must(r.Run(t.Context(), spec("a", "")))
	b.has(r, "a", "")
	// What cannot be made in the new runtime is in none.
	b.must(r.Stop(t.Context(), "a", time.Second))
	if err := r.Run(t.Context(), spec("a", "two", "no-such-program")); err == nil {
		t.Error("a program that is not there ran")
	}
	b.has(r, "", "")
	// What the former runtime does not let go stays its own.
	b.must(r.Create(t.Context(), spec("b", "one", "exit", "0")))
	b.must(r.Start(t.Context(), "b"))
	b.one.Fail("Delete", errors.New("busy"))
	if err := r.Run(t.Context(), spec("b", "two")); err == nil || r.Of("b") != "one" {
		t.Errorf("%v; b is of %q", err, r.Of("b"))
	}
	b.one.Fail("Delete", nil)
	b.must(r.Run(t.Context(), spec("b", "two")))
	b.has(r, "", "b")
}

// A crash between the steps of a move leaves one container, in the runtime that has it; of two that which is written down.
func TestACrashWhileAContainerMoves(t *testing.T) {
	for name, x := range map[string]struct {
		record   string
		one, two bool
		want     string
	}{
		"written down, and nothing done":      {"two", true, false, "one"},
		"removed, and not made":               {"two", false, false, ""},
		"made":                                {"two", false, true, "two"},
		"in both, written down as the second": {"two", true, true, "two"},
		"in both, written down as the first":  {"one", true, true, "one"},
		"in both, written down as neither":    {"", true, true, "one"},
		"the record cannot be read":           {"{", false, true, "two"},
		"a runtime that this program has not": {"three", false, true, "two"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.left = nil // not known: it is opened
			b.must(os.MkdirAll(b.dir, 0o700))
			switch x.record {
			case "":
			case "{":
				b.must(os.WriteFile(filepath.Join(b.dir, "a"), []byte("{"), 0o600))
			default:
				b.must(os.WriteFile(filepath.Join(b.dir, "a"), fmt.Appendf(nil, `{"runtime":%q}`, x.record), 0o600))
			}
			if x.one {
				b.must(b.one.Run(t.Context(), spec("a", "one")))
			}
			if x.two {
				b.must(b.two.Run(t.Context(), spec("a", "two")))
			}
			r := b.open()
			if got := r.Of("a"); got != x.want {
				t.Errorf("it is of %q, want %q", got, x.want)
			}
			b.has(r, map[bool]string{true: "a"}[x.want == "one"], map[bool]string{true: "a"}[x.want == "two"])
			again := b.open()
			if got := again.Of("a"); got != x.want {
				t.Errorf("the next one finds it with %q", got)
			}
		})
	}
}

// A runtime that cannot be opened is named, with the reason; when it can be, it is.
func TestARuntimeThatIsMissing(t *testing.T) {
	b := newBench(t)
	b.set("no engine: start dockerd")
	r := b.open()
	for _, how := range []func(context.Context, container.Spec) error{r.Create, r.Run} {
		err := how(t.Context(), spec("a", "two"))
		if !errors.Is(err, container.ErrMissing) || !strings.Contains(err.Error(), "runtime two") || !strings.Contains(err.Error(), "no engine: start dockerd") {
			t.Errorf("%v: want the runtime and why", err)
		}
	}
	b.has(r, "", "")
	if about, err := r.About(t.Context(), "two"); err != nil || about.Name != "two" || about.Missing != "no engine: start dockerd" {
		t.Errorf("%+v, %v", about, err)
	}
	b.set("")
	b.must(r.Run(t.Context(), spec("a", "two")))
	b.has(r, "", "a")
}

// While a runtime cannot be opened its containers are taken to run: nobody makes them anew. Then it takes them over.
func TestContainersOfARuntimeThatIsMissing(t *testing.T) {
	b := newBench(t)
	first := b.open()
	b.must(first.Run(t.Context(), spec("a", "two")))
	b.must(first.Run(t.Context(), spec("gone", "two")))
	b.must(b.two.Delete(t.Context(), "gone"))
	b.set("no engine")
	r := b.open()
	list, err := r.List(t.Context())
	b.must(err)
	want := []container.Status{{ID: "a", State: container.Running, ExitCode: -1}, {ID: "gone", State: container.Running, ExitCode: -1}}
	if d := cmp.Diff(want, list); d != "" {
		t.Error(d)
	}
	for what, err := range map[string]error{
		"stop": r.Stop(t.Context(), "a", time.Second), "delete": r.Delete(t.Context(), "a"), "start": r.Start(t.Context(), "a"),
		"to another": r.Run(t.Context(), spec("a", "one")),
	} {
		if !errors.Is(err, container.ErrMissing) || !strings.Contains(err.Error(), "no engine") {
			t.Errorf("%s: %v", what, err)
		}
	}
	ended := make(chan container.Status, 1)
	go func() {
		c, err := r.Wait(t.Context(), "a")
		if err != nil {
			t.Error(err)
		}
		ended <- c
	}()
	b.set("")
	for deadline := time.Now().Add(10 * time.Second); ; { // each look is another attempt
		if list, err = r.List(t.Context()); err == nil && len(list) == 1 && list[0].PID > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it was not opened: %+v, %v", list, err)
		}
		time.Sleep(time.Millisecond)
	}
	select {
	case c := <-ended:
		t.Fatalf("it runs, and its end was told: %+v", c)
	default:
	}
	b.two.Crash("a", 3)
	if c := <-ended; c.ExitCode != 3 {
		t.Errorf("it ended with %+v", c)
	}
}

// What has just failed is not tried by each caller anew.
func TestAttemptsToOpenAreSpared(t *testing.T) {
	b := newBench(t)
	b.set("no engine")
	r, err := choice.Open(t.Context(), choice.Options{Dir: b.dir, Default: "one", Again: time.Hour, Drivers: map[string]choice.Driver{"one": b.driver("one", b.one), "two": b.driver("two", b.two)}})
	b.must(err)
	for range 5 {
		if err := r.Run(t.Context(), spec("a", "two")); !errors.Is(err, container.ErrMissing) || !strings.Contains(err.Error(), "no engine") {
			t.Errorf("%v", err)
		}
	}
	if n := b.opened("two"); n != 1 {
		t.Errorf("%d attempts", n)
	}
}

// The default runtime has to work.
func TestADefaultThatIsMissing(t *testing.T) {
	b := newBench(t)
	broken := choice.Driver{Open: func(context.Context) (container.Runtime, error) { return nil, errors.New("no program x") }}
	for _, name := range []string{"broken", "nobody"} {
		_, err := choice.Open(t.Context(), choice.Options{Dir: b.dir, Default: name, Drivers: map[string]choice.Driver{"broken": broken}})
		if want := map[string]string{"broken": "no program x", "nobody": "this program has broken"}[name]; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Destroy opens what left something, and leaves the others alone.
func TestDestroyFindsWhatWasLeft(t *testing.T) {
	b := newBench(t)
	b.must(b.two.Run(t.Context(), spec("b", "two")))
	b.must(b.one.Run(t.Context(), spec("a", "one")))
	b.must(b.open().Destroy(t.Context()))
	if b.opened("two") != 0 {
		t.Error("two says that it left nothing, and was opened")
	}
	b.left = func() bool { return true }
	r := b.open()
	b.must(r.Destroy(t.Context()))
	b.has(r, "", "")
	if _, err := os.Stat(b.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory is still there: %v", err)
	}
	b.must(r.Run(t.Context(), spec("c", "two"))) // it can go on
	b.has(r, "", "c")
}

// Many callers at the same time; a runtime at work holds nobody up but who waits for it.
func TestManyAtOnce(t *testing.T) {
	b := newBench(t)
	slow := &slowRuntime{Runtime: b.two, enter: make(chan struct{}), leave: make(chan struct{})}
	d := b.driver("two", b.two)
	d.Open = func(context.Context) (container.Runtime, error) { return slow, nil }
	r, err := choice.Open(t.Context(), choice.Options{Dir: b.dir, Default: "one", Drivers: map[string]choice.Driver{"one": b.driver("one", b.one), "two": d}})
	b.must(err)
	made := make(chan error, 1)
	go func() { made <- r.Run(t.Context(), spec("slow", "two")) }()
	<-slow.enter
	var wg sync.WaitGroup
	for i := range 16 { // all of this goes on while two is at work
		wg.Go(func() {
			id := fmt.Sprint("x", i%4)
			for range 20 {
				if err := r.Run(t.Context(), spec(id, "one")); err != nil {
					t.Errorf("%s: %v", id, err)
				}
				if _, err := r.List(t.Context()); err != nil {
					t.Error(err)
				}
				_, _ = r.Status(t.Context(), id)
				if i < 4 {
					if err := errors.Join(r.Stop(t.Context(), id, time.Second), r.Delete(t.Context(), id)); err != nil {
						t.Errorf("%s: %v", id, err)
					}
				}
			}
		})
	}
	wg.Wait()
	if about, err := r.About(t.Context(), "two"); err != nil || about.Missing != "" {
		t.Errorf("%+v, %v", about, err)
	}
	close(slow.leave)
	b.must(<-made)
	b.must(r.Destroy(t.Context()))
	b.has(r, "", "")
}

type slowRuntime struct {
	*fake.Runtime
	enter, leave chan struct{}
}

func (s *slowRuntime) Run(ctx context.Context, spec container.Spec) error {
	close(s.enter)
	<-s.leave
	return s.Runtime.Run(ctx, spec)
}

// Who asks at the same time gets one answer; who does not wait for it is told so.
func TestAboutIsBounded(t *testing.T) {
	b := newBench(t)
	answer := make(chan struct{})
	var mu sync.Mutex
	asked := 0
	d := b.driver("one", b.one)
	d.About = func(context.Context) container.About {
		mu.Lock()
		asked++
		mu.Unlock()
		<-answer
		return container.About{Version: "2", Ports: []portkind.Kind{portkind.Tap}}
	}
	r, err := choice.Open(t.Context(), choice.Options{Dir: b.dir, Default: "one", Drivers: map[string]choice.Driver{"one": d}})
	b.must(err)
	hurry, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := r.About(hurry, "one"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "runtime one") {
		t.Errorf("%v", err)
	}
	got := make(chan container.About, 2)
	for range 2 {
		go func() {
			about, err := r.About(t.Context(), "one")
			if err != nil {
				t.Error(err)
			}
			got <- about
		}()
	}
	close(answer)
	for range 2 {
		if a := <-got; a.Version != "2" || a.Name != "one" {
			t.Errorf("%+v", a)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if asked > 3 {
		t.Errorf("asked %d times", asked)
	}
}
