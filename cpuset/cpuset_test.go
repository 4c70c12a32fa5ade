package cpuset

import (
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "0": "0", "0-3,5": "0-3,5", "5,0,1": "0-1,5", "1,2,3": "1-3", "0-2,1-4": "0-4", "7-7": "7", "8191": "8191",
	} {
		if s, err := Parse(text); err != nil || s.String() != want {
			t.Errorf("%q is %q, %v; want %q", text, s, err, want)
		}
	}
	for _, text := range []string{",", "1,", "a", "3-1", "-1", "1-", "0-3,5 ", "8192", "0x1", "1--2", "99999999999", "0-5:1/2"} {
		if s, err := Parse(text); err == nil {
			t.Errorf("%q is %v, want an error", text, s)
		}
	}
}

// What overlaps again and again takes no more memory than the processors that there can be.
func TestOverlapsTakeNoMemory(t *testing.T) {
	text := strings.Repeat("0-8191,", 9_000) + "0"
	before := testing.AllocsPerRun(1, func() {
		if s, err := Parse(text); err != nil || len(s) != Max+1 || cap(s) > 4*Max {
			t.Errorf("%d processors with room for %d, %v; want %d", len(s), cap(s), err, Max+1)
		}
	})
	if before > 100 {
		t.Errorf("%.0f allocations", before)
	}
}

// Whoever writes a set writes no more than a set takes, and gets no more back.
func TestLongTextsAreRefused(t *testing.T) {
	if _, err := Parse(strings.Repeat("0-8191,", 20_000) + "0"); err == nil || len(err.Error()) > 200 {
		t.Errorf("140 kB of ranges: %v", err)
	}
	if _, err := Parse(strings.Repeat("x", maxText)); err == nil || len(err.Error()) > 300 {
		t.Errorf("64 kB of letters: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("0-3,5")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(s.String())
		if err != nil || again.String() != s.String() {
			t.Errorf("%q is %q, and that is %q, %v", text, s, again, err)
		}
	})
}

// A process may run on processors that are there, and on no more when it has confined itself.
func TestAllowedAreThoseOfThisProcess(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	all, err := Allowed()
	online, err2 := Online()
	if err != nil || err2 != nil || len(all) == 0 || len(all.Without(online)) > 0 {
		t.Fatalf("%v of %v: %v, %v", all, online, err, err2)
	}
	last := all[len(all)-1]
	var one unix.CPUSet
	one.Set(last)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	if got, err := Allowed(); err != nil || len(got) != 1 || got[0] != last {
		t.Errorf("%v, %v: want %d alone", got, err, last)
	}
}
