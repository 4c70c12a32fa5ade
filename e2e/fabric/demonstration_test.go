package fabric

import (
	"net/http"
	"strings"
	"testing"

	"weir.dev/weir/e2e/glanf"
	"weir.dev/weir/e2e/rig"
)

// TestTheGlanfDemonstrationAcrossTwoHosts: http-filter | shaper on one host, ids and the server on another, joined by a tunnel. A word that is split over two
// segments is blocked, the shaper's rate is what is configured, and a trigger raises an event within a second.
func TestTheGlanfDemonstrationAcrossTwoHosts(t *testing.T) {
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			b := newBed(t, "vxlan.yaml", func(s string) string {
				s = strings.Replace(s, "  h3: {}\n", "", 1)
				return strings.ReplaceAll(s, ": {}", ": {switch: "+sw+"}")
			})
			b.apply(glanf.Document(`endpoints:
  alice: {host: h1, netns: `+b.netns("v1")+`, interface: eth0, address: 10.0.0.1/24}
  bob: {host: h2, netns: `+b.netns("v2")+`, interface: eth0, address: 10.0.0.2/24}
`, true, map[string]string{"filter": "h1", "shaper": "h1", "ids": "h2"}), "--timeout", "3m")
			s := glanf.Stations{Rig: &rig.Rig{Name: b.name, Bin: b.bin, Netns: "/proc/self/ns/net"}, Client: b.netns("v1"), Server: b.netns("v2"), Addr: "10.0.0.2"}
			if err := s.Serve(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			b.reach("v1", s.Addr)
			if a, err := s.Ask(b.ctx, "/?q=harm|less"); err != nil || a.Status != http.StatusOK || !a.Reached {
				t.Errorf("a request that no rule forbids: %+v, %v", a, err)
			}
			if _, err := s.Split(b.ctx); err != nil {
				t.Error(err)
			}
			if alarm, err := s.Trigger(b.ctx); err != nil {
				t.Error(err)
			} else {
				t.Logf("event after %s: %s", alarm.After, alarm.Event.Message)
			}
			for _, way := range [][]string{nil, {"--reverse"}} {
				if rate, err := s.Rate(b.ctx, 3, way...); err != nil {
					t.Errorf("%v: %v", way, err)
				} else {
					t.Logf("%v: %.4g bit/s", way, rate)
				}
			}
		})
	}
}
