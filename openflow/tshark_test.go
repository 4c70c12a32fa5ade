package openflow_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "weir.dev/weir/openflow"
)

// capture is a pcap file with each message in a TCP segment of its own, to port 6653, over synthesized headers.
func capture(messages [][]byte) []byte {
	le, be := binary.LittleEndian, binary.BigEndian
	out := le.AppendUint32(nil, 0xa1b2c3d4)
	out = append(out, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0) // Ethernet
	seq := uint32(1)
	for i, m := range messages {
		p := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0}
		p = be.AppendUint16(p, uint16(40+len(m)))
		p = append(p, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0xc3, 0x50, 0x19, 0xfd)
		p = be.AppendUint32(be.AppendUint32(p, seq), 1)
		p = append(p, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0)
		p = append(p, m...)
		seq += uint32(len(m))
		out = le.AppendUint32(le.AppendUint32(out, uint32(i)), 0)
		out = le.AppendUint32(le.AppendUint32(out, uint32(len(p))), uint32(len(p)))
		out = append(out, p...)
	}
	return out
}

// dissection is a packet as tshark sees it: the values of each field, in order, at any depth.
type dissection map[string][]string

func (d dissection) collect(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			d.put(k, v[k])
		}
	case []any:
		for _, e := range v {
			d.collect(e)
		}
	}
}

func (d dissection) put(k string, v any) {
	switch v := v.(type) {
	case string:
		d[k] = append(d[k], v)
	case []any:
		for _, e := range v {
			d.put(k, e)
		}
	default:
		d[k] = append(d[k], "") // a subtree: its name counts, for expert information
		d.collect(v)
	}
}

// has reports that a field has a value among its own, as number or as text.
func (d dissection) has(field, want string) bool {
	return slices.ContainsFunc(d[field], func(got string) bool {
		if got == want {
			return true
		}
		a, errA := strconv.ParseUint(got, 0, 64)
		b, errB := strconv.ParseUint(want, 0, 64)
		return errA == nil && errB == nil && a == b
	})
}

func dissect(t *testing.T, messages [][]byte) []dissection {
	t.Helper()
	file := filepath.Join(t.TempDir(), "of.pcap")
	if err := os.WriteFile(file, capture(messages), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "tshark", "-r", file, "-d", "tcp.port==6653,openflow", "-o", "tcp.check_checksum:FALSE",
		"-o", "ip.check_checksum:FALSE", "-T", "json", "--no-duplicate-keys", "-J", "openflow openflow_v4 _ws.malformed _ws.expert")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v\n%s", err, stderr.String())
	}
	var packets []struct {
		Source struct {
			Layers map[string]any `json:"layers"`
		} `json:"_source"`
	}
	if err := json.Unmarshal(out, &packets); err != nil {
		t.Fatal(err)
	}
	var ds []dissection
	for _, p := range packets {
		d := dissection{}
		d.collect(p.Source.Layers)
		ds = append(ds, d)
	}
	return ds
}

// unknownToTshark: it says of extensions that it does not look into them, and expects no mask on L4 ports.
func unknownToTshark(name, what string) bool {
	switch what {
	case "Experimenter body.", "Experimenter action body.", "Unknown OXM body.", "Experimenter error body.":
		return true
	case "Undecoded Data":
		return strings.Contains(name, "tp_dst=0x400/0xfc00")
	}
	return false
}

// TestTsharkSeesTheSame: the dissector finds type, xid and values, and nothing malformed.
func TestTsharkSeesTheSame(t *testing.T) {
	const o = "openflow_v4."
	want := map[string]map[string]string{ // fields to look at in the messages of osken and told
		"flow-steering": {o + "flowmod.cookie": "0xab", o + "flowmod.priority": "100", o + "flowmod.command": "0", o + "oxm.value_uint32": "",
			o + "oxm.value_ipv4addr": "10.0.0.1", o + "action.output.port": "1", o + "instruction.type": "4"},
		"flow-cidr":      {o + "oxm.value_ipv4addr": "10.2.0.0", o + "oxm.hm": "1"},
		"flow-mac":       {o + "oxm.value_etheraddr": "02:00:00:00:00:01", o + "action.output.port": fmt.Sprint(uint32(PortFlood))},
		"flow-tcp":       {o + "oxm.value_uint16": "80", o + "action.output.max_len": "65535"},
		"flow-udp6":      {o + "oxm.value_ipv6addr": "fd00::"},
		"flow-push":      {o + "action.type": "17", o + "action.push_vlan.ethertype": "0x88a8"},
		"flow-set":       {o + "action.set_queue.queue_id": "4", o + "action.group.group_id": "5"},
		"flow-tables":    {o + "instruction.goto_table.table_id": "3", o + "instruction.meter.meter_id": "2"},
		"flow-delete":    {o + "flowmod.command": "3", o + "flowmod.table_id": "255", o + "flowmod.cookie_mask": "0xffff000000000000"},
		"flow-timeouts":  {o + "flowmod.idle_timeout": "10", o + "flowmod.hard_timeout": "20", o + "flowmod.command": "2"},
		"role":           {o + "role_request.role": "2", o + "role_request.generation_id": "7"},
		"error":          {o + "error.type": "5", o + "error.code": "1"},
		"packet-out":     {o + "packet_out.in_port": "0xfffffffd", o + "packet_out.buffer_id": "0xffffffff"},
		"told packet-in": {o + "packet_in.cookie": "0x1234", o + "packet_in.total_len": "1500", o + "packet_in.table_id": "1"},
		"told features":  {o + "switch_features.datapath_id": "0xabc", o + "switch_features.n_tables": "254"},
		"told ports":     {o + "port.name": "p1", o + "port.port_no": "1"},
		"told flows":     {o + "flow_stats.priority": "4", o + "flow_stats.packet_count": "8", o + "flow_stats.cookie": "7"},
	}
	all := map[string]Message{}
	maps.Copy(all, osken)
	for name, m := range told {
		all["told "+name] = m
	}
	for i, k := range cases {
		all[fmt.Sprintf("case %d: %s", i, k.text)] = &FlowMod{Priority: 1000, Cookie: 5, Match: k.m, Instructions: k.is}
	}
	names := slices.Sorted(maps.Keys(all))
	var messages [][]byte
	for i, name := range names {
		b, err := Append(nil, uint32(1000+i), all[name])
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, b)
	}
	ds := dissect(t, messages)
	if len(ds) != len(messages) {
		t.Fatalf("tshark found %d packets, want %d", len(ds), len(messages))
	}
	for i, name := range names {
		d, m := ds[i], all[name]
		for _, what := range append(d["_ws.expert.message"], d["_ws.malformed"]...) {
			if !unknownToTshark(name, what) {
				t.Errorf("%s: %s", name, what)
			}
		}
		prefix := o
		if h, ok := m.(*Hello); ok && h.Highest != 0 && h.Highest != 4 {
			prefix = "openflow."
		}
		for field, v := range map[string]string{"type": fmt.Sprint(uint8(m.Type())), "xid": fmt.Sprint(1000 + i), "length": fmt.Sprint(len(messages[i]))} {
			if !d.has(prefix+field, v) {
				t.Errorf("%s: %s is %v, want %s", name, prefix+field, d[prefix+field], v)
			}
		}
		for field, v := range want[name] {
			if v != "" && !d.has(field, v) {
				t.Errorf("%s: %s is %v, want %s; there are %v", name, field, d[field], v, slices.Sorted(maps.Keys(d)))
			}
		}
	}
}
