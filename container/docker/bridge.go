package docker

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// bridgeNotes explains what an engine does to the host's bridges, where it has done so. The containers of this driver are in none of its networks; what
// Weir's bridge forwards between endpoints the host's filter sees like that of any other bridge.
func bridgeNotes() []string {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	var notes []string
	for _, family := range []struct{ table, program string }{{"iptables", "iptables"}, {"ip6tables", "ip6tables"}} {
		raw, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-" + family.table)
		out, ferr := exec.CommandContext(ctx, family.program, "--wait", "1", "--list-rules", "FORWARD").Output()
		seen := err == nil && strings.TrimSpace(string(raw)) == "1"
		notes = append(notes, bridgeNote(family.table, seen, ferr == nil && drops(string(out))))
	}
	return notes
}

// drops reads what `iptables -S FORWARD` prints.
func drops(rules string) bool {
	first, _, _ := strings.Cut(rules, "\n")
	return strings.TrimSpace(first) == "-P FORWARD DROP"
}

func bridgeNote(table string, seen, drops bool) string {
	switch {
	case !drops:
		return ""
	case seen:
		return fmt.Sprintf("%[1]s sees bridged traffic and its FORWARD policy is DROP, as Docker sets both: frames between endpoints on this host are dropped; "+
			"set net.bridge.bridge-nf-call-%[1]s=0, or accept the bridge in FORWARD", table)
	}
	return fmt.Sprintf("the FORWARD policy of %s is DROP, as Docker sets it: this host routes nothing that its rules do not accept; bridged traffic is not affected",
		table)
}
