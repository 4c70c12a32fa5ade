package catalogue_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weir.dev/weir/container"
	"weir.dev/weir/netns"
)

// BenchmarkFunctions makes b.N functions of each image, as the agent does: namespaces and ports first, two at a time where parallel
// is said. Run it with -benchtime 100x.
func BenchmarkFunctions(b *testing.B) {
	for _, ref := range []string{"wire", "firewall", "monitor", "impair"} {
		b.Run(ref, func(b *testing.B) {
			w := newWorld(b)
			img, err := w.images.Resolve(ref)
			if err != nil {
				b.Fatal(err)
			}
			rootfs, err := w.images.Mount(b.Context(), ref)
			if err != nil {
				b.Fatal(err)
			}
			dir := b.TempDir()
			spaces := make([]string, b.N)
			for i := range spaces {
				spaces[i] = filepath.Join(dir, fmt.Sprint("ns", i))
				if err := netns.Create(spaces[i], netns.Options{Quiet: true}); err != nil {
					b.Fatal(err)
				}
				defer netns.Delete(spaces[i]) //nolint:errcheck // the directory's removal would tell
				ports := []string{"in", "out"}
				if img.Contract.Tap {
					ports = []string{"tap"}
				}
				for _, port := range ports {
					if _, err := netns.Veth(spaces[i], spaces[i], netns.VethOptions{HostName: port, PeerName: port + "-peer", Alias: "weir:bench"}); err != nil {
						b.Fatal(err)
					}
				}
			}
			ctx := b.Context()
			step := func(what string, f func(i int) error) {
				start := time.Now()
				for i := range b.N {
					if err := f(i); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(time.Since(start).Microseconds())/1000/float64(b.N), what+"-ms")
			}
			id := func(i int) string { return fmt.Sprint(ref, i) }
			spec := func(i int) container.Spec {
				return container.Spec{
					ID: id(i), Rootfs: rootfs, ReadOnly: true, Args: img.Args, Env: img.Env, Netns: spaces[i], Capabilities: img.Contract.Capabilities,
				}
			}
			step("run", func(i int) error { return w.runtime.Run(ctx, spec(i)) })
			step("stop", func(i int) error { return w.runtime.Stop(ctx, id(i), 10*time.Second) })
			step("delete", func(i int) error { return w.runtime.Delete(ctx, id(i)) })
			step("create", func(i int) error { return w.runtime.Create(ctx, spec(i)) })
			step("start", func(i int) error { return w.runtime.Start(ctx, id(i)) })
			kb, pss := 0, 0
			for i := range b.N {
				kb += residentKB(b, w, id(i))
				pss += proportionalKB(b, w, id(i))
			}
			b.ReportMetric(float64(kb)/float64(b.N), "rss-KB")
			b.ReportMetric(float64(pss)/float64(b.N), "pss-KB")
		})
	}
}

func proportionalKB(t testing.TB, w world, id string) int {
	t.Helper()
	s, err := w.runtime.Status(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", s.PID))
	if err != nil {
		t.Fatal(err)
	}
	return field(t, string(raw), "Pss:")
}
