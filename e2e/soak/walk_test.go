// Package soak walks at random over the whole product: documents change, functions start, stop and die, daemons are killed, links go down, and after
// each step everything has to be as the document says. Nothing may grow over a walk beyond its budget.
package soak

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
)

const (
	patience  = time.Minute      // with what has to come about after a step; a busy machine needs it
	usual     = 20 * time.Second // a step that takes longer is told
	lastSteps = 12               // that a failure shows
	toBase    = 5                // steps between two returns to the base document, where it is measured
	longWalk  = 200              // steps of one world in a long run; then comes the next seed
)

// walk of one seed.
type walk struct {
	t      *testing.T
	ctx    context.Context
	seed   uint64
	world  world
	model  *model
	client *api.Client
	steps  []string
	late   int // looks at frames that were right at a later attempt only
	frames int
	all    []measures
}

// atOnce is how many worlds of the short run there are at the same time, if nobody says otherwise (-parallel): they wait more than they work.
const atOnce = "4"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// The short run, in make test: one seed for each kind of world. With SOAK=30m (make soak) kinds and seeds take turns for that long.
func TestWalk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("root is needed (network namespaces, BPF, containers): sudo make test")
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // whoever interrupts it finds nothing left
	t.Cleanup(cancel)
	long, err := time.ParseDuration(cmpOr(os.Getenv("SOAK"), "0"))
	if err != nil {
		t.Fatalf("SOAK: %v: want a duration, such as 30m", err)
	}
	if long == 0 {
		for _, k := range kinds {
			t.Run(k.name, func(t *testing.T) {
				t.Parallel()
				run(ctx, t, k, 1, shortWalk, time.Now().Add(time.Hour))
			})
		}
		return
	}
	seed, err := strconv.ParseUint(cmpOr(os.Getenv("SEED"), "1"), 10, 64)
	if err != nil {
		t.Fatalf("SEED: %v", err)
	}
	for until := time.Now().Add(long); time.Now().Before(until) && ctx.Err() == nil; seed++ {
		k := kinds[seed%uint64(len(kinds))]
		t.Run(fmt.Sprintf("%s/%d", k.name, seed), func(t *testing.T) { run(ctx, t, k, seed, longWalk, until) })
	}
}

// shortWalk is how many steps the short run makes.
const shortWalk = 5 * toBase

// The same seed draws the same steps, whatever Weir does.
func TestASeedRepeatsItsSteps(t *testing.T) {
	for _, k := range kinds {
		w := &several{kind: k, name: "t000000"}
		draw := func(seed uint64) (texts []string) {
			m := newModel(seed, k, w.stations())
			for range longWalk {
				texts = append(texts, m.next().text)
			}
			return texts
		}
		if a, b := draw(7), draw(7); !slices.Equal(a, b) {
			t.Errorf("%s: the same seed draws other steps", k.name)
		}
		if a, b := draw(7), draw(8); slices.Equal(a, b) {
			t.Errorf("%s: another seed draws the same steps", k.name)
		}
	}
}

func newModel(seed uint64, k kind, stations map[string]api.EndpointSpec) *model {
	m := &model{r: rand.New(rand.NewPCG(seed, 1)), kind: k, stations: stations, stopped: map[string]bool{}}
	m.doc = m.base()
	return m
}

// run is one walk in a world of its own.
func run(ctx context.Context, t *testing.T, k kind, seed uint64, steps int, until time.Time) {
	w := &walk{t: t, ctx: ctx, seed: seed}
	var err error
	if k.file == "" {
		w.world, err = newOne(ctx, k)
	} else {
		w.world, err = newSeveral(k, t.TempDir())
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			w.tell()
		}
		down, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := w.world.down(down); err != nil {
			t.Error(err)
		}
	}()
	w.model = newModel(seed, k, w.world.stations())
	w.must("up", func() error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return w.world.up(ctx)
	})
	if w.client, err = api.Dial(api.Options{Socket: w.world.socket()}); err != nil {
		t.Fatal(err)
	}
	defer w.client.Close()
	began := time.Now()
	for n := 0; n <= steps && time.Now().Before(until); n++ {
		if n%toBase == 0 {
			w.base()
			continue
		}
		if ctx.Err() != nil {
			t.Fatal("interrupted")
		}
		s := w.model.next()
		w.must(s.text, func() error { return s.do(w) })
		w.check()
	}
	table, over := judge(w.all)
	t.Logf("seed %d: %d steps in %v, %d frames, %d looks late\n%s", seed, len(w.steps), time.Since(began).Round(time.Second), w.frames, w.late, table)
	for _, o := range over {
		t.Errorf("seed %d: %s", seed, o)
	}
}

// base returns to where the walk began, and measures.
func (w *walk) base() {
	for _, name := range sortedKeys(w.model.stopped) {
		w.must("start "+name, func() error { return w.command("function", "start", name) })
	}
	w.model.stopped = map[string]bool{}
	w.model.doc = w.model.base()
	w.must("apply the base document", func() error { return w.apply(w.model.doc) })
	w.check()
	m, err := w.measure()
	if err != nil {
		w.fail(err)
	}
	w.all = append(w.all, m)
}

// must carries out a step.
func (w *walk) must(text string, do func() error) {
	w.steps = append(w.steps, text)
	begin := time.Now()
	if err := do(); err != nil {
		w.fail(err)
	}
	if took := time.Since(begin); took > usual {
		w.t.Logf("seed %d, step %d takes %v: %s", w.seed, len(w.steps), took.Round(time.Millisecond), text)
	}
}

func (w *walk) fail(err error) {
	w.t.Helper()
	w.t.Fatalf("seed %d, step %d, %s: %v", w.seed, len(w.steps), w.steps[len(w.steps)-1], err)
}

// tell shows what led to a failure.
func (w *walk) tell() {
	for i := max(0, len(w.steps)-lastSteps); i < len(w.steps); i++ {
		w.t.Logf("step %d: %s", i+1, w.steps[i])
	}
	if w.model != nil {
		w.t.Logf("document: %s", text(w.model.doc))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, args := range [][]string{{"get", "all"}, {"events", "--limit", "30"}} {
		out, _ := w.world.weir(ctx, "", args...)
		w.t.Log(out)
	}
	w.t.Logf("logs:\n%s", w.world.logs())
}

// command is one of the binary's that waits until it is done.
func (w *walk) command(args ...string) error {
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	_, err := w.world.weir(ctx, "", args...)
	return err
}

func (w *walk) apply(d api.Document) error {
	document, err := json.Marshal(d)
	if err != nil {
		return err
	}
	_, err = w.world.weir(w.ctx, string(document), "apply", "-f", "-", "--prune", "--timeout", patience.String())
	return err
}

// applyAndKill kills a daemon a while after a document is on its way, starts it again, and applies the document again.
func (w *walk) applyAndKill(d api.Document, node string, after time.Duration) error {
	document, err := json.Marshal(d)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	done := make(chan struct{})
	go func() { // ends with the daemon, or with us
		defer close(done)
		_, _ = w.world.weir(ctx, string(document), "apply", "-f", "-", "--prune", "--timeout", "20s")
	}()
	err = errors.Join(pause(after)(w), w.killDaemon(node, 0))
	cancel()
	<-done
	if err != nil {
		return err
	}
	return w.apply(d)
}

func (w *walk) killDaemon(node string, off time.Duration) error {
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	return errors.Join(w.world.kill(node, syscall.SIGKILL), pause(off)(w), w.world.up(ctx))
}

func (w *walk) keepState() error {
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	if _, err := w.world.weir(ctx, "", "down", "--keep-state"); err != nil {
		return err
	}
	return w.world.up(ctx)
}

func (w *walk) flap(what string, off time.Duration) error {
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	return w.world.flap(ctx, what, off)
}

// killFunction ends a function's process; one without a process has none to end.
func (w *walk) killFunction(name string) error {
	f, err := w.client.Functions().Get(w.ctx, name)
	if err != nil {
		return err
	}
	if f.Status.PID <= 1 {
		return fmt.Errorf("%s has no process: %+v", name, f.Status)
	}
	if err := syscall.Kill(f.Status.PID, syscall.SIGKILL); err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		now, err := w.client.Functions().Get(w.ctx, name)
		if err == nil && now.Status.PID != f.Status.PID {
			return nil
		}
	}
	return fmt.Errorf("the death of %s (process %d) is not noticed after %v", name, f.Status.PID, patience)
}

// check waits until all is as the document says, by the API, by what is there and by where frames go.
func (w *walk) check() {
	w.t.Helper()
	begin := time.Now()
	var why error
	for {
		if why = w.settled(); why == nil {
			break
		}
		if time.Since(begin) > patience || w.ctx.Err() != nil {
			w.fail(fmt.Errorf("not as it should be after %v: %w", patience, why))
		}
		time.Sleep(50 * time.Millisecond)
	}
	if took := time.Since(begin); took > usual {
		w.t.Logf("seed %d, step %d: settled after %v only: %s", w.seed, len(w.steps), took.Round(time.Millisecond), w.steps[len(w.steps)-1])
	}
	for begin, attempt := time.Now(), 1; ; attempt++ {
		wrong, err := w.look()
		if err != nil {
			w.fail(err)
		}
		if len(wrong) == 0 {
			if attempt > 1 {
				w.late++
				w.t.Logf("seed %d, step %d: right after %v", w.seed, len(w.steps), time.Since(begin).Round(time.Millisecond))
			}
			return
		}
		if attempt == 1 {
			w.t.Logf("seed %d, step %d, %s: at first %d frames go otherwise: %s", w.seed, len(w.steps), w.steps[len(w.steps)-1], len(wrong), wrong[0])
		}
		if time.Since(begin) > usual {
			if cache, err := w.purge(); err != nil || cache != "" {
				if err != nil {
					w.fail(err)
				}
				w.t.Logf("seed %d, step %d: void: the switches of %s went on with what Open vSwitch had cached: %s", w.seed, len(w.steps), cache, wrong[0])
				return
			}
			w.fail(fmt.Errorf("%d frames go otherwise for %v:\n%s", len(wrong), usual, strings.Join(wrong[:min(8, len(wrong))], "\n")))
		}
	}
}
