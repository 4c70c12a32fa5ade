package agent

import (
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
	l.put("a", handed{state: []byte("x")}, now)
	if !has("a", now) || has("a", now) {
		t.Error("want it once")
	}
	l.put("b", handed{state: []byte("x")}, now)
	if has("b", now.Add(leftFor)) {
		t.Error("it is kept for too long")
	}
	for i := range 3 {
		l.put(fmt.Sprint("large", i), handed{state: make([]byte, api.MaxState)}, now)
	}
	if has("large0", now) || !has("large1", now) || !has("large2", now) {
		t.Errorf("want the last two, %d bytes are left", l.bytes)
	}
	for i := range leftMost + 1 {
		l.put(fmt.Sprint("none", i), handed{}, now)
	}
	if has("none0", now) || !has("none1", now) || l.bytes != 0 || len(l.all) != leftMost-1 {
		t.Errorf("%d are left, of %d bytes", len(l.all), l.bytes)
	}
}
