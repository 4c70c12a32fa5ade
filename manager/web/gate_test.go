package web

import (
	"fmt"
	"net"
	"os"
	"testing"
	"time"
)

// Where there are too many strangers, the oldest connection of the source that has the most ends, and who is known stays.
func TestTheGateTakesFromWhoHasMost(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	next := ""
	g := newGate(l, gateBounds{known: 3, knownPer: 2, strangers: 4, strangersPer: 3, timeout: time.Minute}, func(net.Conn) string { return next })
	defer g.Close()
	come := func(source string) *gatedConn {
		t.Helper()
		next = source
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		a, err := g.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.Close() })
		return a.(*gatedConn)
	}
	var many []*gatedConn
	for range 4 {
		many = append(many, come("many"))
	}
	few := come("few")
	if !many[0].closed || many[1].closed {
		t.Errorf("the fourth of one source: %v, %v: want the first to end", many[0].closed, many[1].closed)
	}
	come("new")
	if few.closed || !many[1].closed || many[2].closed {
		t.Errorf("one too many: %v, %v, %v: want the oldest of who has most to end", few.closed, many[1].closed, many[2].closed)
	}
	if !many[2].show() || !many[3].show() || few.closed {
		t.Error("two of one source are known")
	}
	if third := come("many"); third.show() {
		t.Error("a source has more than its share of those who are known")
	}
	if !few.show() || come("new").show() {
		t.Error("more are known than there are places")
	}
	many[2].Close()
	if !come("new").show() {
		t.Error("a place that was given back is not taken")
	}
}

// This machine's root finds a place when everybody else's are taken.
func TestTheGateKeepsPlacesForRoot(t *testing.T) {
	g := newGate(nil, gateBounds{known: 3, knownPer: 3, rootOnly: 1}, nil)
	show := func(source string) bool { return (&gatedConn{gate: g, source: source}).show() }
	if !show("a") || !show("b") || show("c") {
		t.Error("others do not have 2 of 3 places")
	}
	if !show(localRoot) || show(localRoot) {
		t.Error("root does not have the third place, or more")
	}
}

// A socket's owner is found by both of its addresses, and nobody is taken for root.
func TestOwnerOfASocket(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		far, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		if got, want := localUser(far), fmt.Sprintf("user %d", os.Getuid()); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
		c.Close()
		if got := localUser(far); got != unknownUser {
			t.Errorf("%s: the owner of a closed socket is %q", address, got)
		}
	}
}
