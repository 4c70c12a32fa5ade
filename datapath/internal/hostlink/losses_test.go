package hostlink

import "testing"

func TestLossesAddUpOverLinks(t *testing.T) {
	var l Losses
	for i, x := range []struct {
		link int
		own  bool
		now  uint64
		want uint64
	}{{7, true, 3, 3}, {7, true, 5, 5}, {8, true, 0, 5}, {8, true, 2, 7}, {8, true, 1, 8}, {9, false, 100, 8}, {9, false, 101, 9}} {
		if got := l.Total("p", x.link, x.own, x.now); got != x.want {
			t.Fatalf("step %d: %d, want %d", i, got, x.want)
		}
	}
	l.Keep(func(string) bool { return false })
	if got := l.Total("p", 9, true, 2); got != 2 {
		t.Fatalf("a port that is made anew begins with %d", got)
	}
}
