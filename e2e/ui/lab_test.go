package ui

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// TestTheLab: runs are started, followed, cut off by a kill -9 of the manager, continued, read and compared in the browser.
func TestTheLab(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	pictures := os.Getenv("WEIR_UI_PICTURES")
	if *update {
		pictures = t.TempDir()
	}
	if pictures != "" {
		var err error
		if pictures, err = filepath.Abs(pictures); err != nil {
			t.Fatal(err)
		}
	}
	do := links(ctx, r)
	do["pictures"] = func(question) (any, error) { return map[string]string{"pictures": pictures}, nil }
	var process int
	do["kill"] = func(question) (any, error) {
		var runs api.LabRuns
		out, err := r.Weir(ctx, "lab", "runs", "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &runs)
		}
		if err != nil {
			return nil, err
		}
		for _, run := range runs.Items {
			if run.State == api.LabRunning && run.Progress != nil {
				process = run.Progress.PID
			}
		}
		if process == 0 {
			return nil, fmt.Errorf("no run goes on: %s", out)
		}
		return nil, r.Kill(syscall.SIGKILL)
	}
	// The run's process gets the kernel's word that the manager is dead, takes down what it made and ends.
	do["nothing is left"] = func(question) (any, error) {
		rig.Eventually(ctx, t, "the run ends with its manager", func() (bool, string) {
			err := syscall.Kill(process, 0)
			return err == syscall.ESRCH, fmt.Sprintf("process %d: %v", process, err)
		})
		out, err := r.Weir(ctx, "lab", "runs", "-o", "json")
		var runs api.LabRuns
		if err == nil {
			err = json.Unmarshal([]byte(out), &runs)
		}
		if err == nil && (len(runs.Items) != 2 || runs.Items[0].State != api.LabPartial || runs.Items[0].Progress != nil) {
			err = fmt.Errorf("the run did not end in order: %s", out) // in order, it wrote its results
		}
		return nil, err
	}
	do["start"] = func(question) (any, error) { return nil, r.Up(ctx) }
	do["compare"] = func(q question) (any, error) {
		var c api.LabComparison
		dir := filepath.Join(r.Root, "lab")
		out, err := r.Weir(ctx, "lab", "compare", filepath.Join(dir, q.Name), filepath.Join(dir, q.From), "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &c)
		}
		return map[string]int{"rows": len(c.Items)}, err
	}
	began := time.Now()
	play(ctx, t, r, "lab", do)
	if *update && !t.Failed() {
		keep(t, pictures, true)
	}
	t.Logf("took %s", time.Since(began).Round(time.Second))
}
