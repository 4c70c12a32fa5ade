package report

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// seen is what browser/look.mjs prints of one form of the page.
type seen struct {
	Width, ScrollWidth int
	Background         string
	Figures            []struct {
		ID          string
		Tables      int
		SVG, Canvas int
	}
	Canvases []struct {
		ID           string
		Ink, Colours int
	}
	Small, Pale, Outside, Errors []string
	Findings, Nameless, Requests int
	Saved                        string
}

func command(t *testing.T, dir, name string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.Cancel = dir, func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, stderr.String(), out)
	}
	return out
}

func tool(t *testing.T, names ...string) string {
	t.Helper()
	for _, n := range names {
		if path, err := exec.LookPath(n); err == nil {
			return path
		}
	}
	t.Fatalf("there is no %s: run ./setup.sh", strings.Join(names, " or "))
	return ""
}

// install what look.mjs needs, if it is not there as the lock file says.
func install(t *testing.T, dir string) {
	t.Helper()
	var want, have struct {
		Packages map[string]struct{ Version string }
	}
	const name = "node_modules/playwright-core"
	lock, err := os.ReadFile(filepath.Join(dir, "package-lock.json"))
	if err == nil {
		err = json.Unmarshal(lock, &want)
	}
	if err != nil {
		t.Fatal(err)
	}
	there, err := os.ReadFile(filepath.Join(dir, "node_modules", ".package-lock.json"))
	if err == nil {
		err = json.Unmarshal(there, &have)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if v := want.Packages[name].Version; v != "" && v == have.Packages[name].Version {
		return
	}
	command(t, dir, tool(t, "npm"), "ci", "--no-audit", "--no-fund", "--ignore-scripts")
}

// look opens a report in all forms.
func look(t *testing.T, report string) map[string]seen {
	t.Helper()
	browser, node := tool(t, "chromium", "chromium-browser"), tool(t, "node", "nodejs")
	install(t, "browser")
	args := []string{"look.mjs", browser, report, t.TempDir()}
	if keep := os.Getenv("WEIR_REPORT_PICTURES"); keep != "" { // a directory for pictures to look at
		args = []string{"look.mjs", browser, report, keep, "pictures"}
	}
	out := command(t, "browser", node, args...)
	forms := map[string]seen{}
	if err := json.Unmarshal(out, &forms); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	if st, err := os.Stat(filepath.Join(args[3], "print.pdf")); err != nil || st.Size() < 20_000 {
		t.Errorf("the printed report is no document: %v", err)
	}
	return forms
}

func TestInBrowser(t *testing.T) {
	r := Of(synthetic(t, -1))
	paths, err := r.Write(t.TempDir(), HTML)
	if err != nil {
		t.Fatal(err)
	}
	forms := look(t, paths[0])
	figures := r.figures()
	charts := 0
	for _, f := range figures {
		if f.Chart != nil {
			charts++
		}
	}
	for _, name := range []string{"light", "dark", "turned", "telephone", "print", "without-script"} {
		s, ok := forms[name]
		if !ok {
			t.Fatalf("%s is not there", name)
		}
		if len(s.Errors) > 0 {
			t.Errorf("%s: the console says: %s", name, strings.Join(s.Errors, "\n"))
		}
		if s.Requests > 1 {
			t.Errorf("%s: %d requests: want only the page itself", name, s.Requests)
		}
		if s.ScrollWidth > s.Width {
			t.Errorf("%s: %d px wide in a window of %d", name, s.ScrollWidth, s.Width)
		}
		if len(s.Small) > 0 && name != "print" {
			t.Errorf("%s: text under 12 px: %q", name, s.Small[:min(5, len(s.Small))])
		}
		if len(s.Pale) > 0 {
			t.Errorf("%s: contrast under 4.5: %q", name, s.Pale[:min(5, len(s.Pale))])
		}
		if len(s.Outside) > 0 {
			t.Errorf("%s: text outside its figure: %q", name, s.Outside[:min(5, len(s.Outside))])
		}
		if s.Nameless > 0 {
			t.Errorf("%s: %d elements have no name", name, s.Nameless)
		}
		if s.Findings != len(r.Findings) || len(s.Figures) != len(figures) {
			t.Errorf("%s: %d findings and %d figures: want %d and %d", name, s.Findings, len(s.Figures), len(r.Findings), len(figures))
		}
		drawn := 0
		for _, f := range s.Figures {
			if f.Tables == 0 {
				t.Errorf("%s: figure %s has no table", name, f.ID)
			}
			if f.SVG < 10 && f.Canvas == 0 {
				t.Errorf("%s: figure %s is not drawn: %+v", name, f.ID, f)
			}
			drawn += f.Canvas
		}
		want := charts
		if name == "print" || name == "without-script" {
			want = 0
		}
		if drawn != want {
			t.Errorf("%s: %d charts: want %d", name, drawn, want)
		}
		for _, c := range s.Canvases {
			if c.Ink < 500 || c.Colours < 3 {
				t.Errorf("%s: chart %s is blank: %+v", name, c.ID, c)
			}
		}
	}
	if forms["light"].Background == forms["dark"].Background {
		t.Error("dark is as light")
	}
	if forms["turned"].Background != forms["dark"].Background {
		t.Error("a page that is open does not turn dark")
	}
	if forms["light"].Saved != "trials.csv" {
		t.Errorf("saved %q", forms["light"].Saved)
	}
}
