package agent

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"weir.dev/weir/datapath"
	"weir.dev/weir/instance"
)

// Each function has probe addresses of its own. They are derived from a key of this host, which nobody but root can read, so they are the
// same after a restart and at a function's next instance, and no function can tell another's.

const probeKeyBytes = 32

// ProbeFile is where a function finds its probe addresses: "destination source", as in an Ethernet header.
const probeFile = "probe"

func (a *Agent) probeKeyFile() string { return filepath.Join(a.Instance.Root, "probe.key") }

// probeKey reads the key. The first call makes it.
func (a *Agent) probeKey() ([]byte, error) {
	a.probes.Lock()
	defer a.probes.Unlock()
	if a.probes.key != nil {
		return a.probes.key, nil
	}
	key, err := os.ReadFile(a.probeKeyFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("key of probes: %w", err)
	}
	if len(key) != probeKeyBytes { // the functions get their new addresses before they are probed
		key = make([]byte, probeKeyBytes)
		if _, err := rand.Read(key); err != nil {
			return nil, fmt.Errorf("key of probes: %w", err)
		}
		if err := instance.WriteFile(a.probeKeyFile(), key); err != nil {
			return nil, fmt.Errorf("key of probes: %w", err)
		}
	}
	a.probes.key = key
	return key, nil
}

// probeAddresses of a function.
func (a *Agent) probeAddresses(function string) (datapath.ProbeAddresses, error) {
	key, err := a.probeKey()
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
