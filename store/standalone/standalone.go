// Package standalone is an etcd of one member with its own default limits, as somebody else's cluster may be: for tests of what uses one.
package standalone

import (
	"fmt"
	"net/url"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Options say where it is. Only Dir is needed; its path must be short enough for a Unix socket.
type Options struct {
	Dir string
	// Listen is an address (127.0.0.1:2379) to listen on with TLS; "": a Unix socket in Dir, without.
	Listen        string
	CA, Cert, Key string // PEM files: clients must have a certificate of CA
}

// Start returns the endpoint once it answers there, and what ends it.
func Start(o Options) (endpoint string, stop func(), err error) {
	c := embed.NewConfig()
	c.Dir = filepath.Join(o.Dir, "data")
	c.ListenClientUrls = []url.URL{{Scheme: "unix", Path: filepath.Join(o.Dir, "client")}}
	if o.Listen != "" {
		c.ListenClientUrls = []url.URL{{Scheme: "https", Host: o.Listen}}
		c.ClientTLSInfo.TrustedCAFile, c.ClientTLSInfo.CertFile, c.ClientTLSInfo.KeyFile = o.CA, o.Cert, o.Key
		c.ClientTLSInfo.ClientCertAuth = true
	}
	c.ListenPeerUrls = nil // it would be an abstract socket
	c.AdvertiseClientUrls, c.AdvertisePeerUrls = c.ListenClientUrls, []url.URL{{Scheme: "unix", Path: filepath.Join(o.Dir, "peer")}}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(c)
	if err != nil {
		return "", nil, fmt.Errorf("start etcd in %s: %w", o.Dir, err)
	}
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		e.Close()
		return "", nil, fmt.Errorf("start etcd in %s: %w", o.Dir, err)
	}
	if o.Listen != "" {
		return "https://" + e.Clients[0].Addr().String(), e.Close, nil
	}
	return "unix://" + filepath.Join(o.Dir, "client"), e.Close, nil
}
