package author

import (
	"net"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weir.dev/weir/solo"
)

// Sample stations.
var (
	clientMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	serverMAC = net.HardwareAddr{2, 0, 0, 0, 0, 2}
	clientIP  = net.IP{10, 0, 0, 1}
	serverIP  = net.IP{10, 0, 0, 2}
)

// sampleWeb is the one of them to TCP port 80.
const sampleWeb = 3

// sample is what a client sends in the cases of a new function: ARP, ping, UDP to port 53, and TCP to ports 80 and 8080.
func sample() ([]solo.Frame, error) {
	ip := func(p layers.IPProtocol) *layers.IPv4 {
		return &layers.IPv4{Version: 4, TTL: 64, Protocol: p, SrcIP: clientIP, DstIP: serverIP}
	}
	syn := func(port layers.TCPPort) []gopacket.SerializableLayer {
		at := ip(layers.IPProtocolTCP)
		tcp := &layers.TCP{SrcPort: 40000, DstPort: port, Seq: 1, SYN: true, Window: 64240}
		_ = tcp.SetNetworkLayerForChecksum(at) // IPv4 is one
		return []gopacket.SerializableLayer{at, tcp}
	}
	question := ip(layers.IPProtocolUDP)
	udp := &layers.UDP{SrcPort: 40001, DstPort: 53}
	_ = udp.SetNetworkLayerForChecksum(question)
	echo := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: 7, Seq: 1}
	packets := []struct {
		kind   layers.EthernetType
		to     net.HardwareAddr
		layers []gopacket.SerializableLayer
	}{
		{layers.EthernetTypeARP, layers.EthernetBroadcast, []gopacket.SerializableLayer{&layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4,
			HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPRequest, SourceHwAddress: clientMAC, SourceProtAddress: clientIP, DstHwAddress: make([]byte, 6),
			DstProtAddress: serverIP}}},
		{layers.EthernetTypeIPv4, serverMAC, []gopacket.SerializableLayer{ip(layers.IPProtocolICMPv4), echo, gopacket.Payload("ping")}},
		{layers.EthernetTypeIPv4, serverMAC, []gopacket.SerializableLayer{question, udp, gopacket.Payload("a question")}},
		{layers.EthernetTypeIPv4, serverMAC, syn(80)},
		{layers.EthernetTypeIPv4, serverMAC, syn(8080)},
	}
	var frames []solo.Frame
	for _, p := range packets {
		b := gopacket.NewSerializeBuffer()
		eth := &layers.Ethernet{SrcMAC: clientMAC, DstMAC: p.to, EthernetType: p.kind}
		all := append([]gopacket.SerializableLayer{eth}, p.layers...)
		if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...); err != nil {
			return nil, err
		}
		frames = append(frames, solo.Frame{Data: append([]byte{}, b.Bytes()...)})
	}
	return frames, nil
}
