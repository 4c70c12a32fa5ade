package tunnel

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// Tunnels are encrypted where both hosts' kernels have WireGuard. A host makes its key itself and reports the public one; the router passes it
// to the others in their assignments. The private key never leaves the host. VXLAN's sockets are in a namespace that only WireGuard reaches, so
// nobody but a host with its key can put a frame into a tunnel, and a host only into its own.

// sealKeyLife is how old a key gets before the agent makes another. The others learn it through the manager; until then, about a second, packets
// are lost.
const sealKeyLife = 30 * 24 * time.Hour

// sealing is a host's key and what its kernel can.
type sealing struct {
	key     *ecdh.PrivateKey // nil: tunnels of this host cannot be encrypted
	feature api.Feature
}

// Prepare finds out whether tunnels can be encrypted, and loads or makes the key. It is called before anything else.
func (s *Set) Prepare() {
	s.sealing.feature = api.Feature{Name: api.FeatureSealed}
	err := s.Kernel.ProbeWireGuard()
	if err == nil {
		s.sealing.key, err = loadSealKey(s.Instance, s.Now())
	}
	if err != nil {
		s.sealing.feature.Detail = err.Error()
		return
	}
	s.sealing.feature.OK, s.sealing.feature.Detail = true, "WireGuard"
}

// loadSealKey reads the key. One that is too old, or that others may have read, is replaced.
func loadSealKey(i instance.Instance, now time.Time) (*ecdh.PrivateKey, error) {
	path := i.TunnelKeyFile()
	info, err := os.Stat(path)
	if err == nil && info.Mode().Perm()&0o077 == 0 && now.Sub(info.ModTime()).Abs() < sealKeyLife {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("key of encrypted tunnels: %w", err)
		}
		if key, err := ecdh.X25519().NewPrivateKey(text); err == nil {
			return key, nil
		}
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("key of encrypted tunnels: %w", err)
	}
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("key of encrypted tunnels: %w", err)
	}
	if err := instance.WriteFile(path, key.Bytes()); err != nil {
		return nil, fmt.Errorf("key of encrypted tunnels: %w", err)
	}
	return key, nil
}

// Key is the host's public key, for the manager; "": none.
func (s *Set) Key() string {
	if s.sealing.key == nil {
		return ""
	}
	return base64.StdEncoding.EncodeToString(s.sealing.key.PublicKey().Bytes())
}

// sealedMTU is of packets that WireGuard encrypts, for frames of an MTU: the encrypted packets are cut into fragments where the underlay is smaller.
func sealedMTU(mtu int) int {
	return netns.Padded(mtu + netns.VXLANOptions{Local: api.TunnelAddress("")}.Overhead())
}

// seal brings this host's WireGuard to what the wanted tunnels need. Without any it takes it away; then sealed is false.
func (s *Set) seal(wanted map[string]api.Tunnel, mtu int) (sealed bool, err error) {
	o := netns.WireGuardOptions{
		Name: s.Instance.Link("tunnels"), Alias: s.Instance.Alias("tunnels"), Port: api.TunnelUDP, Address: api.TunnelAddress(s.Host), MTU: sealedMTU(mtu),
	}
	for _, t := range wanted {
		if t.Key == "" {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(t.Key)
		remote, rerr := netip.ParseAddr(t.Remote)
		if err != nil || rerr != nil || len(key) != 32 {
			return false, fmt.Errorf("tunnel to %s: key %q, remote %q: want 32 octets and an IP address", t.Host, t.Key, t.Remote)
		}
		o.Peers = append(o.Peers, netns.WireGuardPeer{Key: [32]byte(key), Endpoint: netip.AddrPortFrom(remote.Unmap(), api.TunnelUDP), Allowed: api.TunnelAddress(t.Host)})
	}
	path := s.Instance.TunnelNetns()
	if len(o.Peers) == 0 {
		if len(s.all) == 0 && s.Kernel.Exists(path) {
			return false, s.Kernel.Delete(path)
		}
		return false, nil
	}
	if s.sealing.key == nil {
		return false, fmt.Errorf("encrypted tunnels: %s", s.sealing.feature.Detail)
	}
	o.Key = [32]byte(s.sealing.key.Bytes())
	if err := s.Kernel.WireGuard(path, o); err != nil {
		return false, err
	}
	return true, nil
}
