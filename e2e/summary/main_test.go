package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

const (
	failA   = `{"Action":"fail","Package":"p","Test":"TestA/one"}` + "\n" + `{"Action":"fail","Package":"p","Test":"TestA"}` + "\n"
	passB   = `{"Action":"pass","Package":"p","Test":"TestB"}` + "\n"
	ended   = `{"Action":"output","Package":"p","Output":"FAIL\n"}` + "\n" + `{"Action":"fail","Package":"p"}` + "\n"
	crashed = `{"Action":"output","Package":"p","Output":"exit status 2\n"}` + "\n" + `{"Action":"fail","Package":"p"}` + "\n"
	skips   = `{"Action":"output","Package":"p","Test":"TestC","Output":"c_test.go:1: no time\n"}` + "\n" + `{"Action":"skip","Package":"p","Test":"TestC"}` + "\n"
	// The test that fails is q's; p has one of the same name.
	interleaved = `{"Action":"run","Package":"p","Test":"TestA"}` + "\n" + `{"Action":"run","Package":"q","Test":"TestA"}` + "\n" +
		`{"Action":"output","Package":"q","Test":"TestA","Output":"a_test.go:1: wrong\n"}` + "\n" + `{"Action":"output","Package":"p","Test":"TestA","Output":"fine\n"}` + "\n" +
		`{"Action":"fail","Package":"q","Test":"TestA"}` + "\n" + `{"Action":"pass","Package":"p","Test":"TestA"}` + "\n" +
		`{"Action":"output","Package":"q","Output":"FAIL\n"}` + "\n" + `{"Action":"pass","Package":"p"}` + "\n" + `{"Action":"fail","Package":"q"}` + "\n"
	absent = `{"Action":"output","Package":"p","Test":"TestC","Output":"c_test.go:1: machine lacks processors: want 100000 of them\n"}` + "\n" + `{"Action":"skip","Package":"p","Test":"TestC"}` + "\n"
)

func TestWhatFailsTheRun(t *testing.T) {
	t.Setenv("CI", "true")
	var many strings.Builder
	for i := range maxUnsteady + 1 {
		fmt.Fprintf(&many, `{"Action":"fail","Package":"p","Test":"Test%d"}`+"\n", i)
	}
	for name, c := range map[string]struct {
		events string
		again  error // what a second run gives
		want   int
		ran    []string
	}{
		"all pass":                       {events: passB},
		"nothing ran":                    {want: 1},
		"failed once":                    {events: failA + passB + ended, ran: []string{"p TestA"}},
		"failed again":                   {events: failA + passB + ended, again: errors.New("exit status 1"), want: 1, ran: []string{"p TestA"}},
		"two packages at a time":         {events: interleaved, ran: []string{"q TestA"}},
		"many failed":                    {events: many.String() + passB + ended, want: 1},
		"a package ended early":          {events: failA + passB + crashed, want: 1},
		"a package without a test":       {events: passB + ended, want: 1},
		"beside one that ended so":       {events: failA + passB + ended + strings.ReplaceAll(ended, `"p"`, `"q"`), want: 1},
		"skipped":                        {events: passB + skips, want: 1},
		"skipped for what is not here":   {events: passB + absent},
		"skipped for what is here":       {events: passB + strings.Replace(absent, "100000", "1", 1), want: 1},
		"skipped for an unknown feature": {events: passB + strings.Replace(absent, "processors", "patience", 1), want: 1},
		"a feature later in the reason":  {events: passB + strings.Replace(absent, "machine lacks", "failed, as if the machine lacks", 1), want: 1},
		"one failed and one skipped":     {events: failA + passB + ended + skips, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var ran []string
			got := run(strings.NewReader(c.events), func(pkg, test, _ string) error {
				ran = append(ran, pkg+" "+test)
				return c.again
			})
			if got != c.want || !slices.Equal(ran, c.ran) {
				t.Errorf("exit %d after %q: want %d after %q", got, ran, c.want, c.ran)
			}
		})
	}
}

// Of a test whose subtests run beside each other those that failed are run again; else all of it, for a subtest may need what one before it has done.
func TestWhatIsRunAgain(t *testing.T) {
	event := func(action, test string) string {
		return fmt.Sprintf(`{"Action":%q,"Package":"p","Test":%q}`+"\n", action, test)
	}
	begun := event("run", "TestA")
	beside := func(names ...string) (all string) {
		for _, n := range names {
			all += event("run", n) + event("pause", n)
		}
		return all
	}
	failed := func(names ...string) (all string) {
		for _, n := range names {
			all += event("fail", n)
		}
		return all
	}
	for name, c := range map[string]struct{ events, want string }{
		"one of two beside each other":   {begun + beside("TestA/one", "TestA/two") + failed("TestA/one") + event("pass", "TestA/two") + failed("TestA"), "^TestA$/^one$"},
		"both":                           {begun + beside("TestA/one", "TestA/two") + failed("TestA/two", "TestA/one", "TestA"), "^TestA$/^one$|^TestA$/^two$"},
		"a slash and a dot in its name":  {begun + beside("TestA/../x.md", "TestA/two") + failed("TestA/../x.md", "TestA"), `^TestA$/^\.\.$/^x\.md$`},
		"one behind the other":           {begun + event("run", "TestA/one") + event("run", "TestA/two") + failed("TestA/two", "TestA"), "^TestA$"},
		"one behind which others go on":  {begun + event("run", "TestA/one") + beside("TestA/two", "TestA/three") + failed("TestA/two", "TestA"), "^TestA$"},
		"a part of one beside others":    {begun + beside("TestA/one", "TestA/two") + event("run", "TestA/one/x") + event("run", "TestA/one/y") + failed("TestA/one/y", "TestA/one", "TestA"), "^TestA$/^one$"},
		"the test itself":                {begun + beside("TestA/one") + event("pass", "TestA/one") + failed("TestA"), "^TestA$"},
		"a test without subtests":        {begun + failed("TestA"), "^TestA$"},
		"beside another test's subtests": {begun + beside("TestA/one") + event("run", "TestB") + event("run", "TestB/one") + event("pass", "TestB/one") + failed("TestA/one", "TestA"), "^TestA$/^one$"},
	} {
		t.Run(name, func(t *testing.T) {
			var got string
			if code := run(strings.NewReader(c.events+passB+ended), func(pkg, test, pattern string) error {
				got += pattern
				if pkg != "p" || test != "TestA" {
					t.Errorf("%s %s is run again", pkg, test)
				}
				return nil
			}); code != 0 || got != c.want {
				t.Errorf("exit %d after %q: want 0 after %q", code, got, c.want)
			}
		})
	}
}

// The slowest are listed, the slowest first. A test's time is without that of its subtests, which are listed themselves. Go counts in a test's time the subtests
// that run one behind the other, and not those that run beside each other.
func TestTheSlowestAreListed(t *testing.T) {
	var events strings.Builder
	event := func(action, pkg, test string, seconds float64) {
		fmt.Fprintf(&events, `{"Action":%q,"Package":%q,"Test":%q,"Elapsed":%g}`+"\n", action, pkg, test, seconds)
	}
	for i := range slowPackages + 5 {
		event("run", fmt.Sprint("p", i), "TestA", 0)
		event("pass", fmt.Sprint("p", i), "TestA", float64(i)/10)
		event("pass", fmt.Sprint("p", i), "", float64(i))
	}
	for _, test := range []string{"TestB", "TestB/one", "TestB/two", "TestC", "TestC/one", "TestC/two"} {
		event("run", "q", test, 0)
		if strings.HasPrefix(test, "TestC/") {
			event("pause", "q", test, 0)
		}
	}
	event("pass", "q", "TestB/one", 10)
	event("fail", "q", "TestB/two", 20.04)
	event("fail", "q", "TestB", 33)
	event("pass", "q", "TestC/one", 40)
	event("skip", "q", "TestC/two", 50)
	event("pass", "q", "TestC", 4)
	event("fail", "q", "", 100)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = write
	run(strings.NewReader(events.String()), func(string, string, string) error { return nil })
	os.Stdout = stdout
	write.Close()
	out, err := io.ReadAll(read)
	if err != nil {
		t.Fatal(err)
	}
	want := "the slowest packages, in seconds:\n   100.0  q\n"
	for i := slowPackages + 4; i > 5; i-- {
		want += fmt.Sprintf("%8.1f  p%d\n", float64(i), i)
	}
	want += "the slowest tests, in seconds:\n    50.0  q TestC/two\n    40.0  q TestC/one\n    20.0  q TestB/two\n    10.0  q TestB/one\n     4.0  q TestC\n     3.0  q TestB\n" +
		"     1.9  p19 TestA\n     1.8  p18 TestA\n     1.7  p17 TestA\n     1.6  p16 TestA\n"
	if !strings.Contains(string(out), want) {
		t.Errorf("%s\nhas not\n%s", out, want)
	}
}

// A feature that is there excuses no skip, whatever the test says.
func TestWhatIsThereIsNotLacked(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if !excused("machine lacks rkt: why") || !excused("this machine lacks rkt") {
		t.Error("a machine without rkt lacks it")
	}
	if err := os.WriteFile(dir+"/rkt", []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if excused("machine lacks rkt: why") {
		t.Error("a machine with rkt is said to lack it")
	}
	if excused("machine lacks KVM: why") == excused("machine lacks emulated machines: why") {
		t.Error("a machine has one kind of virtual machines, and lacks the other")
	}
	for _, reason := range []string{"", "no reason given", "machine lacks", "machine lacks processors: want many", "the kernel lacks WireGuard"} {
		if excused(reason) {
			t.Errorf("%q is excused", reason)
		}
	}
}
