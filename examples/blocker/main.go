// Blocker is a network function between two ports. It hands every frame on as it came, except TCP and UDP to one port from
// clients at `in`. It shows what a function has to do; docs/write-an-nf.md explains it.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

const (
	vnetHeader = 10 // struct virtio_net_hdr: what the sender left to the hardware, checksums and segmentation
	tagLength  = 4
	maxFrame   = 1 << 17
	eventEvery = 10 * time.Second
)

func main() {
	log.SetFlags(0) // Weir keeps what is printed: weir function logs
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	var config struct{ Port uint16 }
	raw, err := os.ReadFile("/etc/weir/config.json") // checked already against schema.json
	if err == nil {
		err = json.Unmarshal(raw, &config)
	}
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	in, err := open("in") // both ports exist and are up before we start
	if err != nil {
		return err
	}
	out, err := open("out")
	if err != nil {
		return err
	}
	log.Printf("port %d is blocked", config.Port)
	failed := make(chan error, 2)
	go func() { failed <- forward(in, out, config.Port) }()
	go func() { failed <- forward(out, in, 0) }()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	select {
	case err = <-failed:
	case <-ctx.Done(): // weir function stop
	}
	return err
}

// open makes a socket for the raw frames of an interface.
func open(name string) (int, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0, fmt.Errorf("port %s: %w", name, err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	for _, option := range []int{unix.PACKET_VNET_HDR, unix.PACKET_AUXDATA, unix.PACKET_IGNORE_OUTGOING} {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_PACKET, option, 1)
		}
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: i.Index, Protocol: 0x0300}) // ETH_P_ALL, in network order
	}
	if err != nil {
		return 0, fmt.Errorf("port %s: %w", name, err)
	}
	return fd, nil
}

// forward hands frames on, but those to the port blocked.
func forward(from, to int, blocked uint16) error {
	buf, oob := make([]byte, tagLength+vnetHeader+maxFrame), make([]byte, 256)
	var told time.Time
	for {
		n, oobn, _, _, err := unix.Recvmsg(from, buf[tagLength:], oob, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		frame := retag(buf[:tagLength+n], oob[:oobn])
		if blocked != 0 && destinationPort(frame[vnetHeader:]) == blocked {
			if time.Since(told) > eventEvery {
				told = time.Now()
				go event("warning", "PortBlocked", fmt.Sprintf("dropped a packet to port %d", blocked))
			}
			continue
		}
		_, _ = unix.Write(to, frame) // one that the other side does not take is lost, as on any wire
	}
}

// retag puts the VLAN tag back that the kernel took off and told beside the frame. b has room for it before the frame.
func retag(b, oob []byte) []byte {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) == 0 || len(messages[0].Data) < 20 {
		return b[tagLength:]
	}
	aux := messages[0].Data // struct tpacket_auxdata
	if binary.NativeEndian.Uint32(aux)&unix.TP_STATUS_VLAN_VALID == 0 {
		return b[tagLength:]
	}
	macs := vnetHeader + 12
	copy(b, b[tagLength:tagLength+macs])
	binary.BigEndian.PutUint16(b[macs:], binary.NativeEndian.Uint16(aux[18:]))   // tp_vlan_tpid
	binary.BigEndian.PutUint16(b[macs+2:], binary.NativeEndian.Uint16(aux[16:])) // tp_vlan_tci
	for _, field := range []int{2, 6} {                                          // hdr_len and csum_start count from the frame's begin
		if v := binary.NativeEndian.Uint16(b[field:]); v != 0 {
			binary.NativeEndian.PutUint16(b[field:], v+tagLength)
		}
	}
	return b
}

// destinationPort of TCP and UDP over IPv4 and IPv6 (without extension headers), behind at most one VLAN tag; else 0.
func destinationPort(f []byte) uint16 {
	at := 12
	if len(f) > 18 && f[12] == 0x81 && f[13] == 0 {
		at += tagLength
	}
	if len(f) < at+2 {
		return 0
	}
	var protocol byte
	kind, ip := binary.BigEndian.Uint16(f[at:]), f[at+2:]
	switch {
	case kind == 0x0800 && len(ip) >= 20 && binary.BigEndian.Uint16(ip[6:])&0x1fff == 0: // no later fragment
		protocol, ip = ip[9], ip[min(len(ip), int(ip[0]&15)*4):]
	case kind == 0x86dd && len(ip) >= 40:
		protocol, ip = ip[6], ip[40:]
	}
	if protocol != unix.IPPROTO_TCP && protocol != unix.IPPROTO_UDP || len(ip) < 4 {
		return 0
	}
	return binary.BigEndian.Uint16(ip[2:])
}

// event tells the operator: weir events.
func event(severity, reason, message string) {
	body, _ := json.Marshal(map[string]string{"severity": severity, "reason": reason, "message": message}) // plain data
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", "/run/weir/events.sock")
		}}}
	answer, err := client.Post("http://weir/", "application/json", bytes.NewReader(body))
	if err != nil {
		log.Print("event: ", err)
		return
	}
	answer.Body.Close()
}
