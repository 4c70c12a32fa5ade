package controllers

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/netns"
	"weir.dev/weir/openflow"
	"weir.dev/weir/router/fabric"
)

const (
	OskenName    = "os-ken 4.2"
	oskenVersion = "4.2.0"
	oskenTime    = 2 * time.Minute // of one run
)

//go:embed osken/install.py
var oskenScript []byte

// Osken is the controller beside Weir: a Python that has it.
type Osken struct{ python string }

// OskenProgram is the Python of a virtual environment with os-ken; `make peers` makes it.
const OskenProgram = "os-ken-python"

var findOsken = sync.OnceValues(func() (Osken, error) {
	const remedy = "in a checkout: make peers"
	path, err := exec.LookPath(OskenProgram)
	if err != nil {
		return Osken{}, fmt.Errorf("%s is not installed (%s: %s)", OskenName, OskenProgram, remedy)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "-c", "import importlib.metadata as m, os_ken.base.app_manager; print(m.version('os-ken'))").CombinedOutput()
	if err != nil {
		return Osken{}, fmt.Errorf("%s does not run: %w: %s (%s)", path, err, last(string(out)), remedy)
	}
	if v := strings.TrimSpace(string(out)); v != oskenVersion {
		return Osken{}, fmt.Errorf("%s has os-ken %q, want %s (%s)", path, v, oskenVersion, remedy)
	}
	return Osken{path}, nil
})

// FindOsken looks for it, once for the whole process.
func FindOsken() (Osken, error) { return findOsken() }

func last(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// OskenResult is what install.py prints.
type OskenResult struct {
	FlowMods int     `json:"flow_mods"`
	Bytes    int     `json:"bytes"`
	Seconds  float64 `json:"seconds"`
	CPU      float64 `json:"cpu"` // s
}

// Run runs install.py, in a namespace unless that is "".
func (o Osken) Run(ctx context.Context, space string, args ...string) (OskenResult, error) {
	var r OskenResult
	ctx, cancel := context.WithTimeout(ctx, oskenTime)
	defer cancel()
	argv := append([]string{o.python, "-"}, args...)
	if space != "" {
		argv = append([]string{"nsenter", "--net=" + netns.Path(space), "--"}, argv...)
	}
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Stdin = bytes.NewReader(oskenScript)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return r, fmt.Errorf("os-ken: %w: %s", errors.Join(err, context.Cause(ctx)), last(errs.String()))
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return r, fmt.Errorf("os-ken says %q: %w", out.String(), err)
	}
	return r, nil
}

// OskenFile writes flow-mods for install.py; done removes the file.
func OskenFile(mods map[fabric.SwitchID][]openflow.FlowMod) (path string, done func(), err error) {
	all := map[string][]any{}
	for id, ms := range mods {
		dpid, err := strconv.ParseUint(strings.TrimPrefix(string(id), "of:"), 16, 64)
		if err != nil {
			return "", nil, err
		}
		for _, m := range ms {
			e, err := oskenEntry(m)
			if err != nil {
				return "", nil, err
			}
			all[fmt.Sprint(dpid)] = append(all[fmt.Sprint(dpid)], e)
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return "", nil, err
	}
	f, err := os.CreateTemp("", "weir-flow-mods-*.json")
	if err != nil {
		return "", nil, err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(f.Name())
		return "", nil, err
	}
	return f.Name(), func() { os.Remove(f.Name()) }, nil
}

// oskenEntry is one flow-mod in install.py's words.
func oskenEntry(m openflow.FlowMod) ([]any, error) {
	if m.Command != openflow.FlowAdd || m.Flags != 0 || m.IdleS != 0 || m.HardS != 0 {
		return nil, fmt.Errorf("flow-mod %+v: want an addition without flags and timeouts", m)
	}
	match := map[string]any{}
	for _, o := range m.Match {
		name, value, mask, err := oskenField(o)
		if err != nil {
			return nil, err
		}
		if o.Masked {
			match[name] = []any{value, mask}
		} else {
			match[name] = value
		}
	}
	actions, table := []any{}, uint8(0)
	for _, i := range m.Instructions {
		switch i := i.(type) {
		case openflow.GotoTable:
			table = i.Table
		case openflow.ApplyActions:
			for _, a := range i {
				switch a := a.(type) {
				case openflow.Output:
					actions = append(actions, []any{"output", a.Port, a.MaxLen})
				case openflow.PushVLAN:
					actions = append(actions, []any{"push_vlan", a.EtherType})
				case openflow.PopVLAN:
					actions = append(actions, []any{"pop_vlan"})
				case openflow.SetField:
					name, value, _, err := oskenField(a.OXM)
					if err != nil {
						return nil, err
					}
					actions = append(actions, []any{"set_field", name, value})
				default:
					return nil, fmt.Errorf("action %T is not known to the peer", a)
				}
			}
		default:
			return nil, fmt.Errorf("instruction %T is not known to the peer", i)
		}
	}
	return []any{m.Table, m.Priority, m.Cookie, match, actions, table}, nil
}

var oskenNames = map[openflow.Field]string{
	openflow.FieldInPort: "in_port", openflow.FieldEthDst: "eth_dst", openflow.FieldEthSrc: "eth_src", openflow.FieldEthType: "eth_type",
	openflow.FieldVLANVID: "vlan_vid", openflow.FieldIPProto: "ip_proto", openflow.FieldIPv4Src: "ipv4_src", openflow.FieldIPv4Dst: "ipv4_dst",
	openflow.FieldIPv6Src: "ipv6_src", openflow.FieldIPv6Dst: "ipv6_dst", openflow.FieldTCPSrc: "tcp_src", openflow.FieldTCPDst: "tcp_dst",
	openflow.FieldUDPSrc: "udp_src", openflow.FieldUDPDst: "udp_dst", openflow.FieldSCTPSrc: "sctp_src", openflow.FieldSCTPDst: "sctp_dst",
}

// oskenField is a field with os-ken's name and forms: addresses are text, all else numbers.
func oskenField(o openflow.OXM) (name string, value, mask any, err error) {
	name, ok := oskenNames[o.Field]
	if !ok {
		return "", nil, nil, fmt.Errorf("field %s is not known to the peer", o.Field)
	}
	n := o.Field.Len()
	form := func(b []byte, number uint64) any {
		switch n {
		case 6:
			return net.HardwareAddr(b).String()
		case 16:
			return netip.AddrFrom16([16]byte(b)).String()
		}
		if o.Field == openflow.FieldIPv4Src || o.Field == openflow.FieldIPv4Dst {
			return netip.AddrFrom4([4]byte(b)).String()
		}
		return number
	}
	var m uint64
	if n <= 8 {
		m = o.UintMask()
		return name, form(o.Value[:n], o.Uint()), form(o.Mask[:n], m), nil
	}
	return name, form(o.Value[:n], 0), form(o.Mask[:n], 0), nil
}
