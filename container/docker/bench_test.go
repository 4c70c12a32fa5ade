package docker

import (
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel/suite"
	"weir.dev/weir/instance"
)

// BenchmarkLifecycle measures this driver beside `docker` by hand, in turns: medians of ten. Run it with -benchtime 1x.
func BenchmarkLifecycle(b *testing.B) {
	mustImport(b, shared, "bench:1")
	defer mustCLI(b, shared, "rmi", "bench:1")
	r, spec := fresh(b, shared)
	e, err := connect(instance.Instance{}, optionsOf(shared))
	must(b, err)
	defer e.api.Close()
	spec.Args = []string{"/bin/sleep", "1000"}
	took := map[string][]time.Duration{}
	step := func(name string, f func() error) {
		start := time.Now()
		if err := f(); err != nil {
			b.Fatalf("%s: %v", name, err)
		}
		took[name] = append(took[name], time.Since(start))
	}
	docker := func(args ...string) func() error {
		return func() error {
			cmd := exec.Command("docker", append([]string{"--host", shared.Host()}, args...)...)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}
	}
	for i := range 11 {
		s := spec
		s.ID = fmt.Sprint("w", i)
		step("weir-create", func() error { return r.Create(b.Context(), s) })
		step("weir-start", func() error { return r.Start(b.Context(), s.ID) })
		step("weir-exec", func() error {
			_, err := r.Exec(b.Context(), s.ID, container.ExecSpec{Args: []string{"/bin/echo"}})
			return err
		})
		step("weir-stop", func() error { return r.Stop(b.Context(), s.ID, 0) })
		step("weir-delete", func() error { return r.Delete(b.Context(), s.ID) })
		step("weir-run", func() error { return r.Run(b.Context(), s) })
		step("weir-delete-running", func() error { return r.Delete(b.Context(), s.ID) })
		name := fmt.Sprint("h", i)
		hard := []string{"--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"}
		step("cli-create", docker(append(append([]string{"create", "--name", name}, hard...), "bench:1", "/bin/sleep", "1000")...))
		step("cli-start", docker("start", name))
		step("cli-exec", docker("exec", name, "/bin/echo"))
		step("api-exec", func() error { return execByAPI(b, e.api, name) })
		step("cli-stop", docker("kill", name))
		step("cli-rm", docker("rm", name))
		step("cli-run", docker(append(append([]string{"run", "-d", "--name", name}, hard...), "bench:1", "/bin/sleep", "1000")...))
		step("cli-rm-running", docker("rm", "--force", name))
		if i == 0 {
			clear(took) // warm
		}
	}
	for name, all := range took {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, name+"-ms")
	}
}

// BenchmarkImages measures what it would cost to give the engine an image's files, which the driver does not.
func BenchmarkImages(b *testing.B) {
	root := suite.Rootfs(b)
	if out, err := exec.Command("dd", "if=/dev/urandom", "of="+filepath.Join(root, "big"), "bs=1M", "count=64").CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	e, err := connect(suite.NewInstance(b), optionsOf(shared))
	must(b, err)
	defer e.api.Close()
	var files, none []time.Duration
	for range 5 {
		pack := exec.Command("tar", "-C", root, "-c", ".")
		in, err := pack.StdoutPipe()
		must(b, err)
		must(b, pack.Start())
		start := time.Now()
		out, err := e.api.ImageImport(b.Context(), client.ImageImportSource{Source: in, SourceName: "-"}, "files:1", client.ImageImportOptions{})
		must(b, err)
		must(b, importError(out))
		files = append(files, time.Since(start))
		must(b, out.Close())
		must(b, pack.Wait())
		mustCLI(b, shared, "rmi", "files:1")
		start = time.Now()
		must(b, e.importImage(b.Context()))
		none = append(none, time.Since(start))
		must(b, e.removeImages(b.Context()))
	}
	slices.Sort(files)
	slices.Sort(none)
	b.ReportMetric(float64(files[2].Milliseconds()), "64MiB-ms")
	b.ReportMetric(float64(none[2].Milliseconds()), "empty-ms")
}

// execByAPI runs a program to its end as the engine's client does, without the start of a client.
func execByAPI(b *testing.B, c *client.Client, id string) error {
	x, err := c.ExecCreate(b.Context(), id, client.ExecCreateOptions{Cmd: []string{"/bin/echo"}, AttachStdout: true})
	if err != nil {
		return err
	}
	a, err := c.ExecAttach(b.Context(), x.ID, client.ExecAttachOptions{})
	if err != nil {
		return err
	}
	defer a.Close()
	if _, err := io.Copy(io.Discard, a.Reader); err != nil {
		return err
	}
	_, err = c.ExecInspect(b.Context(), x.ID, client.ExecInspectOptions{})
	return err
}
