package store_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weir.dev/weir/store"
	"weir.dev/weir/store/standalone"
)

// pair writes a certificate and its key; without an issuer it is an authority.
func pair(t *testing.T, dir, name string, issuer *x509.Certificate, issuerKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if issuer == nil {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
		issuer, issuerKey = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, issuer, &key.PublicKey, issuerKey)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, b := range map[string]*pem.Block{name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "PRIVATE KEY", Bytes: text}} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c, key
}

func TestAnExternalClusterWithTLS(t *testing.T) {
	dir := shortDir(t)
	ca, key := pair(t, dir, "ca", nil, nil)
	pair(t, dir, "etcd", ca, key)
	pair(t, dir, "manager", ca, key)
	other, otherKey := pair(t, dir, "other", nil, nil)
	pair(t, dir, "stranger", other, otherKey)
	file := func(name string) string { return filepath.Join(dir, name) }
	endpoint, stop, err := standalone.Start(standalone.Options{Dir: dir, Listen: "127.0.0.1:0", CA: file("ca.pem"), Cert: file("etcd.pem"), Key: file("etcd.key")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	s := open(t, store.Options{Endpoints: []string{endpoint}, CA: file("ca.pem"), Cert: file("manager.pem"), KeyFile: file("manager.key")})
	if _, err := s.Txn(t.Context(), nil, []store.Op{{Key: "policy/p", Value: []byte("{}")}}); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]store.Options{
		"no certificate":           {CA: file("ca.pem")},
		"a stranger's certificate": {CA: file("ca.pem"), Cert: file("stranger.pem"), KeyFile: file("stranger.key")},
		"another authority's etcd": {CA: file("other.pem"), Cert: file("manager.pem"), KeyFile: file("manager.key")},
	} {
		o.Endpoints = []string{endpoint}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if s, err := store.Open(t.Context(), o); err == nil {
				s.Close()
				t.Error("let in")
			}
		})
	}
}
