package agent

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"weir.dev/weir/api"
)

// What functions leave behind is given once, goes after a while, and is bounded: the oldest goes first.
func TestWhatFunctionsLeaveIsBounded(t *testing.T) {
	var l left
	now := time.Now()
	has := func(uid string, at time.Time) bool { _, ok := l.take(uid, at); return ok }
	l.put("a", handed{state: []byte("x")}, false, now)
	if !has("a", now) || has("a", now) {
		t.Error("want it once")
	}
	l.put("b", handed{state: []byte("x")}, false, now)
	if has("b", now.Add(leftFor)) {
		t.Error("it is kept for too long")
	}
	for i := range 3 {
		l.put(fmt.Sprint("large", i), handed{state: make([]byte, api.MaxState)}, false, now)
	}
	if has("large0", now) || !has("large1", now) || !has("large2", now) {
		t.Errorf("want the last two, %d bytes are left", l.bytes)
	}
	for i := range leftMost + 1 {
		l.put(fmt.Sprint("none", i), handed{}, false, now)
	}
	if has("none0", now) || !has("none1", now) || l.bytes != 0 || len(l.all) != leftMost-1 {
		t.Errorf("%d are left, of %d bytes", len(l.all), l.bytes)
	}
}

// What another host has stays as well, for a function that comes back, but goes first where there is no room. A later state takes the place of an earlier one.
func TestWhatWasGivenGoesFirst(t *testing.T) {
	var l left
	now := time.Now()
	large := handed{state: make([]byte, api.MaxState)}
	l.put("needed", large, false, now)
	l.put("given", large, false, now)
	if _, ok := l.give("given", now); !ok {
		t.Error("want it given")
	}
	if _, ok := l.give("given", now); !ok {
		t.Error("want it kept when it is given")
	}
	l.put("late", large, false, now)
	if _, ok := l.take("given", now); ok {
		t.Error("want that gone which another host has")
	}
	l.put("other", large, true, now)
	for _, uid := range []string{"needed", "late"} {
		if _, ok := l.give(uid, now); !ok {
			t.Errorf("%s went before what another host has", uid)
		}
	}
	l.put("late", handed{state: []byte("new")}, false, now)
	if h, ok := l.take("late", now); !ok || string(h.state) != "new" || len(l.all) != 1 || l.bytes != api.MaxState {
		t.Errorf("%d bytes, %t: want the new state in place of the old one; %d are left, of %d bytes", len(h.state), ok, len(l.all), l.bytes)
	}
}

// A former host that hangs has some of the places for states that are fetched, never all.
func TestAHungFormerHostLeavesPlaces(t *testing.T) {
	f := newFetches()
	var leave []func()
	enter := func(former string) bool {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errors.New("no place"))
		defer cancel()
		l, err := f.enter(ctx, former)
		if err == nil {
			leave = append(leave, l)
		} else if err.Error() != "no place" {
			t.Error(err)
		}
		return err == nil
	}
	for i, want := range []struct {
		former string
		enters bool
	}{{"hung", true}, {"hung", true}, {"hung", false}, {"h2", true}, {"h3", true}, {"h4", false}} {
		if got := enter(want.former); got != want.enters {
			t.Errorf("%d: %s has a place: %t, want %t", i, want.former, got, want.enters)
		}
	}
	for _, l := range leave {
		l()
	}
	if len(f.by)+len(f.all) != 0 {
		t.Errorf("%d former hosts and %d places are left", len(f.by), len(f.all))
	}
}
