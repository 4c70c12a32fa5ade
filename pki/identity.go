package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"weir.dev/weir/instance"
)

// Identity is an agent's key and, once it has joined, its certificate and the authority's. It is immutable.
type Identity struct {
	key       *ecdsa.PrivateKey
	cert      *x509.Certificate // nil: not joined yet
	authority *x509.Certificate
}

// NewIdentity makes a key.
func NewIdentity() (*Identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("agent's key: %w", err)
	}
	return &Identity{key: key}, nil
}

// Joined tells whether there is a certificate.
func (i *Identity) Joined() bool { return i.cert != nil }

// Host is the name for which the certificate is.
func (i *Identity) Host() string {
	return strings.TrimPrefix(i.cert.Subject.CommonName, hostPrefix)
}

// Valid tells from when to when the certificate is valid.
func (i *Identity) Valid() (notBefore, notAfter time.Time) { return i.cert.NotBefore, i.cert.NotAfter }

// Request is a certificate request (PKCS #10, PEM) for the key.
func (i *Identity) Request(host string) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: hostPrefix + host}}, i.key)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// With gives the identity its certificate; both are PEM. The authority's public key must have the hash, unless that is "".
func (i *Identity) With(certificate, authority []byte, hash string) (*Identity, error) {
	out, err := parseIdentity(append(append(append([]byte{}, certificate...), authority...), encodeKey(i.key)...))
	if err != nil {
		return nil, fmt.Errorf("the manager's answer: %w", err)
	}
	if !out.Joined() {
		return nil, errors.New("the manager's answer has no certificate")
	}
	if hash != "" && KeyHash(out.authority) != hash {
		return nil, errors.New("the manager's answer has another authority than the token names")
	}
	return out, nil
}

// AuthorityHash names the authority.
func (i *Identity) AuthorityHash() string { return KeyHash(i.authority) }

func parseIdentity(text []byte) (*Identity, error) {
	certs, key, err := parsePEM(text)
	if err != nil {
		return nil, err
	}
	out := &Identity{key: key}
	if key == nil {
		return nil, errors.New("no private key")
	}
	if len(certs) == 0 {
		return out, nil
	}
	if len(certs) != 2 {
		return nil, fmt.Errorf("%d certificates: want the agent's and the authority's", len(certs))
	}
	out.cert, out.authority = certs[0], certs[1]
	if !key.PublicKey.Equal(out.cert.PublicKey) {
		return nil, errors.New("the certificate is for another key")
	}
	if err := out.cert.CheckSignatureFrom(out.authority); err != nil {
		return nil, fmt.Errorf("the certificate is not of the authority: %w", err)
	}
	return out, nil
}

// LoadIdentity reads a file that Save wrote. One that others can read is refused.
func LoadIdentity(path string) (*Identity, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s has mode %04o: others may have read the host's key: delete it and join again with a new token", path, info.Mode().Perm())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	i, err := parseIdentity(b)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w: delete it and join again with a new token", path, err)
	}
	return i, nil
}

// Save writes the identity with mode 0600, whole or not at all.
func (i *Identity) Save(path string) error {
	text := encodeKey(i.key)
	if i.Joined() {
		text = append(append(encodeCert(i.cert.Raw), encodeCert(i.authority.Raw)...), text...)
	}
	if err := instance.WriteFile(path, text); err != nil {
		return fmt.Errorf("keep the agent's identity: %w", err)
	}
	return nil
}

// Missing tells that there is no identity file yet.
func Missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// Client is the TLS configuration of an agent that has joined. now is its clock; protocols are for ALPN (RFC 7301).
func (i *Identity) Client(now func() time.Time, protocols ...string) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(i.authority)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: ManagerName, RootCAs: pool, NextProtos: protocols,
		Certificates:       []tls.Certificate{{Certificate: [][]byte{i.cert.Raw, i.authority.Raw}, PrivateKey: i.key, Leaf: i.cert}},
		InsecureSkipVerify: true, // VerifyConnection does it, with words that name both clocks
		VerifyConnection: func(s tls.ConnectionState) error {
			return verifyManager(s, pool, now())
		},
	}
}

// Joining is the TLS configuration of an agent that has a token only. The manager's clock is not judged yet: its answer to the join does.
func Joining(t Token, protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: ManagerName, NextProtos: protocols,
		InsecureSkipVerify: true, // the token pins the authority
		VerifyConnection: func(s tls.ConnectionState) error {
			for _, c := range s.PeerCertificates[1:] {
				if c.IsCA && SameHash(KeyHash(c), t.Authority) {
					pool := x509.NewCertPool()
					pool.AddCert(c)
					return verifyManager(s, pool, s.PeerCertificates[0].NotBefore.Add(time.Second))
				}
			}
			return fmt.Errorf("%w: it is not by the authority that the token names: is the token of another Weir, or does someone else answer at that address?", ErrNotManager)
		},
	}
}

// ErrNotManager is about who answers where a manager should.
var ErrNotManager = errors.New("the certificate is not a manager's of this Weir")

func verifyManager(s tls.ConnectionState, pool *x509.CertPool, now time.Time) error {
	leaf := s.PeerCertificates[0]
	_, err := leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: ManagerName, CurrentTime: leaf.NotBefore.Add(time.Second), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotManager, err)
	}
	if now.After(leaf.NotAfter) {
		return fmt.Errorf("clocks differ: this host's says %s, and the manager's certificate, made by the manager's clock, is valid from %s to %s: synchronise the clocks (NTP)",
			stamp(now), stamp(leaf.NotBefore), stamp(leaf.NotAfter))
	}
	return nil // one that is not valid yet shows only that this host's clock is behind: the authority makes none for later
}
