package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/catalogue/nf"
)

// Suricata tells nobody which flows it has bypassed, until they end. So where the switch can settle flows, nothing is bypassed but by rules of ours:
// their alerts are the word that Suricata inspects a flow no further, in the packet in which it decides that. A rule of the configuration with the keyword
// bypass marks its flow for them, and so does a connection behind the depth.
//
// A connection is behind the depth when its reassembly is. What was sent does not tell: of a segment beyond the receiver's window Suricata counts the sequence
// numbers, too, although nobody takes it. And a RST without a number to acknowledge counts as one that acknowledges any.
//
// After a SYN, the server's included, the switch takes no verdict for 0.2 s, and Suricata does not repeat itself. So a connection is bypassed when it is older than
// settledAfter. Suricata's own keyword flow.age counts whole seconds, so a script tells.
const (
	bypassMark    = "weir.bypass" // of flows
	sidDepth      = 4294000001
	sidMarked     = 4294000002
	sidUDP        = 4294000003
	sidOther      = 4294000004
	sidShort      = 4294000005 // see unread; these raise no alert
	sidLengthless = 4294000006

	// settledAfter is how old a connection has to be: with an answer to its SYN within 0.3 s the switch takes a verdict then. One that is slower stays with Suricata.
	settledAfter = 500 * time.Millisecond

	// fresh is how old a packet may be whose alert settles its flow: less than the time after a SYN in which the switch takes no verdict, with what the way there
	// takes (nf.Settler). So a connection that has begun since with the same ports is never meant.
	fresh = 100 * time.Millisecond
	// remembered is how long Suricata remembers a flow that it has bypassed, in seconds. It is longer than the switch holds a verdict, so that Suricata
	// knows the flow when its packets, or its end, come again.
	remembered = 400
)

// ageScript tells whether a packet's connection is old enough to be settled.
var ageScript = fmt.Sprintf(`function init(args)
	return {packet = tostring(true)}
end

function match(args)
	local begun, _, begunMicros = SCFlowTimestamps()
	local now, nowMicros = SCPacketTimestamp()
	if begun == nil or begunMicros == nil or now == nil or nowMicros == nil then
		return 0
	end
	if (now - begun) * 1000000 + nowMicros - begunMicros > %d then
		return 1
	end
	return 0
end
`, settledAfter.Microseconds())

// settleRules are the rules, for each protocol. script is the path of ageScript. As with Suricata's own bypass, one direction that has reached the depth is enough.
func settleRules(script string) string {
	return fmt.Sprintf(`alert tcp any any -> any any (msg:"weir: behind depth"; stream-event:reassembly_depth_reached; flowbits:set,%[1]s; noalert; sid:%[2]d;)
alert tcp any any -> any any (msg:"weir: bypassed"; flowbits:isset,%[1]s; lua:%[6]s; bypass; sid:%[3]d;)
alert udp any any -> any any (msg:"weir: bypassed"; flowbits:isset,%[1]s; bypass; sid:%[4]d;)
alert icmp any any -> any any (msg:"weir: bypassed"; flowbits:isset,%[1]s; bypass; sid:%[5]d;)
`, bypassMark, sidDepth, sidMarked, sidUDP, sidOther, script)
}

// ours tells whether a rule is one of settleRules.
func (a alert) ours() bool { return a.SID >= sidDepth && a.SID <= sidOther }

// settle tells the switch of a flow that Suricata has just bypassed. Frames as the one that Suricata has seen are settled at the port where that one came. Where
// the replies come is not known: at the other port, or at the same one if they have a policy of their own. Suricata would pass them from either.
func settle(to *nf.Settler, e eve, links []string, now time.Time) {
	at, err := time.Parse("2006-01-02T15:04:05.999999-0700", e.Time)
	if age := now.Sub(at); err != nil || age < 0 || age > fresh {
		return
	}
	if e.Verdict.Action != "alert" && e.Verdict.Action != "pass" { // another rule has dropped it
		return
	}
	src, err := netip.ParseAddr(e.Source)
	if err != nil {
		return
	}
	dst, err := netip.ParseAddr(e.Target)
	if err != nil || len(e.VLAN) > 1 || e.SPort != int(uint16(e.SPort)) || e.DPort != int(uint16(e.DPort)) {
		return
	}
	vlan := nf.NoVLAN
	if len(e.VLAN) == 1 && e.VLAN[0] != 0 { // 0 gives a priority alone
		vlan = e.VLAN[0]
	}
	proto := map[string]byte{"TCP": nf.TCP, "UDP": nf.UDP}[e.Proto]
	dir := nf.Dir(slices.Index(links, e.Link)) // in, out
	if proto == 0 || dir != nf.Up && dir != nf.Down {
		return
	}
	flow, at := nf.Flow{Proto: proto, Src: netip.AddrPortFrom(src, uint16(e.SPort)), Dst: netip.AddrPortFrom(dst, uint16(e.DPort)), VLAN: vlan}, now.Add(at.Sub(now))
	to.PassFlowAt(dir, flow, at)
	to.PassFlowOneWay(flow.Reverse(), at)
}

// marking has rules with the keyword bypass mark their flows instead. Rules with the action pass keep it: Suricata looks at no further packet of their
// flows, so our rules would not meet them.
func marking(rules string) string {
	lines := strings.SplitAfter(rules, "\n")
	for i, line := range lines {
		head, body, ok := strings.Cut(line, "(")
		if action := strings.Fields(head); !ok || len(action) == 0 || action[0] == "pass" || strings.HasPrefix(action[0], "#") {
			continue
		}
		lines[i] = head + "(" + mapOptions(body, func(option string) string {
			if strings.TrimSpace(option) == "bypass" {
				return strings.Replace(option, "bypass", "flowbits:set,"+bypassMark, 1)
			}
			return option
		})
	}
	return strings.Join(lines, "")
}

// mapOptions replaces a rule's options. Suricata ends an option at each ";" that has no "\" before it, also within quotes.
func mapOptions(body string, f func(option string) string) string {
	var out strings.Builder
	from := 0
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '\\':
			i++
		case ';':
			out.WriteString(f(body[from:i]) + ";")
			from = i + 1
		}
	}
	return out.String() + body[from:]
}

// hasScripts tells whether a rule calls a script: ours are the only ones.
func hasScripts(rules string) (found bool) {
	for line := range strings.Lines(strings.NewReplacer("\\\n", "", "\\\r\n", "").Replace(rules)) { // a rule goes on behind them
		_, body, _ := strings.Cut(line, "(")
		mapOptions(body, func(option string) string {
			name, _, _ := strings.Cut(option, ":")
			name = strings.TrimSpace(name)
			found = found || strings.EqualFold(name, "lua") || strings.EqualFold(name, "luajit")
			return option
		})
	}
	return found
}
