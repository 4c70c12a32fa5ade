package escape

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/container/kernel/suite"
	"weir.dev/weir/e2e/rig"
)

var update = flag.Bool("update", false, "write the tables of docs/conformance.md")

const (
	tablesBegin = "<!-- tables: go test ./e2e/escape -run TestTheTablesAreTrue -update -->\n"
	tablesEnd   = "<!-- end of tables -->\n"
)

// The tables of docs/conformance.md say what the suites and this package do.
func TestTheTablesAreTrue(t *testing.T) {
	top, err := rig.Top()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(top, "docs/conformance.md")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), tablesBegin)
	have, after, ok2 := strings.Cut(rest, tablesEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for tables", file)
	}
	want := tables(t)
	if *update {
		if err := os.WriteFile(file, []byte(before+tablesBegin+want+tablesEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("%s is out of date: go test ./e2e/escape -run TestTheTablesAreTrue -update\n%s", file, diff)
	}
}

// pageOf is a page of tables whose cells refer to reasons, which are listed at its end.
type pageOf struct {
	strings.Builder
	reasons []string
}

// cell is "yes", or the number of the reason why not.
func (p *pageOf) cell(reason string) string {
	if reason == "" {
		return "yes"
	}
	at := slices.Index(p.reasons, reason)
	if at < 0 {
		at = len(p.reasons)
		p.reasons = append(p.reasons, reason)
	}
	return fmt.Sprintf("(%d)", at+1)
}

// table has a row for each name, and a column for each runtime.
func (p *pageOf) table(title string, columns, names []string, why func(driver, name string) string) {
	fmt.Fprintf(p, "\n### %s\n| | %s |\n|---%s|\n", title, strings.Join(columns, " | "), strings.Repeat("|---", len(columns)))
	for _, name := range names {
		fmt.Fprintf(p, "| %s ", name)
		for _, driver := range columns {
			fmt.Fprintf(p, "| %s ", p.cell(why(driver, name)))
		}
		p.WriteString("|\n")
	}
}

const (
	noRkt = "not tried: no distribution has rkt"
	once  = "not tried: it does not depend on the runtime (package kernel, or the switch), and is tried on another"
)

func tables(t *testing.T) string {
	t.Helper()
	var p pageOf
	conformance, isolation, promises := suite.Cases()
	skipped := func(driver, name string) string {
		if why := suite.Skipped(driver, name); why != "" {
			return why
		}
		return strings.Join(suite.Parts(driver, name), "; ")
	}
	columns := api.Runtimes()
	columns = slices.Insert(columns, slices.Index(columns, "oci")+1, "crun") // oci is tried with two programs
	p.table("Conformance (`container/suite`)", columns, conformance, skipped)
	p.table("Isolation (`container/suite`)", columns, isolation, skipped)
	p.table("What all engines promise (`container/kernel/suite`)", columns, promises, skipped)
	p.table("Ways out (`e2e/escape` TestNothingGetsOut)", columns, attempts(t), func(driver, name string) string {
		return with(driver, func(rt runtime) string { return rt.passes[name] })
	})
	p.table("Abuses (`e2e/escape` TestAppetiteIsBounded)", columns, everyAbuse, func(driver, name string) string {
		return with(driver, func(rt runtime) string {
			switch {
			case rt.passes[name] != "":
				return rt.passes[name]
			case !slices.Contains(rt.abuses, name):
				return once
			}
			return ""
		})
	})
	p.table("Forged frames (`e2e/escape` TestForgedFramesHarmNoNeighbour)", columns, []string{"ebpf", "ovs"}, func(driver, name string) string {
		return with(driver, func(rt runtime) string {
			if !slices.Contains(rt.switches, name) {
				return once
			}
			return ""
		})
	})
	p.WriteString("\n### Reasons\n")
	for i, reason := range p.reasons {
		fmt.Fprintf(&p, "%d. %s\n", i+1, reason)
	}
	p.WriteString("\n")
	return p.String()
}

// with asks for a runtime that this package tries.
func with(name string, f func(rt runtime) string) string {
	at := slices.IndexFunc(runtimes, func(rt runtime) bool { return rt.name == name })
	if at < 0 {
		return noRkt
	}
	return f(runtimes[at])
}

// attempts are the names of what package hostile tries.
func attempts(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "run", "./hostile", "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}
