package manager

import (
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/pki"
	"weir.dev/weir/store"
)

// secret is a value that all managers of a store share and that no answer of the API contains.
type secret struct {
	api.Meta
	Value  []byte `json:"value"`
	Sealed bool   `json:"sealed,omitempty"` // Value is encrypted, see seal
}

const (
	authoritySecret = "authority"
	lldpSecret      = "lldp2" // "lldp" was one that all hosts knew
	lldpKeyBytes    = 32
)

// shared reads a secret, or makes it: the first manager does. One that was stored before there was a key is encrypted with it.
func (m *Manager) shared(ctx context.Context, name string, generate func() ([]byte, error)) ([]byte, error) {
	for range editAttempts {
		s, err := store.Get[secret](ctx, m.Store, kindSecret, name)
		switch {
		case err == nil && s.Sealed:
			return m.unseal(name, s.Value)
		case err == nil && m.SecretKey == nil:
			return s.Value, nil
		case errors.Is(err, store.ErrNotFound):
			now := m.Now().UTC()
			s = secret{Meta: api.Meta{Name: name, UID: newUID(), Created: now, Updated: now}}
			s.Value, err = generate()
		}
		if err != nil {
			return nil, err
		}
		at, value := s.Revision, s.Value
		if m.SecretKey != nil {
			if s.Value, err = seal(m.SecretKey, name, value); err != nil {
				return nil, err
			}
			s.Sealed = true
		}
		op, err := store.Put(kindSecret, &s)
		if err != nil {
			return nil, err
		}
		if _, err := m.Store.Txn(ctx, []store.Cond{{Key: op.Key, Revision: at}}, []store.Op{op}); err == nil {
			return value, nil
		} else if !errors.Is(err, store.ErrConflict) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("secret %s: others changed it %d times meanwhile", name, editAttempts)
}

func (m *Manager) unseal(name string, sealed []byte) ([]byte, error) {
	if m.SecretKey == nil {
		return nil, fmt.Errorf("secret %s in the state is encrypted: give the file that the other managers have with --secret-key", name)
	}
	value, err := open(m.SecretKey, name, sealed)
	if errors.Is(err, errDamaged) {
		return nil, fmt.Errorf("secret %s in the state: %w", name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("secret %s in the state was encrypted with another key: the file of --secret-key has to be the same for all managers", name)
	}
	return value, nil
}

// seal encrypts with AES-256 in GCM (NIST SP 800-38D), bound to the secret's name; a random nonce goes first.
func seal(key []byte, name string, value []byte) ([]byte, error) {
	gcm, err := newCipher(key)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, gcm.NonceSize())
	_, _ = rand.Read(nonce) // never fails
	return gcm.Seal(nonce, nonce, value, []byte(name)), nil
}

var errDamaged = errors.New("damaged")

func open(key []byte, name string, sealed []byte) ([]byte, error) {
	gcm, err := newCipher(key)
	if err != nil {
		return nil, err
	}
	if len(sealed) < gcm.NonceSize() {
		return nil, fmt.Errorf("%w: %d bytes", errDamaged, len(sealed))
	}
	return gcm.Open(nil, sealed[:gcm.NonceSize()], sealed[gcm.NonceSize():], []byte(name))
}

func newCipher(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("secret key: %w: want 32 bytes", err)
	}
	return cipher.NewGCM(block)
}

// authority is the certificate authority of all managers of this store; it is made when it is first needed.
func (m *Manager) authority(ctx context.Context) (*pki.Authority, error) {
	m.join.mu.Lock()
	defer m.join.mu.Unlock()
	if m.join.authority != nil {
		return m.join.authority, nil
	}
	text, err := m.shared(ctx, authoritySecret, func() ([]byte, error) {
		a, err := pki.NewAuthority(m.Now())
		if err != nil {
			return nil, err
		}
		return a.Marshal(), nil
	})
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	a, err := pki.ParseAuthority(text)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	m.join.authority = a
	return a, nil
}

// LLDPKey signs the router's own link discovery frames, those of OpenFlow switches. No host has it; see HostLLDPKey.
func (m *Manager) LLDPKey(ctx context.Context) ([]byte, error) {
	m.join.mu.Lock()
	defer m.join.mu.Unlock()
	if m.join.lldp != nil {
		return m.join.lldp, nil
	}
	key, err := m.shared(ctx, lldpSecret, func() ([]byte, error) {
		b := make([]byte, lldpKeyBytes)
		_, _ = rand.Read(b) // never fails
		return b, nil
	})
	m.join.lldp = key
	return key, err
}

// HostLLDPKey signs the link discovery frames of one host: it is derived from LLDPKey and the host's membership, so that no host can
// make another's, and one that joins anew gets another. A host that is not known (any more) has none: ErrNotFound.
func (m *Manager) HostLLDPKey(ctx context.Context, host string) ([]byte, error) {
	key, err := m.LLDPKey(ctx)
	if err != nil {
		return nil, err
	}
	life := ""
	rec, err := store.Get[member](ctx, m.Store, kindMember, host)
	switch {
	case err == nil:
		life = rec.Life
	case !errors.Is(err, store.ErrNotFound):
		return nil, err
	case host != m.Host || host == "": // a manager's own has no membership
		if _, err := m.Store.Get(ctx, store.Key(api.KindHost, host)); err != nil {
			return nil, err
		}
	}
	h := hmac.New(sha256.New, key)
	fmt.Fprintf(h, "weir lldp host 1\x00%s\x00%s", host, life)
	return h.Sum(nil), nil
}

// agentConfig answers with what all hosts have in common, and with the asking host's key of link discovery.
func (m *Manager) agentConfig(w http.ResponseWriter, r *http.Request) error {
	host := cmp.Or(r.URL.Query().Get("host"), m.Host)
	if who, ok := agentOf(r.Context()); ok {
		if host = cmp.Or(r.URL.Query().Get("host"), who.host); host != who.host {
			return api.Refuse(http.StatusForbidden, fmt.Sprintf("the key of host %q is not for host %s", host, who.host))
		}
	}
	c := m.AgentConfig
	c.Time = m.Now().UTC()
	if host != "" {
		key, err := m.HostLLDPKey(r.Context(), host)
		if err != nil {
			return err
		}
		c.LLDPKey = key
	}
	if c.Underlay == "" {
		c.Underlay = "none"
	}
	return answer(w, http.StatusOK, c)
}

// beat takes a host's sign of life. Of all that a host gives, only the first is written to the store.
func (m *Manager) beat(w http.ResponseWriter, r *http.Request) error {
	var req api.BeatRequest
	if err := readBody(w, r, &req); err != nil {
		return err
	}
	now := m.Now()
	host := r.PathValue("name")
	if err := checkName(api.KindHost, host); err != nil {
		return err
	}
	skew := time.Duration(0)
	if !req.Time.IsZero() {
		skew = req.Time.Sub(now)
	}
	before := m.beats.note(host, now, skew)
	if before.at.IsZero() {
		if err := m.noteBeatsHere(r.Context(), host); err != nil {
			m.Log.Warn("note that a host beats here", "host", host, "error", err)
		}
	}
	begins := before.skew.Abs() <= pki.MaxSkew || (skew-before.skew).Abs() > pki.MaxSkew // or is another
	if err := pki.CheckSkew(host, req.Time, now); err != nil && skew != 0 && begins {
		m.Log.Warn("clocks", "error", err)
		e := api.Event{Severity: api.Warning, Reason: clockSkew, Kind: api.KindHost, Object: host, Host: host, Message: err.Error()}
		if err := m.tellOf(r.Context(), nil, nil, e); err != nil {
			return err
		}
	}
	return answer(w, http.StatusOK, api.BeatAnswer{Time: now.UTC()})
}
