package openflow

import "fmt"

// Field names an OXM or NXM field: its wire header (class, field, length in bytes) without the mask bit.
type Field uint32

// OpenFlow 1.3's own fields (7.2.3.7).
const (
	FieldInPort     Field = 0x8000<<16 | 0<<9 | 4
	FieldInPhyPort  Field = 0x8000<<16 | 1<<9 | 4
	FieldMetadata   Field = 0x8000<<16 | 2<<9 | 8
	FieldEthDst     Field = 0x8000<<16 | 3<<9 | 6
	FieldEthSrc     Field = 0x8000<<16 | 4<<9 | 6
	FieldEthType    Field = 0x8000<<16 | 5<<9 | 2
	FieldVLANVID    Field = 0x8000<<16 | 6<<9 | 2 // 13 bits: VLANPresent | VLAN id
	FieldVLANPCP    Field = 0x8000<<16 | 7<<9 | 1
	FieldIPDSCP     Field = 0x8000<<16 | 8<<9 | 1
	FieldIPECN      Field = 0x8000<<16 | 9<<9 | 1
	FieldIPProto    Field = 0x8000<<16 | 10<<9 | 1
	FieldIPv4Src    Field = 0x8000<<16 | 11<<9 | 4
	FieldIPv4Dst    Field = 0x8000<<16 | 12<<9 | 4
	FieldTCPSrc     Field = 0x8000<<16 | 13<<9 | 2
	FieldTCPDst     Field = 0x8000<<16 | 14<<9 | 2
	FieldUDPSrc     Field = 0x8000<<16 | 15<<9 | 2
	FieldUDPDst     Field = 0x8000<<16 | 16<<9 | 2
	FieldSCTPSrc    Field = 0x8000<<16 | 17<<9 | 2
	FieldSCTPDst    Field = 0x8000<<16 | 18<<9 | 2
	FieldICMPv4Type Field = 0x8000<<16 | 19<<9 | 1
	FieldICMPv4Code Field = 0x8000<<16 | 20<<9 | 1
	FieldARPOp      Field = 0x8000<<16 | 21<<9 | 2
	FieldARPSPA     Field = 0x8000<<16 | 22<<9 | 4
	FieldARPTPA     Field = 0x8000<<16 | 23<<9 | 4
	FieldARPSHA     Field = 0x8000<<16 | 24<<9 | 6
	FieldARPTHA     Field = 0x8000<<16 | 25<<9 | 6
	FieldIPv6Src    Field = 0x8000<<16 | 26<<9 | 16
	FieldIPv6Dst    Field = 0x8000<<16 | 27<<9 | 16
	FieldIPv6FLabel Field = 0x8000<<16 | 28<<9 | 4
	FieldICMPv6Type Field = 0x8000<<16 | 29<<9 | 1
	FieldICMPv6Code Field = 0x8000<<16 | 30<<9 | 1
	FieldNDTarget   Field = 0x8000<<16 | 31<<9 | 16
	FieldNDSLL      Field = 0x8000<<16 | 32<<9 | 6
	FieldNDTLL      Field = 0x8000<<16 | 33<<9 | 6
	FieldMPLSLabel  Field = 0x8000<<16 | 34<<9 | 4
	FieldMPLSTC     Field = 0x8000<<16 | 35<<9 | 1
	FieldMPLSBOS    Field = 0x8000<<16 | 36<<9 | 1
	FieldPBBISID    Field = 0x8000<<16 | 37<<9 | 3
	FieldTunnelID   Field = 0x8000<<16 | 38<<9 | 8
	FieldIPv6ExtHdr Field = 0x8000<<16 | 39<<9 | 2
)

// Nicira's fields (Open vSwitch, ovs-fields(7)).
const (
	FieldNXMInPort  Field = 0x0000<<16 | 0<<9 | 2 // 16 bits, as OutputReg in learned entries wants it
	FieldNXMVLANTCI Field = 0x0000<<16 | 4<<9 | 2
	FieldReg0       Field = 0x0001<<16 | 0<<9 | 4 // reg n: Reg(n)
	FieldNXMTunID   Field = 0x0001<<16 | 16<<9 | 8
	FieldIPFrag     Field = 0x0001<<16 | 26<<9 | 1
)

// Reg is register n, 0 to 15.
func Reg(n int) Field { return FieldReg0 + Field(n)<<9 }

// VLANPresent is set in the VLAN id field of a tagged frame; 0 is untagged (OFPVID_PRESENT, OFPVID_NONE).
const VLANPresent uint16 = 0x1000

// Len is the field's length in bytes.
func (f Field) Len() int { return int(f & 0xff) }

// All is the whole field as Bits.
func (f Field) All() Bits {
	if i, ok := f.info(); ok {
		return Bits{Field: f, Count: uint16(i.bits)}
	}
	return Bits{Field: f, Count: uint16(8 * f.Len())}
}

// Slice is count bits from the least significant one plus first.
func (f Field) Slice(first, count uint16) Bits { return Bits{f, first, count} }

func (f Field) String() string {
	if i, ok := f.info(); ok {
		return i.name
	}
	return fmt.Sprintf("OXM(class 0x%04x, field %d)", f.class(), f.number())
}

type kind uint8 // how a value is written as text

const (
	decimal kind = iota
	hexa
	mac
	ip
	portNo
)

type fieldInfo struct {
	name string // ovs-ofctl's
	nxm  string // as in actions: NXM_OF_..., OXM_OF_...
	bits int
	mask mask
	kind kind
	pre  prerequisite
}

type mask uint8

const (
	noMask  mask = iota
	ovsMask      // only Open vSwitch takes a mask
	anyMask
)
