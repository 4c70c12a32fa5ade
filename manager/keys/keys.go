package keys

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/tx"
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

// Keys are what all managers of a store share and no answer of the API contains.
type Keys struct {
	Store     store.Store
	Now       func() time.Time
	SecretKey []byte                 // encrypts what is shared; nil: it is stored as it is
	SealKey   func() ([]byte, error) // the key of users' secrets; nil: SecretKey is it

	mu        sync.Mutex
	authority *pki.Authority
	lldp      []byte
}

// shared reads a secret, or makes it: the first manager does. One that was stored before there was a key is encrypted with it.
func (k *Keys) shared(ctx context.Context, name string, generate func() ([]byte, error)) ([]byte, error) {
	for range tx.Attempts {
		s, err := store.Get[secret](ctx, k.Store, kindSecret, name)
		switch {
		case err == nil && s.Sealed:
			return k.unseal(name, s.Value)
		case err == nil && k.SecretKey == nil:
			return s.Value, nil
		case errors.Is(err, store.ErrNotFound):
			now := k.Now().UTC()
			s = secret{Meta: api.Meta{Name: name, UID: object.NewUID(), Created: now, Updated: now}}
			s.Value, err = generate()
		}
		if err != nil {
			return nil, err
		}
		at, value := s.Revision, s.Value
		if k.SecretKey != nil {
			if s.Value, err = Seal(k.SecretKey, name, value); err != nil {
				return nil, err
			}
			s.Sealed = true
		}
		if err := tx.Put(ctx, k.Store, kindSecret, &s, at); err == nil {
			return value, nil
		} else if !errors.Is(err, store.ErrConflict) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("secret %s: others changed it %d times meanwhile", name, tx.Attempts)
}

func (k *Keys) unseal(name string, sealed []byte) ([]byte, error) {
	if k.SecretKey == nil {
		return nil, fmt.Errorf("secret %s in the state is encrypted: give the file that the other managers have with --secret-key", name)
	}
	value, err := Open(k.SecretKey, name, sealed)
	if errors.Is(err, errDamaged) {
		return nil, fmt.Errorf("secret %s in the state: %w", name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("secret %s in the state was encrypted with another key: the file of --secret-key has to be the same for all managers", name)
	}
	return value, nil
}

// Seal encrypts with AES-256 in GCM (NIST SP 800-38D), bound to the secret's name; a random nonce goes first.
func Seal(key []byte, name string, value []byte) ([]byte, error) {
	gcm, err := newCipher(key)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, gcm.NonceSize())
	_, _ = rand.Read(nonce) // never fails
	return gcm.Seal(nonce, nonce, value, []byte(name)), nil
}

var errDamaged = errors.New("damaged")

// Open decrypts what Seal has encrypted under the same name.
func Open(key []byte, name string, sealed []byte) ([]byte, error) {
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

// Authority is the certificate authority of all managers of this store; it is made when it is first needed.
func (k *Keys) Authority(ctx context.Context) (*pki.Authority, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.authority != nil {
		return k.authority, nil
	}
	text, err := k.shared(ctx, authoritySecret, func() ([]byte, error) {
		a, err := pki.NewAuthority(k.Now())
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
	k.authority = a
	return a, nil
}

// LLDPKey signs the router's own link discovery frames, those of OpenFlow switches. No host has it; see HostLLDPKey.
func (k *Keys) LLDPKey(ctx context.Context) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lldp != nil {
		return k.lldp, nil
	}
	key, err := k.shared(ctx, lldpSecret, func() ([]byte, error) {
		b := make([]byte, lldpKeyBytes)
		_, _ = rand.Read(b) // never fails
		return b, nil
	})
	k.lldp = key
	return key, err
}

// UserKey is the key of users' secrets.
func (k *Keys) UserKey() ([]byte, error) {
	switch {
	case k.SealKey != nil:
		return k.SealKey()
	case k.SecretKey != nil:
		return k.SecretKey, nil
	}
	return nil, api.Refuse(http.StatusConflict, "this manager has no key with which it could keep secrets: start it with --secret-key FILE, the same for all managers of this state")
}
