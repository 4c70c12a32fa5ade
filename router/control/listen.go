package control

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/openflow"
)

// helloEPerm is OFPHFC_EPERM (OpenFlow 1.3.5, 7.4.4.1).
const helloEPerm openflow.ErrorCode = 0<<16 | 1

const (
	tlsTimeout   = 5 * time.Second // of the TLS handshake
	certifyEvery = 2 * time.Second // how often a connected switch's certificate is looked at
)

// ErrUndecided is an error of Options.Certify that says nothing about the certificate: the state cannot be read now.
var ErrUndecided = errors.New("it cannot be decided now")

// listen accepts switches. Whatever a peer says concerns its own connection only.
func (l *loop) listen(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { l.o.Listener.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	door := newDoor(l.o.Now)
	wait := 5 * time.Millisecond
	for {
		nc, err := l.o.Listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				nc.Close()
			}
			return nil
		}
		if err != nil { // out of file descriptors, for example: it may get better
			var timeout net.Error
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			if !errors.As(err, &timeout) {
				l.log.Warn("accept", "error", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
			wait = min(2*wait, time.Second)
			continue
		}
		wait = 5 * time.Millisecond
		leave, err := door.enter(nc)
		if err != nil {
			from := nc.RemoteAddr()
			nc.Close()
			select { // nobody waits because of a flood of connections
			case l.events <- func(l *loop) { l.tooMany(from, err) }:
			default:
			}
			continue
		}
		wg.Go(func() {
			defer leave()
			l.attend(ctx, nc, door, leave)
		})
	}
}

// attend serves one connection from its first to its last byte. opened is called when the handshake is done.
func (l *loop) attend(ctx context.Context, nc net.Conn, d *door, opened func()) {
	s, err := l.open(ctx, nc, d)
	if err != nil {
		nc.Close()
		if ctx.Err() == nil {
			post(ctx, l.events, func(l *loop) { l.refusedPeer(nc.RemoteAddr(), err) })
		}
		return
	}
	stop := context.AfterFunc(ctx, func() { s.conn.Close() })
	defer stop()
	defer s.conn.Close()
	// Ask the loop for a place. If another connection has it, look whether that one is alive, and ask again if not.
	for {
		verdict := make(chan admission, 1)
		post(ctx, l.events, func(l *loop) { verdict <- l.admit(s) })
		var v admission
		select {
		case <-ctx.Done():
			return
		case v = <-verdict:
		}
		switch {
		case v.err != nil:
			post(ctx, l.events, func(l *loop) { l.refusedPeer(nc.RemoteAddr(), v.err) })
			return
		case v.other == nil:
			opened()
			watching, cancel := context.WithCancel(ctx)
			defer cancel()
			if s.cert != nil {
				go l.watchCertificate(watching, s)
			}
			s.serve(ctx, l.events, l.o.Now)
			return
		case l.alive(ctx, v.other):
			post(ctx, l.events, func(l *loop) { l.duplicate(s, v.other) })
			_ = s.conn.Send(ctx, &openflow.Error{Code: helloEPerm, Data: []byte("duplicate datapath id")})
			return
		}
		v.other.conn.Close()
		<-v.other.conn.Done()
		post(ctx, l.events, func(l *loop) { l.disconnected(v.other) })
	}
}

// open does the handshakes of a new connection.
func (l *loop) open(ctx context.Context, nc net.Conn, d *door) (*session, error) {
	var cert *x509.Certificate
	var dpids []uint64
	if l.o.TLS != nil {
		t := tls.Server(nc, l.o.TLS)
		shaking, cancel := context.WithTimeout(ctx, tlsTimeout)
		defer cancel()
		if err := t.HandshakeContext(shaking); err != nil {
			return nil, fmt.Errorf("TLS: %w", err)
		}
		cert = t.ConnectionState().PeerCertificates[0]
		var err error
		if dpids, err = l.o.Certify(shaking, cert); err != nil {
			return nil, fmt.Errorf("its certificate: %w", err)
		}
		nc = t
	}
	s, err := open(ctx, nc, l.generation, l.log, opening{door: d, certified: func(dpid uint64) error {
		if cert == nil || slices.Contains(dpids, dpid) {
			return nil
		}
		return &claimError{dpid, certificateID(cert), dpids}
	}})
	if err == nil && cert != nil {
		s.cert, s.key = cert, certificateID(cert)
	}
	return s, err
}

// claimError is of a switch that has a good certificate, but not for the datapath id that it says it has.
type claimError struct {
	dpid uint64
	cert string
	own  []uint64
}

func (e *claimError) Error() string {
	return fmt.Sprintf("it claims the datapath id %016x, and its certificate %s is for %s: make one for it (weir switch cert %x)", e.dpid, e.cert, idList(e.own), e.dpid)
}

func idList(dpids []uint64) string {
	text := ""
	for i, id := range dpids[:min(len(dpids), 4)] {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%016x", id)
	}
	if len(dpids) > 4 {
		text += fmt.Sprintf(" and %d more", len(dpids)-4)
	}
	return text
}

// certificateID is the API's name of a certificate.
func certificateID(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:8])
}

// watchCertificate ends a connection whose certificate is revoked or has expired. What cannot be decided now ends nothing.
func (l *loop) watchCertificate(ctx context.Context, s *session) {
	tick := time.NewTicker(certifyEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.conn.Done():
			return
		case <-tick.C:
		}
		asking, cancel := context.WithTimeout(ctx, certifyEvery)
		dpids, err := l.o.Certify(asking, s.cert)
		cancel()
		if err == nil && !slices.Contains(dpids, s.dpid) {
			err = fmt.Errorf("it is for %s", idList(dpids))
		}
		if err == nil || errors.Is(err, ErrUndecided) || ctx.Err() != nil {
			continue
		}
		post(ctx, l.events, func(l *loop) {
			if d := l.switches[s.dpid]; d != nil && d.session == s {
				l.event(api.Error, "SwitchRefused", api.KindSwitch, d.Name, fmt.Sprintf("switch %s is disconnected: its certificate: %v", d.Name, err), 0)
			}
			s.conn.Close()
		})
		return
	}
}

// alive asks a switch whether it is still there.
func (l *loop) alive(ctx context.Context, s *session) bool {
	ctx, cancel := context.WithTimeout(ctx, aliveTimeout)
	defer cancel()
	return s.conn.Barrier(ctx) == nil
}

// tooMany tells of connections that were closed unread.
func (l *loop) tooMany(peer net.Addr, err error) {
	if l.damp("full " + host(peer.String())) {
		l.event(api.Error, "SwitchRefused", "", "", fmt.Sprintf("a connection for OpenFlow was closed: %v", err), 0)
	}
}

// refusedPeer tells of a peer that did not become a switch.
func (l *loop) refusedPeer(peer net.Addr, err error) {
	address := host(peer.String())
	reason, message := "SwitchRefused", fmt.Sprintf("what connected from %s is no switch that can be controlled: %v", address, err)
	var version *openflow.VersionError
	var plain tls.RecordHeaderError
	key, severity, object := "peer "+address, api.Warning, ""
	var claim *claimError
	if errors.As(err, &claim) { // what else comes from that address does not hide it
		key, severity = fmt.Sprintf("claim %016x %s", claim.dpid, claim.cert), api.Error
		if d := l.switches[claim.dpid]; d != nil {
			object = d.Name
		}
	}
	switch {
	case errors.As(err, &version):
		message = fmt.Sprintf("the switch at %s does not speak OpenFlow 1.3: %v; enable it there (Open vSwitch: protocols=OpenFlow13)", address, err)
	case errors.As(err, &plain):
		message = fmt.Sprintf("what connected from %s does not speak TLS: give the switch a certificate (weir switch cert DATAPATH-ID) and an ssl: address, or let this manager listen without TLS (--openflow tcp:ADDRESS:PORT)", address)
	case l.o.TLS == nil && errors.Is(err, openflow.ErrNotOpenFlow):
		message += "; does it speak TLS? This manager listens without (--openflow tcp:)"
	}
	if l.damp(key) {
		kind := api.Kind("")
		if object != "" {
			kind = api.KindSwitch
		}
		l.event(severity, reason, kind, object, message, 0)
	}
}

func (l *loop) duplicate(s, first *session) {
	d := l.switches[s.dpid]
	if d == nil || !l.damp(fmt.Sprintf("duplicate %016x %s", s.dpid, host(s.address))) {
		return
	}
	l.event(api.Error, "SwitchRefused", api.KindSwitch, d.Name, fmt.Sprintf("a switch at %s has the datapath id %016x of %s at %s, which is connected: give it another one",
		s.address, s.dpid, d.Name, first.address), 0)
}

func host(address string) string {
	h, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return h
}
