package experiment

import (
	"cmp"
	"os"
	"path/filepath"
	"testing"
)

// weirBench is a bench whose daemons are the program that was built.
func weirBench(t *testing.T) *Bench {
	t.Helper()
	program, err := filepath.Abs(cmp.Or(os.Getenv("WEIR_BIN"), "../../bin/weir"))
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		t.Fatalf("%v: build it with `make build`", err)
	}
	b := testBench(t)
	b.Program, b.Images = program, []string{filepath.Join(filepath.Dir(program), "images")}
	return b
}

// Both controllers install the same entries into each kind of switch, and the rates are some.
func TestControllersInstall(t *testing.T) {
	b := weirBench(t)
	for _, into := range []string{intoOVS, intoSink, intoNothing} {
		for _, by := range []string{byWeir, byOsken} {
			m := measure(t, installExperiment{}, b, Levels{factorController: by, factorInto: into, factorPolicies: "30"})
			if m.Void != "" || m.Values["entries"] <= 0 || m.Values["cpu"] <= 0 {
				t.Errorf("%s into %s: %+v", by, into, m)
			}
			if _, ok := m.Values["policies"]; ok == (into == intoNothing) {
				t.Errorf("%s into %s: policies that are in force: %v", by, into, m.Values)
			}
		}
	}
}

func TestPoliciesCompile(t *testing.T) {
	m := measure(t, compileExperiment{}, nil, Levels{factorPolicies: "200"})
	if m.Values["all"] <= 0 || m.Values["one"] <= 0 || m.Values["one-p99"] < m.Values["one"] || m.Values["entries"] < 500 {
		t.Errorf("%v", m.Values)
	}
}
