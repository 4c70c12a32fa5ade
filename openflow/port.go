package openflow

import "fmt"

// PortConfig is how a port is administered (7.2.1).
type PortConfig uint32

const (
	PortDown PortConfig = 1 << 0
)

// PortState is what a port's link does.
type PortState uint32

const (
	PortLinkDown PortState = 1 << 0
	PortLive     PortState = 1 << 2
)

// PortDesc describes a port.
type PortDesc struct {
	Port       Port
	MAC        MAC
	Name       string // at most 15 bytes
	Config     PortConfig
	State      PortState
	Current    uint32 // OFPPF_*
	Advertised uint32
	Supported  uint32
	Peer       uint32
	SpeedKbps  uint32
	MaxKbps    uint32
}

// Up reports that frames pass: neither administratively nor physically down.
func (p PortDesc) Up() bool { return p.Config&PortDown == 0 && p.State&PortLinkDown == 0 }

// PortReason is why a PortStatus came.
type PortReason uint8

const (
	PortAdd PortReason = iota
	PortDelete
	PortModify
)

// PortStatus says that a port has changed (7.4.3).
type PortStatus struct {
	Reason PortReason
	Desc   PortDesc
}

func (*PortStatus) Type() Type { return TypePortStatus }

const portLen = 64

func (p *PortDesc) append(b []byte) ([]byte, error) {
	b = zeros(be.AppendUint32(b, uint32(p.Port)), 4)
	b = append(append(b, p.MAC[:]...), 0, 0)
	b, err := appendName(b, p.Name, 16)
	if err != nil {
		return b, fmt.Errorf("port %d: %w", p.Port, err)
	}
	for _, v := range [...]uint32{uint32(p.Config), uint32(p.State), p.Current, p.Advertised, p.Supported, p.Peer, p.SpeedKbps, p.MaxKbps} {
		b = be.AppendUint32(b, v)
	}
	return b, nil
}

func decodePort(r *reader) PortDesc {
	p := PortDesc{Port: Port(r.u32())}
	r.skip(4)
	p.MAC = r.mac()
	r.skip(2)
	p.Name = r.name(16)
	p.Config, p.State = PortConfig(r.u32()), PortState(r.u32())
	p.Current, p.Advertised, p.Supported, p.Peer, p.SpeedKbps, p.MaxKbps = r.u32(), r.u32(), r.u32(), r.u32(), r.u32(), r.u32()
	return p
}

func (m *PortStatus) appendBody(b []byte, _ uint32) ([]byte, error) {
	return m.Desc.append(zeros(append(b, byte(m.Reason)), 7))
}
