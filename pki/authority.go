package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strings"
	"time"
)

// Errors that callers tell apart.
var (
	ErrExpired  = errors.New("certificate expired")
	ErrEarly    = errors.New("certificate not valid yet")
	ErrStranger = errors.New("not a certificate of this Weir's agents")
)

// Authority signs certificates. It is one for all managers of a store. The zero value is not usable; see NewAuthority and ParseAuthority.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

// NewAuthority makes a self-signed authority.
func NewAuthority(now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "weir authority"},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(AuthorityLife),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	return newAuthority(der, key)
}

func newAuthority(der []byte, key *ecdsa.PrivateKey) (*Authority, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	if !cert.IsCA || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("authority: certificate and key do not belong together")
	}
	a := &Authority{cert: cert, key: key, pool: x509.NewCertPool()}
	a.pool.AddCert(cert)
	return a, nil
}

// Marshal gives certificate and private key as PEM, for ParseAuthority. It is a secret.
func (a *Authority) Marshal() []byte {
	return append(encodeCert(a.cert.Raw), encodeKey(a.key)...)
}

// ParseAuthority reads what Marshal wrote.
func ParseAuthority(text []byte) (*Authority, error) {
	certs, key, err := parsePEM(text)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	if len(certs) != 1 || key == nil {
		return nil, fmt.Errorf("authority: %d certificates and a key: %v: want one of each", len(certs), key != nil)
	}
	return newAuthority(certs[0].Raw, key)
}

// Certificate is the authority's certificate as PEM. It is no secret.
func (a *Authority) Certificate() []byte { return encodeCert(a.cert.Raw) }

// Hash names the authority: the SHA-256 of its public key (SubjectPublicKeyInfo), 64 hexadecimal digits.
func (a *Authority) Hash() string { return keyHash(a.cert) }

// KeyHash is the SHA-256 of a certificate's public key in hexadecimal.
func KeyHash(c *x509.Certificate) string { return keyHash(c) }

func keyHash(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// Manager makes a certificate for a manager's listener, with the authority's behind it. Addresses are host names and IP addresses by
// which people reach it; agents do not need them.
func (a *Authority) Manager(now time.Time, life time.Duration, addresses ...string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate of the manager: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: ManagerName, Organization: []string{managerOrganisation}},
		NotBefore: now.Add(-Backdate), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, DNSNames: []string{ManagerName},
	}
	for _, addr := range addresses {
		if ip := net.ParseIP(addr); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if addr != "" {
			t.DNSNames = append(t.DNSNames, addr)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate of the manager: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate of the manager: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// Agent signs a request (PKCS #10, PEM) for a host's agent, and returns the certificate. Nothing is taken over from the request but its
// key, which has to be an ECDSA key on P-256.
func (a *Authority) Agent(request []byte, host string, now time.Time, life time.Duration) (*x509.Certificate, error) {
	req, err := ParseRequest(request)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: hostPrefix + host, Organization: []string{agentOrganisation}},
		NotBefore: now.Add(-Backdate), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, req.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate of host %s: %w", host, err)
	}
	return x509.ParseCertificate(der)
}

// maxRequest bounds a certificate request in bytes; one with a P-256 key has some 500.
const maxRequest = 4 << 10

// ParseRequest reads and checks a certificate request.
func ParseRequest(text []byte) (*x509.CertificateRequest, error) {
	if len(text) > maxRequest {
		return nil, fmt.Errorf("certificate request of %d bytes: want at most %d", len(text), maxRequest)
	}
	b, _ := pem.Decode(text)
	if b == nil || b.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("certificate request: want PEM with a CERTIFICATE REQUEST (PKCS #10)")
	}
	req, err := x509.ParseCertificateRequest(b.Bytes)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	if k, ok := req.PublicKey.(*ecdsa.PublicKey); !ok || k.Curve != elliptic.P256() {
		return nil, errors.New("certificate request: want an ECDSA key on P-256")
	}
	if err := req.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	return req, nil
}

// RequestKeyHash is the SHA-256 of a request's public key in hexadecimal, equal to KeyHash of the certificate made for it.
func RequestKeyHash(r *x509.CertificateRequest) string {
	sum := sha256.Sum256(r.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// Check tells which host's agent presents a certificate. TLS has shown already that it has the key.
func (a *Authority) Check(c *x509.Certificate, now time.Time) (host string, err error) {
	opts := x509.VerifyOptions{Roots: a.pool, CurrentTime: c.NotBefore.Add(time.Second), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := c.Verify(opts); err != nil { // at a time when it is valid: the time is judged below, with better words
		return "", fmt.Errorf("%w: %w", ErrStranger, err)
	}
	host, ok := strings.CutPrefix(c.Subject.CommonName, hostPrefix)
	if !ok || host == "" || len(c.Subject.Organization) != 1 || c.Subject.Organization[0] != agentOrganisation {
		return "", fmt.Errorf("%w: its subject is %s", ErrStranger, c.Subject)
	}
	return host, inTime(c, host, now)
}

func inTime(c *x509.Certificate, host string, now time.Time) error {
	switch {
	case now.After(c.NotAfter):
		return fmt.Errorf("%w: that of host %s ended at %s, and the manager's clock says %s: join again with a new token (weir token create)",
			ErrExpired, host, stamp(c.NotAfter), stamp(now))
	case now.Before(c.NotBefore):
		return fmt.Errorf("%w: that of host %s begins at %s, and the manager's clock says %s: the managers' clocks differ, synchronise them",
			ErrEarly, host, stamp(c.NotBefore), stamp(now))
	}
	return nil
}

// CheckSkew is an error if a host's clock and the manager's differ too much; it names both.
func CheckSkew(host string, theirs, ours time.Time) error {
	d := theirs.Sub(ours)
	if d.Abs() <= MaxSkew {
		return nil
	}
	return fmt.Errorf("clocks differ by %v: host %s has %s, the manager %s; at most %v is allowed: synchronise them (NTP)",
		d.Abs().Round(time.Second), host, stamp(theirs), stamp(ours), MaxSkew)
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func serial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[0] &= 0x7f           // positive, at most 20 octets (RFC 5280, section 4.1.2.2)
	return new(big.Int).SetBytes(b[:])
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// EncodeCertificate gives a certificate as PEM.
func EncodeCertificate(c *x509.Certificate) []byte { return encodeCert(c.Raw) }

func encodeKey(key *ecdsa.PrivateKey) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(fmt.Sprintf("a P-256 key cannot be encoded: %v", err)) // never
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// parsePEM reads certificates and at most one key. Anything else is an error.
func parsePEM(text []byte) (certs []*x509.Certificate, key *ecdsa.PrivateKey, err error) {
	for {
		var b *pem.Block
		if b, text = pem.Decode(text); b == nil {
			break
		}
		switch b.Type {
		case "CERTIFICATE":
			c, err := x509.ParseCertificate(b.Bytes)
			if err != nil {
				return nil, nil, err
			}
			certs = append(certs, c)
		case "PRIVATE KEY":
			k, err := x509.ParsePKCS8PrivateKey(b.Bytes)
			if err != nil {
				return nil, nil, err
			}
			ec, ok := k.(*ecdsa.PrivateKey)
			if !ok || key != nil {
				return nil, nil, fmt.Errorf("a key of type %T: want one ECDSA key", k)
			}
			key = ec
		default:
			return nil, nil, fmt.Errorf("PEM block %q: want CERTIFICATE or PRIVATE KEY", b.Type)
		}
	}
	if len(bytes.TrimSpace(text)) > 0 {
		return nil, nil, errors.New("text that is no PEM")
	}
	return certs, key, nil
}
