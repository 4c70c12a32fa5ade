package catalogue

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/image"
)

// TestFramesComeFinished: what a sender leaves to others is done before it enters a function whose image has weir.offloads: none, on both switches. Without the label a bridge hands it on as it was sent.
func TestFramesComeFinished(t *testing.T) {
	t.Parallel()
	program, err := filepath.Abs(filepath.Join("..", "..", "catalogue", "wire-bridge"))
	must(t, err)
	dir := t.TempDir()
	program, err = filepath.Rel(dir, program)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, image.RecipeFile), fmt.Appendf(nil, `name: finished
tag: "1"
entrypoint: [/usr/bin/wire-bridge]
labels: {weir.probe: "true", weir.capabilities: CAP_NET_ADMIN, weir.offloads: none}
files:
  - {to: /usr/bin/wire-bridge, go: %s}
`, program), 0o644))
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			if out, err := r.Weir(ctx, "image", "build", dir); err != nil {
				t.Fatal(out, err)
			}
			document := func(image string) string {
				return strings.ReplaceAll(r.Endpoints(), "interface:", "port_security: {mode: off}, interface:") + fmt.Sprintf(`functions:
  f: {image: %s}
chains:
  line: f
policies:
  all: {from: alice, mode: exhaustive, chain: line}
`, image)
			}
			r.MustApply(ctx, t, document("finished"))
			segmentPasses(ctx, t, r, true)
			carries(ctx, t, r, rig.BobAddr, 7100)
			if sw == "ebpf" { // the other one cuts a segment with a VLAN tag either way
				r.MustApply(ctx, t, document("wire-bridge"))
				segmentPasses(ctx, t, r, false)
			}
		})
	}
}
