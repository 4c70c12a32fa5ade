package agent_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	switchfake "weir.dev/weir/datapath/fake"
	"weir.dev/weir/image"
)

// A function exports flows if its image does and the host has a collector: then there is a socket for them.
func flowsAreExportedWhereThereIsACollector(t *testing.T) {
	for name, x := range map[string]struct {
		collector string
		does      bool
		want      bool
	}{
		"both":                      {"127.0.0.1:4739", true, true},
		"no collector":              {"", true, false},
		"an image that exports not": {"127.0.0.1:4739", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, switchfake.Options{}, with(image.Contract{IPFIX: x.does}), func(d *desk) {
				if x.collector != "" {
					d.options.Collector = netip.MustParseAddrPort(x.collector)
				}
			})
			d.put("fw", port(1))
			d.up("fw")
			info, err := os.Lstat(filepath.Join(d.options.Instance.Run, "functions", "fw", "run", "ipfix.sock"))
			if there := err == nil && info.Mode()&os.ModeSocket != 0; there != x.want {
				t.Errorf("a socket: %t, %v; want %t", there, err, x.want)
			}
		})
	}
}
