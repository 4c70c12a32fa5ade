package pki

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SwitchLife is how long a switch's certificate is valid unless somebody asks for another time: switches do not renew by themselves.
const SwitchLife = 365 * 24 * time.Hour

// MaxSwitchIDs bounds the datapath ids of one certificate. A switch process presents one certificate for all its bridges (Open vSwitch does).
const MaxSwitchIDs = 256

const (
	switchOrganisation = "weir:switch"
	switchScheme       = "weir"
	switchPrefix       = "datapath/"
)

// ErrNotSwitch says that a certificate does not name an OpenFlow switch.
var ErrNotSwitch = errors.New("not a certificate of this Weir's switches")

// FormatDatapathID is a datapath id as certificates and the API write it: 16 hexadecimal digits.
func FormatDatapathID(dpid uint64) string { return fmt.Sprintf("%016x", dpid) }

// Switch signs a request (PKCS #10, PEM) for a switch's process; the certificate names the datapath ids that the process may have. Only the
// key is taken from the request.
func (a *Authority) Switch(request []byte, dpids []uint64, now time.Time, life time.Duration) (*x509.Certificate, error) {
	req, err := ParseRequest(request)
	if err != nil {
		return nil, err
	}
	if len(dpids) == 0 || len(dpids) > MaxSwitchIDs {
		return nil, fmt.Errorf("certificate for %d datapath ids: want 1 to %d", len(dpids), MaxSwitchIDs)
	}
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "switch:" + FormatDatapathID(dpids[0]), Organization: []string{switchOrganisation}},
		NotBefore: now.Add(-Backdate), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, id := range dpids {
		t.URIs = append(t.URIs, &url.URL{Scheme: switchScheme, Opaque: switchPrefix + FormatDatapathID(id)})
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, req.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate of a switch: %w", err)
	}
	return x509.ParseCertificate(der)
}

// CheckSwitch returns the datapath ids that a certificate names. TLS has shown already that the peer has the key.
func (a *Authority) CheckSwitch(c *x509.Certificate, now time.Time) ([]uint64, error) {
	opts := x509.VerifyOptions{Roots: a.pool, CurrentTime: c.NotBefore.Add(time.Second), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := c.Verify(opts); err != nil { // at a time when it is valid: the time is checked below, with better words
		return nil, fmt.Errorf("%w: %w", ErrNotSwitch, err)
	}
	if !slices.Equal(c.Subject.Organization, []string{switchOrganisation}) {
		return nil, fmt.Errorf("%w: its subject is %s", ErrNotSwitch, c.Subject)
	}
	dpids, err := switchIDs(c)
	if err != nil {
		return nil, err
	}
	switch {
	case now.After(c.NotAfter):
		return nil, fmt.Errorf("%w: it ended at %s, and the manager's clock says %s: make another (weir switch cert)", ErrExpired, stamp(c.NotAfter), stamp(now))
	case now.Before(c.NotBefore):
		return nil, fmt.Errorf("%w: it begins at %s, and the manager's clock says %s: synchronise the managers' clocks", ErrEarly, stamp(c.NotBefore), stamp(now))
	}
	return dpids, nil
}

func switchIDs(c *x509.Certificate) ([]uint64, error) {
	if len(c.URIs) == 0 || len(c.URIs) > MaxSwitchIDs {
		return nil, fmt.Errorf("%w: it names %d datapath ids", ErrNotSwitch, len(c.URIs))
	}
	var out []uint64
	for _, u := range c.URIs {
		text, ok := strings.CutPrefix(u.Opaque, switchPrefix)
		id, err := strconv.ParseUint(text, 16, 64)
		if u.Scheme != switchScheme || !ok || err != nil {
			return nil, fmt.Errorf("%w: it names %q", ErrNotSwitch, u)
		}
		out = append(out, id)
	}
	return out, nil
}

// ForSwitches is the TLS configuration of the listener for switches: both ends have a certificate of the authority. TLS 1.2 is allowed:
// switches and Open vSwitch before 3.4 know no later one. certificate gives the manager's; check is asked about each peer's certificate.
func ForSwitches(certificate func() (tls.Certificate, error), check func(*x509.Certificate) error) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAnyClientCert, SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			c, err := certificate()
			return &c, err
		},
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return fmt.Errorf("%w: there is none", ErrNotSwitch)
			}
			return check(s.PeerCertificates[0])
		},
	}
}
