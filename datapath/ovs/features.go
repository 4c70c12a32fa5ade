package ovs

import (
	"context"

	"weir.dev/weir/datapath"
	"weir.dev/weir/ovsdb/ovsproc"
)

// Features tells what the machine has of what the switch uses. It changes nothing.
func Features() []datapath.Feature {
	var all []datapath.Feature
	host := inInitialNamespace() && answers(context.Background(), HostDB)
	programs := ovsproc.Installed()
	add := func(name string, ok, required bool, good, bad string) {
		f := datapath.Feature{Name: name, OK: ok, Required: required, Detail: good}
		if !ok {
			f.Detail = bad
		}
		all = append(all, f)
	}
	detail := "private processes are used"
	if host {
		detail = "the host's own is used (" + HostDB + ")"
	}
	missing := ""
	if programs != nil {
		missing = programs.Error()
	}
	add("Open vSwitch", host || programs == nil, true, detail, missing)
	add("Open vSwitch kernel datapath", kernelDatapath(), false, "steering in the kernel, where the host's own Open vSwitch is used",
		"steering in the kernel: want openvswitch.ko (modprobe openvswitch); without it the user-space datapath (netdev) forwards, some 20 times slower, "+
			"and checksum and segmentation offload are switched off behind it")
	add("VLAN tags behind a fabric tag", true, false, "one of the user's is kept; a frame with two of its own loses its innermost when it gets a fabric tag, and rules "+
		"cannot tell VLANs apart there; links into the fabric get 4 bytes of MTU more in user space", "")
	add("functions' processes", true, false, "a function is set down when its process ends while Weir runs; otherwise when Weir is started again", "")
	add("rules outlive ovs-vswitchd", true, false, "rules are restored at once when ovs-vswitchd comes back while Weir runs; otherwise when Weir is started again", "")
	add("settled flows", false, false, "", "functions that settle flows (weir.settles): want the ebpf switch; here every frame is given to them")
	return all
}

// Features of the switch's machine.
func (s *Switch) Features() []datapath.Feature { return Features() }
