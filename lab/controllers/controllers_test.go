package controllers

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The sink must get all that Weir installs, and answer as a switch does, or a rate into it means nothing. The peer must be able to say all of it.
func TestSinkCountsWhatIsInstalled(t *testing.T) {
	const spines, leaves = 2, 8
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	sink := make(chan error, 1)
	go func() { sink <- Sink(t.Context(), l.Addr().String(), spines+leaves, &out) }()
	in := LeafSpine(spines, leaves, 16, 40)
	mods, err := Compile(in)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Install(t.Context(), l, in, spines+leaves)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-sink; err != nil {
		t.Fatal(err)
	}
	if want := Count(mods); r.Mods != want || strings.TrimSpace(out.String()) != fmt.Sprintf(`{"flow_mods":%d}`, want) || want < 400 {
		t.Errorf("%d flow-mods compiled, %d installed, the sink says %s", want, r.Mods, out.String())
	}
	if r.Compiling <= 0 || r.Installing <= 0 || r.CPU <= 0 {
		t.Errorf("%+v", r)
	}
	for _, ms := range mods {
		for _, m := range ms {
			if _, err := oskenEntry(m); err != nil {
				t.Errorf("the peer cannot say %v: %v", m, err)
			}
		}
	}
	if err := Sink(t.Context(), l.Addr().String(), 0, &out); err == nil {
		t.Error("a sink of no switches")
	}
}

// What Weir encodes is what the peer encodes, to the byte.
func TestBothEncodeTheSame(t *testing.T) {
	o, err := FindOsken()
	if err != nil {
		t.Fatal(err)
	}
	in := LeafSpine(2, 8, 16, 40)
	mods, err := Compile(in)
	if err != nil {
		t.Fatal(err)
	}
	file, done, err := OskenFile(mods)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	theirs, err := o.Run(t.Context(), "", "encode", file)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := Encode(in)
	if err != nil {
		t.Fatal(err)
	}
	if ours.Mods != theirs.FlowMods || ours.Bytes != theirs.Bytes || ours.Bytes < 1000 {
		t.Errorf("Weir: %d flow-mods, %d bytes; %s: %d, %d", ours.Mods, ours.Bytes, OskenName, theirs.FlowMods, theirs.Bytes)
	}
}

// Entries that two controllers left are told apart, by the first that differs.
func TestEntriesOfTwoControllers(t *testing.T) {
	if err := same([]string{"a", "b"}, []string{"a", "b"}); err != nil {
		t.Error(err)
	}
	for _, now := range [][]string{{"a"}, {"a", "c"}, {"a", "b", "c"}} {
		if err := same([]string{"a", "b"}, now); err == nil {
			t.Errorf("%v: the same as a, b", now)
		}
	}
}

func TestOneMoreIsAmongAll(t *testing.T) {
	c := NewCompiler(LeafSpine(2, 8, 80, 500))
	all, entries, err := c.All()
	if err != nil || all <= 0 || entries < 1000 {
		t.Fatalf("%s, %d entries, %v", all, entries, err)
	}
	for range 3 {
		one, err := c.OneMore()
		if err != nil || one <= 0 || one > all {
			t.Errorf("one more took %s, all %s: %v", one, all, err)
		}
	}
	if _, again, err := c.All(); err != nil || again != entries {
		t.Errorf("%d entries, then %d: %v", entries, again, err)
	}
}

// Nothing is left, also of switches that nobody closed.
func TestSwitchesAreRemoved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("it makes network namespaces: run it as root")
	}
	dir := filepath.Join(t.TempDir(), "switches")
	s, err := Open(Options{Dir: dir, Switches: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.build(t.Context()); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := Remove(t.Context(), dir); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", dir, err)
	}
}
