package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/instance"
)

// An image with weir.reload takes a changed config while it runs. The command gets the config as its input. Exit code 0: it is in force. Any other one: it is
// refused, for the reason that the command printed last; the former config stays in force, in the function and in its config.json. A command that gives no
// answer leaves open which config is in force: then a new instance takes over, as after any other change.

// Bounds of the commands of a function's contract.
const (
	reloadFor  = 2 * time.Minute  // Suricata reads many rules
	reloadBusy = 10 * time.Second // that one which takes a config has a place among those that do: then it hangs, or mostly waits, and others have their turn
	maxAnswer  = 4 << 10          // bytes that a command prints, for people
	maxReason  = 300              // bytes of it in a status
	configNote = "weir.config"    // the annotation with the config that a container was made with
)

// order is a config that the function was told to take.
type order struct {
	to     string // container
	hash   string // of what the function is made from with it
	config []byte
	heard  chan struct{} // closed when there is an answer
	code   int
	words  string // the last line
	err    error  // no answer
}

// basis identifies what a container is made from, besides its config.
func basis(s container.Spec) string {
	s.Annotations = maps.Clone(s.Annotations)
	delete(s.Annotations, configNote)
	return fingerprint(s)
}

// reloads tells whether the instance in force can take the wanted config as it runs: it differs from what is wanted in nothing else.
func (f *function) reloads(want api.Function) bool {
	return f.have == container.Running && len(f.ready.image.Contract.Reload) > 0 && f.applied.Basis == f.ready.basis && f.applied.Restart == want.Spec.Restart &&
		f.applied.Hash != f.ready.hash && f.unheard != f.ready.hash && f.a.boxes.Whole(f.box)
}

// reload has the function take the wanted config. false: it cannot, or has given no answer, and a new instance is needed. While the answer is awaited, the health of
// the function is watched as ever.
func (f *function) reload(ctx context.Context, want api.Function) (bool, time.Duration, error) {
	if f.order != nil && (f.have != container.Running || f.order.to != f.container()) { // it has ended meanwhile; what comes next starts with what is wanted
		f.order = nil
	}
	if f.order != nil {
		f.behind = true
		select {
		case <-f.order.heard:
			if err := f.answered(ctx); err != nil {
				return true, retryAfter, err
			}
		default:
			wait, err := f.watchHealth(ctx, want, f.ready.image)
			return true, wait, err
		}
		if f.applied.Hash == f.ready.hash && f.applied.Restart == want.Spec.Restart { // in force, or what was refused is not wanted any more
			f.behind = false
			f.update(func(v *view) { v.status.Say() })
			wait, err := f.watchHealth(ctx, want, f.ready.image)
			return true, wait, err
		}
	}
	if !f.reloads(want) {
		return false, 0, nil
	}
	if !f.attached.done { // the agent is new here
		if err := f.attach(ctx, want, f.ready.image); err != nil {
			f.ready = prepared{}
			return true, retryAfter, err
		}
	}
	f.afresh(attempt{want.UID, want.Generation, f.ready.image.Digest})
	f.behind = true
	wait := time.Until(f.notBefore)
	if wait <= 0 {
		if err := f.tell(ctx, want); err != nil {
			return true, retryAfter, err
		}
		wait = retryAfter
	}
	next, err := f.watchHealth(ctx, want, f.ready.image)
	return true, min(wait, next), err
}

// tell the function of the wanted config. The answer wakes it.
func (f *function) tell(ctx context.Context, want api.Function) error {
	config, err := configOf(want)
	if err != nil {
		return err
	}
	o := &order{to: f.container(), hash: f.ready.hash, config: config, heard: make(chan struct{})}
	args := f.ready.image.Contract.Reload
	f.order = o
	go func() {
		defer f.poke()
		defer close(o.heard)
		var said tail
		o.code, o.err = f.command(ctx, f.a.reloads, o.to, reloadFor, args, bytes.NewReader(o.config), &said, &said)
		o.words = said.line()
	}()
	return nil
}

// answered takes in an answer.
func (f *function) answered(ctx context.Context) error {
	o := f.order
	f.order = nil
	switch {
	case o.err != nil:
		f.unheard = o.hash
		f.event(api.Warning, "ReloadFailed", fmt.Sprintf("the function was told to take a changed config and gave no answer: %v; a new instance takes its place", o.err), 0)
		return nil
	case o.code != 0:
		f.backoff()
		why := strings.TrimPrefix(o.words, "refused: ")
		if why == "" {
			why = fmt.Sprintf("exit code %d", o.code)
		}
		f.update(func(v *view) {
			v.status.Say(api.Condition{Type: api.ConditionOutdated, Reason: api.ReasonError, Message: "the function refuses the config, the former one stays in force: " + why})
		})
		return nil
	}
	if err := f.unsettle(ctx); err != nil { // it is told again
		return fmt.Errorf("flows that function %s has settled by its former config: %w", f.name, err)
	}
	// What the container finds is what is in force; applied.json says so last: after a crash before, the function is told again.
	if err := instance.Replace(filepath.Join(f.box.Dir, "etc", "config.json"), o.config, 0o644); err != nil {
		return fmt.Errorf("config of function %s: %w", f.name, err)
	}
	f.applied.Hash = o.hash
	if err := f.saveApplied(); err != nil {
		return err
	}
	f.crashes, f.notBefore = 0, time.Time{}
	return nil
}

// command runs one of the commands of the function's contract in a container, when it has a place among others of its kind. It waits for that and runs as long as limit says
// at most, each.
func (f *function) command(ctx context.Context, places chan struct{}, id string, limit time.Duration, args []string, in io.Reader, out, said io.Writer) (int, error) {
	turn := time.NewTimer(limit)
	defer turn.Stop()
	select {
	case places <- struct{}{}:
	case <-ctx.Done():
		return -1, ctx.Err()
	case <-turn.C:
		return -1, fmt.Errorf("%s did not begin within %s: other functions' commands take all places", args[0], limit)
	}
	free := sync.OnceFunc(func() { <-places })
	defer free()
	if places == f.a.reloads {
		defer time.AfterFunc(reloadBusy, free).Stop()
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	code, err := f.a.Runtime.Exec(limited, id, container.ExecSpec{Args: args, Stdin: in, Stdout: out, Stderr: said})
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%s did not end within %s", args[0], limit)
	}
	return code, err
}

// tail keeps the end of what a command prints.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p[max(0, len(p)-maxAnswer):]...)
	t.b = t.b[max(0, len(t.b)-maxAnswer):]
	return len(p), nil
}

// line is the last one that is not empty, as text.
func (t *tail) line() string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(t.b), "?"))
	text = text[strings.LastIndexByte(text, '\n')+1:]
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + " ..."
	}
	return strings.TrimSpace(text)
}

// errTooMuch ends a command that prints more than its bound.
var errTooMuch = errors.New("more than its bound")

// bounded keeps what a command prints, up to a bound. The buffer is not embedded: io.Copy would use its ReadFrom, which knows no bound.
type bounded struct {
	b    bytes.Buffer
	most int
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.b.Len()+len(p) > b.most {
		b.over = true
		return 0, errTooMuch
	}
	return b.b.Write(p)
}
