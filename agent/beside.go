package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"weir.dev/weir/agent/sandbox"
	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/datapath"
	"weir.dev/weir/image"
)

// A planned change (config, image, environment, command, limits, restart) makes the new instance beside the one that carries traffic. To the switch it
// is a function of its own, with ports of its own, under the function's name and second, or without second if the former instance has that. When it is up
// all rules move to its ports in one commit, as in any change of a chain, and those that lead out of the former instance stay until it has drained. An
// instance that does not come up changes nothing. Which of the two is in force is in applied.json before rules move.
const second = "~"

// Bounds of a change.
const (
	moveFor  = 10 * time.Second      // until rules lead to the new instance
	lookMove = 10 * time.Millisecond // whether they do
)

// inSwitch is the switch's name of the instance in force.
func (f *function) inSwitch() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.name + f.place
}

// standby is the switch's name of the other instance.
func (f *function) standby() string {
	if f.inSwitch() == f.name {
		return f.name + second
	}
	return f.name
}

// instances are ports under the names that the rest of Weir has for them: of two instances of a function only the one in force is known.
func (a *Agent) instances(ports []datapath.PortStatus) []datapath.PortStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := ports[:0:0]
	for _, p := range ports {
		if kind, name := objectOf(p.Name); kind == "function" {
			own := strings.TrimSuffix(name, second)
			if f := a.functions[own]; f != nil && f.inSwitch() != name {
				continue
			}
			p.Name = kind + "/" + own + strings.TrimPrefix(p.Name, kind+"/"+name)
			p.Function = own
		}
		out = append(out, p)
	}
	return out
}

// overlaps tells whether a changed instance can be made beside the one that runs.
func (f *function) overlaps(img image.Image) bool {
	return f.have == container.Running && f.alive && f.attached.done && f.attached.tap == img.Contract.Tap && !img.Contract.Recreate && f.a.boxes.Whole(f.box)
}

// change replaces the instance in force by one as it is wanted now. Until that is up the former one stays in force: f.behind.
func (f *function) change(ctx context.Context, want api.Function) (time.Duration, error) {
	img := f.ready.image
	f.afresh(attempt{want.UID, want.Generation, img.Digest})
	wait := time.Until(f.notBefore)
	if wait <= 0 {
		err := f.replace(ctx, want)
		if err == nil || ctx.Err() != nil {
			f.behind = false
			return 0, ctx.Err()
		}
		if errors.Is(err, errNotWanted) {
			return 0, err
		}
		wait = f.backoff()
		f.a.Log.Warn("change of a function", "function", f.name, "error", err)
		f.behind = true
		f.update(func(v *view) {
			v.status.Say(api.Condition{Type: api.ConditionOutdated, Reason: api.ReasonError,
				Message: fmt.Sprintf("the change is not in force, the former instance goes on: %v", err)})
		})
	}
	next, err := f.watchHealth(ctx, want, img)
	return min(wait, next, retryAfter), err
}

// successor is an instance that is made beside the one in force.
type successor struct {
	box   sandbox.Box
	name  string // the switch's
	ports datapath.Ports
	next  attachment
	here  container.Status
	begun time.Time
}

func (f *function) replace(ctx context.Context, want api.Function) error {
	s, err := f.prove(ctx, want)
	if err != nil {
		return errors.Join(err, f.discard(context.WithoutCancel(ctx), s))
	}
	f.handOver(ctx, s.box.ID())
	former, name, ports := f.container(), f.inSwitch(), f.view().ports
	box, a := f.box, f.applied
	f.applied.made(f.ready, want)
	f.applied.Second, f.applied.Container = s.name != f.name, s.box.ID()
	if err := f.saveApplied(); err != nil {
		f.applied = a
		return errors.Join(err, f.discard(ctx, s))
	}
	f.takeOver(s)
	if err := f.showNetns(s.box); err != nil {
		f.a.Log.Warn("name the namespace of a function", "function", f.name, "error", err)
	}
	f.update(func(v *view) {
		v.status.PID, v.status.Limits = s.here.PID, limitsOf(s.here)
		v.wasMachine = v.machine
		f.a.ranBy(v, s.box.ID())
		v.former, v.moving = ports, v.status.ObservedGeneration
		v.join(s.ports, s.next.tap)
	})
	if err := f.up(ctx, want, f.ready.image); err != nil {
		f.a.Log.Warn("set function up", "function", f.name, "error", err)
	}
	f.await(ctx)
	f.moved(ctx, ports)
	f.update(func(v *view) { v.former, v.moving = datapath.Ports{}, 0 })
	err = f.a.Switch.Remove(ctx, "function/"+name)
	f.lone = err == nil
	err = errors.Join(err, f.a.boxes.DeleteLinks(box))
	f.former, f.litter = append(f.former, former), true
	return errors.Join(err, f.a.Runtime.Stop(ctx, former, stopGrace))
}

// takeOver makes a successor the instance in force, as far as the agent knows.
func (f *function) takeOver(s successor) {
	f.attached, f.started, f.behind = s.next, s.begun, false
	f.enterBox(s.box)
	f.exits, f.waiting = make(chan container.Status, 1), false
	f.mu.Lock()
	f.cid, f.place = s.box.ID(), strings.TrimPrefix(s.name, f.name)
	f.mu.Unlock()
}

// prove makes a new instance and waits until it is up, or says why it is not.
func (f *function) prove(ctx context.Context, want api.Function) (s successor, err error) {
	img := f.ready.image
	s.name = f.standby()
	s.next = f.attachment(want, img)
	f.last++
	f.litter = true
	if s.box, err = f.makeBox(ctx); err != nil {
		return s, err
	}
	if s.ports, err = f.plug(ctx, s.box, s.name, s.next); err != nil {
		return s, err
	}
	spec := f.ready.spec
	err = f.whileWanted(ctx, spec.Runtime, func(ctx context.Context) (err error) {
		spec, err = f.enter(ctx, &s.box, want, spec, f.a.Runtime.Run)
		return err
	})
	if err != nil {
		return s, err
	}
	s.begun = time.Now()
	if s.here, err = f.a.Runtime.Status(ctx, spec.ID); err != nil {
		return s, err
	}
	return s, f.awaitUp(ctx, s, img)
}

// awaitUp waits until a new instance passes a probe or, without one, has lived for a while.
func (f *function) awaitUp(ctx context.Context, s successor, img image.Image) error {
	for {
		c, err := f.a.Runtime.Status(ctx, s.box.ID())
		switch age := time.Since(s.begun); {
		case err != nil:
			return err
		case c.State != container.Running:
			text := ending(c)
			if c.Signal == 0 {
				text += f.lastWordsOf(ctx, s.box.ID())
			}
			return errors.New(text)
		case age > f.a.silentFor(s.box.ID()):
			return errors.New("its process runs, but no probe frame has come through" + f.lastWordsOf(ctx, s.box.ID()))
		case !probes(img) && age > f.a.settlesIn(s.box.ID()):
			return f.a.Switch.SetState(ctx, s.name, datapath.Up, s.here.PID)
		case probes(img):
			limited, cancel := context.WithTimeout(ctx, min(max(age/2, probeFirst), probeLast))
			_, err := f.a.Switch.Probe(limited, s.name)
			cancel()
			if err == nil {
				return f.a.Switch.SetState(ctx, s.name, datapath.Up, s.here.PID)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookMove):
		}
	}
}

// moved waits until no rule names a former instance's ports any more, those by which it drains included. A pass that is under way may not know
// of the new ports yet: so two commits have to come. Then rules lead to the new instance, and the change is reported as in force.
func (f *function) moved(ctx context.Context, former datapath.Ports) {
	begin := f.a.commits.Load()
	f.a.poke()
	for end := time.Now().Add(moveFor); time.Now().Before(end) && ctx.Err() == nil; {
		if n := f.a.commits.Load(); n >= begin+2 {
			if f.view().moving != 0 {
				f.update(func(v *view) { v.moving = 0 })
			}
			used := *f.a.inUse.Load()
			if !used[former.In] && !used[former.Out] && !used[former.Tap] {
				return
			}
		} else {
			f.a.poke()
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookMove):
		}
	}
}

// discard takes away what there is of an instance that did not come up.
func (f *function) discard(ctx context.Context, s successor) error {
	if s.box.N == 0 {
		return nil
	}
	err := errors.Join(f.a.Switch.Remove(ctx, "function/"+s.name), f.a.Runtime.Delete(ctx, s.box.ID()))
	return errors.Join(err, f.a.boxes.Delete(ctx, s.box))
}
