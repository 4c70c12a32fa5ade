package manager

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"weir.dev/weir/api"
	"weir.dev/weir/pki"
	"weir.dev/weir/store"
)

// kindSecret are values that managers share. No path of the API lists them.
const kindSecret api.Kind = "secret"

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

// keys are what all managers of a store share and no answer of the API contains.
type keys struct {
	mu        sync.Mutex
	authority *pki.Authority
	lldp      []byte
}

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
	m.keys.mu.Lock()
	defer m.keys.mu.Unlock()
	if m.keys.authority != nil {
		return m.keys.authority, nil
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
	m.keys.authority = a
	return a, nil
}

// LLDPKey signs the router's own link discovery frames, those of OpenFlow switches. No host has it; see HostLLDPKey.
func (m *Manager) LLDPKey(ctx context.Context) ([]byte, error) {
	m.keys.mu.Lock()
	defer m.keys.mu.Unlock()
	if m.keys.lldp != nil {
		return m.keys.lldp, nil
	}
	key, err := m.shared(ctx, lldpSecret, func() ([]byte, error) {
		b := make([]byte, lldpKeyBytes)
		_, _ = rand.Read(b) // never fails
		return b, nil
	})
	m.keys.lldp = key
	return key, err
}

// sealKey is the key of users' secrets.
func (m *Manager) sealKey() ([]byte, error) {
	switch {
	case m.SealKey != nil:
		return m.SealKey()
	case m.SecretKey != nil:
		return m.SecretKey, nil
	}
	return nil, api.Refuse(http.StatusConflict, "this manager has no key with which it could keep secrets: start it with --secret-key FILE, the same for all managers of this state")
}
