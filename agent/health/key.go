package health

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"weir.dev/weir/datapath"
	"weir.dev/weir/instance"
)

const keyBytes = 32

// Key makes the probe addresses of a host's functions. It is in a file that nobody but root can read, so the addresses are the same after a restart and at a
// function's next instance, and no function can tell another's.
type Key struct {
	File string

	mu  sync.Mutex
	key []byte // nil: not read yet
}

// read reads the key. The first call makes it.
func (k *Key) read() ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.key != nil {
		return k.key, nil
	}
	key, err := os.ReadFile(k.File)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("key of probes: %w", err)
	}
	if len(key) != keyBytes { // the functions get their new addresses before they are probed
		key = make([]byte, keyBytes)
		if _, err := rand.Read(key); err != nil {
			return nil, fmt.Errorf("key of probes: %w", err)
		}
		if err := instance.WriteFile(k.File, key); err != nil {
			return nil, fmt.Errorf("key of probes: %w", err)
		}
	}
	k.key = key
	return key, nil
}

// Addresses of a function's probe frames.
func (k *Key) Addresses(function string) (datapath.ProbeAddresses, error) {
	key, err := k.read()
	if err != nil {
		return datapath.ProbeAddresses{}, err
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte("probe\x00" + function))
	sum := h.Sum(nil)
	var p datapath.ProbeAddresses
	copy(p.Dst[:], sum)
	copy(p.Src[:], sum[len(p.Dst):])
	p.Dst[0], p.Src[0] = 6, 6 // one station's, administered locally
	return p, nil
}
