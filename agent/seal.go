package agent

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

// prepareSealing finds out whether tunnels can be encrypted, and loads or makes the key.
func (a *Agent) prepareSealing() {
	a.sealing.feature = api.Feature{Name: api.FeatureSealed}
	err := netns.ProbeWireGuard()
	if err == nil {
		a.sealing.key, err = loadSealKey(a.Instance, a.Now())
	}
	if err != nil {
		a.sealing.feature.Detail = err.Error()
		return
	}
	a.sealing.feature.OK, a.sealing.feature.Detail = true, "WireGuard"
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

// publicKey is for the manager; "": none.
func (s *sealing) publicKey() string {
	if s.key == nil {
		return ""
	}
	return base64.StdEncoding.EncodeToString(s.key.PublicKey().Bytes())
}

// sealedMTU is of packets that WireGuard encrypts, for frames of an MTU: the encrypted packets are cut into fragments where the underlay is smaller.
func sealedMTU(mtu int) int {
	return netns.Padded(mtu + netns.VXLANOptions{Local: api.TunnelAddress("")}.Overhead())
}

// seal brings this host's WireGuard to what the wanted tunnels need. Without any it takes it away and returns nil.
func (a *Agent) seal(wanted map[string]api.Tunnel, mtu int) (*netns.Space, error) {
	o := netns.WireGuardOptions{
		Name: a.Instance.Link("tunnels"), Alias: a.Instance.Alias("tunnels"), Port: api.TunnelUDP, Address: api.TunnelAddress(a.Host), MTU: sealedMTU(mtu),
	}
	for _, t := range wanted {
		if t.Key == "" {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(t.Key)
		remote, rerr := netip.ParseAddr(t.Remote)
		if err != nil || rerr != nil || len(key) != 32 {
			return nil, fmt.Errorf("tunnel to %s: key %q, remote %q: want 32 octets and an IP address", t.Host, t.Key, t.Remote)
		}
		o.Peers = append(o.Peers, netns.WireGuardPeer{Key: [32]byte(key), Endpoint: netip.AddrPortFrom(remote.Unmap(), api.TunnelUDP), Allowed: api.TunnelAddress(t.Host)})
	}
	path := a.Instance.TunnelNetns()
	if len(o.Peers) == 0 {
		if len(a.tunnels) == 0 && netns.Exists(path) {
			return nil, netns.Delete(path)
		}
		return nil, nil
	}
	if a.sealing.key == nil {
		return nil, fmt.Errorf("encrypted tunnels: %s", a.sealing.feature.Detail)
	}
	o.Key = [32]byte(a.sealing.key.Bytes())
	if err := netns.Create(path, netns.Options{}); err != nil {
		return nil, err
	}
	inside, err := netns.At(path)
	if err != nil {
		return nil, err
	}
	host, err := netns.At("")
	if err != nil {
		inside.Close()
		return nil, err
	}
	defer host.Close()
	if err := host.WireGuard(inside, o); err != nil {
		inside.Close()
		return nil, err
	}
	return inside, nil
}
