package main

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
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
	"weir.dev/weir/openflow"
	"weir.dev/weir/router/fabric"
)

const (
	osken        = "os-ken 4.2"
	oskenVersion = "4.2.0"
	oskenTime    = 2 * time.Minute // of one run
)

//go:embed osken/install.py
var oskenScript []byte

// oskenPython is a Python that has os-ken: that of a virtual environment in build/, made when it is missing.
func oskenPython(ctx context.Context) (string, error) {
	top, err := rig.Top()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(top, "build", "os-ken-"+oskenVersion)
	python := filepath.Join(dir, "bin", "python3")
	have := func() error {
		out, err := exec.CommandContext(ctx, python, "-c", "import importlib.metadata as m, os_ken.base.app_manager; print(m.version('os-ken'))").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, last(string(out)))
		}
		if v := strings.TrimSpace(string(out)); v != oskenVersion {
			return fmt.Errorf("version %q, want %s", v, oskenVersion)
		}
		return nil
	}
	if have() == nil {
		return python, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for _, argv := range [][]string{
		{"python3", "-m", "venv", "--clear", dir},
		{python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "os-ken==" + oskenVersion},
	} {
		if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", strings.Join(argv[:min(len(argv), 4)], " "), err, last(string(out)))
		}
	}
	return python, have()
}

func last(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// oskenResult is what install.py prints.
type oskenResult struct {
	FlowMods int     `json:"flow_mods"`
	Bytes    int     `json:"bytes"`
	Seconds  float64 `json:"seconds"`
	CPU      float64 `json:"cpu"` // s
}

// oskenRun runs install.py, in a namespace unless that is "".
func oskenRun(ctx context.Context, python, space string, args ...string) (oskenResult, error) {
	var r oskenResult
	ctx, cancel := context.WithTimeout(ctx, oskenTime)
	defer cancel()
	argv := append([]string{python, "-"}, args...)
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

// oskenFile writes flow-mods for install.py; done removes the file.
func oskenFile(mods map[fabric.SwitchID][]openflow.FlowMod) (path string, done func(), err error) {
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
