package discovery

import (
	"testing"

	"weir.dev/weir/openflow/lldp"
	"weir.dev/weir/router/fabric"
)

// What link discovery calls a host's switch is what the compiler calls it.
func TestChassisIDsAreSwitchIDs(t *testing.T) {
	if got, want := fabric.HostID("h1"), fabric.SwitchID(lldp.HostChassis("h1")); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for id, want := range map[fabric.SwitchID]string{
		fabric.HostID("h1"): "h1", fabric.SwitchID(lldp.SwitchChassis(1)): "", "host:": "", "": "",
	} {
		if name, ok := id.Host(); name != want || ok != (want != "") {
			t.Errorf("%q is the switch of host %q, %v; want %q", id, name, ok, want)
		}
	}
}
