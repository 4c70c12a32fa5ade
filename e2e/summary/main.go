// Command summary reads `go test -json` and prints what a person wants to know: a line per package, the output of what failed,
// every skip with its reason, and the totals. In CI (CI=true) a skip fails the run unless its reason begins with
// "kernel lacks": only what the machine truly cannot do may be left out.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
)

type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// maxOutput bounds what is kept of one test's output.
const maxOutput = 256 << 10

func main() {
	os.Exit(run())
}

func run() int {
	output := map[string]*strings.Builder{}
	var failed, skipped []string
	parents := map[string]bool{}
	passed, bad := 0, 0
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(make([]byte, 1<<20), 16<<20)
	for in.Scan() {
		var e event
		if json.Unmarshal(in.Bytes(), &e) != nil || e.Action == "" {
			fmt.Println(in.Text()) // a compiler's message
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "output", "build-output":
			b := output[key]
			if b == nil {
				b = &strings.Builder{}
				output[key] = b
			}
			if e.Action == "build-output" {
				fmt.Print(e.Output)
			} else if b.Len() < maxOutput {
				b.WriteString(e.Output)
			}
		case "run":
			if i := strings.LastIndex(e.Test, "/"); i > 0 {
				parents[e.Package+" "+e.Test[:i]] = true
			}
		case "pass", "fail", "skip":
			if e.Test == "" {
				if e.Action == "fail" {
					bad++
					fmt.Print(text(output[key]))
				}
				if e.Action != "skip" {
					fmt.Printf("%-4s %-40s %6.1fs\n", map[string]string{"pass": "ok", "fail": "FAIL"}[e.Action], e.Package, e.Elapsed)
				}
				continue
			}
			switch {
			case e.Action == "fail":
				failed = append(failed, key)
				fmt.Printf("--- FAIL %s\n%s", key, text(output[key]))
			case e.Action == "skip":
				skipped = append(skipped, key+": "+reason(text(output[key])))
			case !parents[key]:
				passed++
			}
			delete(output, key)
		}
	}
	sort.Strings(skipped)
	unexcused := 0
	for _, s := range skipped {
		mark := "skipped"
		if os.Getenv("CI") == "true" && !strings.Contains(s, "kernel lacks") {
			mark, unexcused = "SKIPPED IN CI", unexcused+1
		}
		fmt.Printf("%s %s\n", mark, s)
	}
	if unexcused > 0 {
		fmt.Printf("%d tests skipped for a reason other than the kernel's: in CI that fails\n", unexcused)
	}
	if err := in.Err(); err != nil {
		fmt.Println("summary:", err)
		bad++
	}
	if bad > 0 && len(failed) == 0 {
		failed = append(failed, "a package that did not build or ended early")
	}
	for _, f := range failed {
		fmt.Println("failed:", f)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", passed, len(failed)+unexcused, len(skipped)-unexcused)
	if len(failed)+unexcused > 0 || passed == 0 {
		return 1
	}
	return 0
}

func text(b *strings.Builder) string {
	if b == nil {
		return ""
	}
	return b.String()
}

// reason picks the message of t.Skip out of a test's output.
func reason(out string) string {
	for _, l := range strings.Split(out, "\n") {
		l = strings.TrimSpace(l)
		if l != "" && !strings.HasPrefix(l, "===") && !strings.HasPrefix(l, "---") {
			if _, after, ok := strings.Cut(l, ": "); ok {
				return after
			}
			return l
		}
	}
	return "no reason given"
}
