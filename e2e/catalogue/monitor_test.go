package catalogue

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.dev/weir/e2e/rig"
)

// TestFlowsAreReadFromATap: what passes a tap is read as JSON and as IPFIX from a running monitor, through the API; tshark finds the flows in the file. It stands in
// nobody's way.
func TestFlowsAreReadFromATap(t *testing.T) {
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			r.MustApply(ctx, t, r.Endpoints()+`functions:
  w: {image: wire}
  mon: {image: monitor, config: {idle_s: 2, active_s: 1}}
chains:
  c: w | tap:mon
policies:
  p: {from: alice, to: bob, symmetric: true, chain: c}
`)
			dir := t.TempDir()
			read := func(format string) string {
				raw, err := os.ReadFile(filepath.Join(dir, format))
				if err != nil {
					t.Fatal(err)
				}
				return string(raw)
			}
			for _, format := range []string{"json", "ipfix"} {
				f, err := os.Create(filepath.Join(dir, format))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				cmd := r.WeirCommand(ctx, "function", "exec", "mon", "--", "monitor", "-follow", format)
				cmd.Stdout = f
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				defer cmd.Wait()         //nolint:errcheck // it is killed
				defer cmd.Process.Kill() //nolint:errcheck // it may have ended
			}
			rig.Eventually(ctx, t, "flows of pings are told", func() (bool, string) {
				if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.1"); err != nil {
					t.Fatal(err)
				}
				for text := range strings.Lines(read("json")) {
					var l struct {
						Proto, Src, Dst string
						Packets         uint64 `json:"packets"`
					}
					if json.Unmarshal([]byte(text), &l) == nil && l.Proto == "icmp" && l.Src == rig.AliceAddr && l.Dst == rig.BobAddr && l.Packets > 0 {
						return true, ""
					}
				}
				return false, read("json")
			})
			rig.Eventually(ctx, t, "tshark finds them", func() (bool, string) {
				out, err := r.Run(ctx, "", "tshark", "-nr", filepath.Join(dir, "ipfix"), "-V")
				return err == nil && strings.Contains(out, "SrcAddr: "+rig.AliceAddr) && strings.Contains(out, "SrcAddr: "+rig.BobAddr) && !strings.Contains(out, "Malformed"), fmt.Sprint(out, err)
			})
		})
	}
}
