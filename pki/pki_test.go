package pki_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weir.dev/weir/pki"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func says(t testing.TB, err error, is error, words ...string) {
	t.Helper()
	if err == nil || is != nil && !errors.Is(err, is) {
		t.Fatalf("error %v, want %v", err, is)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

// joined is an agent with a certificate.
func joined(t testing.TB, a *pki.Authority, host string, now time.Time, life time.Duration) (*pki.Identity, *x509.Certificate) {
	t.Helper()
	id := must(pki.NewIdentity())(t)
	cert := must(a.Agent(must(id.Request(host))(t), host, now, life))(t)
	return must(id.With(pki.EncodeCertificate(cert), a.Certificate(), a.Hash()))(t), cert
}

func TestAuthoritySurvivesMarshal(t *testing.T) {
	a := must(pki.NewAuthority(start))(t)
	b := must(pki.ParseAuthority(a.Marshal()))(t)
	if a.Hash() != b.Hash() || len(a.Hash()) != 64 {
		t.Fatalf("hash %s, then %s", a.Hash(), b.Hash())
	}
	_, cert := joined(t, a, "h1", start, time.Hour)
	if host, err := b.Check(cert, start); err != nil || host != "h1" {
		t.Fatalf("%q, %v", host, err)
	}
	if strings.Contains(string(a.Certificate()), "PRIVATE") {
		t.Fatal("the certificate has the key in it")
	}
	for name, text := range map[string][]byte{
		"certificate only": a.Certificate(), "nothing": nil, "rubbish behind": append(a.Marshal(), "x"...),
		"another's key": append(append([]byte{}, a.Certificate()...), must(pki.NewAuthority(start))(t).Marshal()...),
	} {
		if _, err := pki.ParseAuthority(text); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestAgentsCertificatesAreJudged(t *testing.T) {
	a, other := must(pki.NewAuthority(start))(t), must(pki.NewAuthority(start))(t)
	_, cert := joined(t, a, "h1", start, time.Hour)
	if host, err := a.Check(cert, start.Add(-pki.MaxSkew)); err != nil || host != "h1" {
		t.Errorf("a clock that is a little behind: %q, %v", host, err)
	}
	if host, err := a.Check(cert, start.Add(-time.Hour)); err != nil || host != "h1" {
		t.Errorf("a clock that was set back by an hour: %q, %v", host, err)
	}
	_, err := a.Check(cert, start.Add(2*time.Hour))
	says(t, err, pki.ErrExpired, "host h1", "2026-03-01 13:00:00 UTC", "2026-03-01 14:00:00 UTC", "weir token create")
	_, err = a.Check(cert, start.Add(-pki.Backdate-time.Second))
	says(t, err, pki.ErrEarly, "host h1", "clocks differ")
	_, err = other.Check(cert, start)
	says(t, err, pki.ErrStranger)
	server := must(a.Manager(start, time.Hour, "127.0.0.1"))(t)
	_, err = a.Check(server.Leaf, start)
	says(t, err, pki.ErrStranger)
}

func TestRequestsThatAreNoneAreRefused(t *testing.T) {
	a := must(pki.NewAuthority(start))(t)
	csr := func(key any) []byte {
		der := must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key))(t)
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
	broken := csr(must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t))
	b, _ := pem.Decode(broken)
	b.Bytes[len(b.Bytes)-1] ^= 1
	for name, text := range map[string][]byte{
		"no PEM":           []byte("hello"),
		"another block":    a.Certificate(),
		"RSA":              csr(must(rsa.GenerateKey(rand.Reader, 2048))(t)),
		"another curve":    csr(must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))(t)),
		"bad signature":    pem.EncodeToMemory(b),
		"larger than life": append(csr(must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)), make([]byte, 5000)...),
	} {
		if _, err := a.Agent(text, "h1", start, time.Hour); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
}

func TestRequestedNameIsNotTakenOver(t *testing.T) {
	a := must(pki.NewAuthority(start))(t)
	id := must(pki.NewIdentity())(t)
	cert := must(a.Agent(must(id.Request("h2"))(t), "h1", start, time.Hour))(t)
	if host, err := a.Check(cert, start); host != "h1" || err != nil {
		t.Fatalf("%q, %v", host, err)
	}
}

func TestTokens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tok := pki.NewToken(strings.Repeat("ab", 32))
		got, err := pki.ParseToken(" " + tok.String() + "\n")
		if err != nil || got != tok {
			t.Fatalf("%v, %v", got, err)
		}
		text := []byte(tok.String())
		i := rapid.IntRange(0, len(text)-1).Draw(t, "place")
		text[i] = byte(rapid.SampledFrom([]rune(" .:/é\x00Z")).Draw(t, "character"))
		if again, err := pki.ParseToken(string(text)); err == nil && again == tok && strings.TrimSpace(string(text)) != tok.String() {
			t.Fatalf("%q taken for %q", text, tok)
		} else if err != nil && strings.Contains(err.Error(), tok.Secret) {
			t.Fatalf("the error tells the secret: %v", err)
		}
		if h := pki.SecretHash(tok.ID, tok.Secret); strings.Contains(h, tok.Secret) || !pki.SameHash(h, pki.SecretHash(tok.ID, tok.Secret)) || pki.SameHash(h, "") {
			t.Fatal("hash")
		}
	})
}

func TestSkewNamesBothClocks(t *testing.T) {
	for d, bad := range map[time.Duration]bool{0: false, pki.MaxSkew: false, -pki.MaxSkew: false, pki.MaxSkew + time.Second: true, -24 * time.Hour: true} {
		err := pki.CheckSkew("h1", start.Add(d), start)
		if (err != nil) != bad {
			t.Errorf("%v: %v", d, err)
		}
		if bad {
			says(t, err, nil, "h1", start.Add(d).Format("2006-01-02 15:04:05"), start.Format("2006-01-02 15:04:05"), "NTP")
		}
	}
}

func TestRenewalIsAtTwoThirdsOfTheLife(t *testing.T) {
	a := must(pki.NewAuthority(start))(t)
	for _, life := range []time.Duration{pki.AgentLife, 9 * time.Second} {
		_, cert := joined(t, a, "h1", start, life)
		if at := pki.RenewAt(cert.NotBefore, cert.NotAfter); at != start.Add(life*2/3) {
			t.Errorf("%v: renewed after %v, want %v", life, at.Sub(start), life*2/3)
		}
	}
}

func TestIdentityFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "agent.pem")
	if _, err := pki.LoadIdentity(path); !pki.Missing(err) {
		t.Fatalf("no file: %v", err)
	}
	a := must(pki.NewAuthority(start))(t)
	id := must(pki.NewIdentity())(t)
	if err := id.Save(path); err != nil {
		t.Fatal(err)
	}
	kept := must(pki.LoadIdentity(path))(t)
	if kept.Joined() {
		t.Fatal("joined without a certificate")
	}
	cert := must(a.Agent(must(kept.Request("h1"))(t), "h1", start, time.Hour))(t)
	if _, err := must(pki.NewIdentity())(t).With(pki.EncodeCertificate(cert), a.Certificate(), ""); err == nil {
		t.Error("a certificate for another key was taken")
	}
	if _, err := kept.With(pki.EncodeCertificate(cert), a.Certificate(), strings.Repeat("0", 64)); err == nil {
		t.Error("another authority was taken")
	}
	now := must(kept.With(pki.EncodeCertificate(cert), a.Certificate(), a.Hash()))(t)
	if err := now.Save(path); err != nil {
		t.Fatal(err)
	}
	again := must(pki.LoadIdentity(path))(t)
	if !again.Joined() || again.Host() != "h1" || !now.Joined() || again.AuthorityHash() != now.AuthorityHash() {
		t.Errorf("%v %v", again.Joined(), again.Host())
	}
	if info := must(os.Stat(path))(t); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	_, err := pki.LoadIdentity(path)
	says(t, err, nil, "others may have read")
	if err := os.WriteFile(path, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = pki.LoadIdentity(path)
	says(t, err, nil, "damaged", "join again")
}

// shake does a TLS handshake between a manager's certificate and an agent's configuration.
func shake(t testing.TB, server tls.Certificate, client *tls.Config) error {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_ = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequestClientCert}).Handshake()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := (&tls.Dialer{Config: client}).DialContext(ctx, "tcp", l.Addr().String())
	if err == nil {
		c.Close()
	}
	return err
}

func TestAgentsKnowTheirManager(t *testing.T) {
	now := time.Now()
	clock := func(d time.Duration) func() time.Time { return func() time.Time { return now.Add(d) } }
	a, other := must(pki.NewAuthority(now))(t), must(pki.NewAuthority(now))(t)
	server, stranger := must(a.Manager(now, time.Hour))(t), must(other.Manager(now, time.Hour))(t)
	id, _ := joined(t, a, "h1", now, time.Hour)
	impostor := server // a joined agent that plays the manager
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key))(t)
	cert := must(a.Agent(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), "h2", now, time.Hour))(t)
	impostor.Certificate, impostor.PrivateKey, impostor.Leaf = [][]byte{cert.Raw, server.Certificate[1]}, key, cert
	token, wrong := pki.NewToken(a.Hash()), pki.NewToken(other.Hash())

	for name, x := range map[string]struct {
		server tls.Certificate
		client *tls.Config
		is     error
		says   string
	}{
		"joined":                          {server, id.Client(clock(0)), nil, ""},
		"clock behind":                    {server, id.Client(clock(-pki.MaxSkew)), nil, ""},
		"joined, a stranger answers":      {stranger, id.Client(clock(0)), pki.ErrNotManager, ""},
		"joined, another agent answers":   {impostor, id.Client(clock(0)), pki.ErrNotManager, ""},
		"joined, clock of another day":    {server, id.Client(clock(24 * time.Hour)), nil, "clocks differ"},
		"joined, clock a day behind":      {server, id.Client(clock(-24 * time.Hour)), nil, ""},
		"token":                           {server, pki.Joining(token), nil, ""},
		"token of another Weir":           {server, pki.Joining(wrong), pki.ErrNotManager, "the token names"},
		"token, a stranger answers":       {stranger, pki.Joining(token), pki.ErrNotManager, "the token names"},
		"token, another agent answers":    {impostor, pki.Joining(token), pki.ErrNotManager, ""},
		"token, and the clock is no hurt": {must(a.Manager(now.Add(300*time.Hour), time.Hour))(t), pki.Joining(token), nil, ""},
	} {
		err := shake(t, x.server, x.client)
		if x.is == nil && x.says == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil || x.is != nil && !errors.Is(err, x.is) || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v, want %v %q", name, err, x.is, x.says)
		}
	}
}
