package standalone

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Cluster is an etcd of several members in this process, each of which can be stopped and started again. Members speak to each other on loopback.
type Cluster struct {
	dir     string
	peers   []url.URL
	members []*embed.Etcd // nil: stopped
}

const clusterStart = time.Minute

// StartCluster starts n members, with the limits of the embedded etcd. The path of dir must be short enough for Unix sockets.
func StartCluster(dir string, n int) (*Cluster, error) {
	c := &Cluster{dir: dir, members: make([]*embed.Etcd, n)}
	for range n { // ports that are free now
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		c.peers = append(c.peers, url.URL{Scheme: "http", Host: l.Addr().String()})
		l.Close()
	}
	return c, c.Start(c.all()...)
}

func (c *Cluster) all() (out []int) {
	for n := range c.members {
		out = append(out, n)
	}
	return out
}

// Endpoints are where the members answer.
func (c *Cluster) Endpoints() (out []string) {
	for n := range c.members {
		out = append(out, "unix://"+c.client(n))
	}
	return out
}

func (c *Cluster) client(n int) string { return filepath.Join(c.dir, fmt.Sprintf("c%d", n)) }

func (c *Cluster) config(n int) *embed.Config {
	conf := embed.NewConfig()
	conf.Name = fmt.Sprintf("m%d", n)
	conf.Dir = filepath.Join(c.dir, conf.Name)
	conf.ListenClientUrls = []url.URL{{Scheme: "unix", Path: c.client(n)}}
	conf.AdvertiseClientUrls = conf.ListenClientUrls
	conf.ListenPeerUrls, conf.AdvertisePeerUrls = c.peers[n:n+1], c.peers[n:n+1]
	var all []string
	for k, u := range c.peers {
		all = append(all, fmt.Sprintf("m%d=%s", k, u.String()))
	}
	conf.InitialCluster = strings.Join(all, ",")
	conf.MaxTxnOps, conf.MaxRequestBytes = 200_000, 64<<20
	conf.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	return conf
}

// Start starts members that are stopped, and waits until they have a leader.
func (c *Cluster) Start(which ...int) error {
	type started struct {
		n   int
		e   *embed.Etcd
		err error
	}
	out := make(chan started, len(which))
	for _, n := range which {
		go func() {
			e, err := embed.StartEtcd(c.config(n))
			out <- started{n, e, err}
		}()
	}
	var errs []error
	for range which {
		s := <-out
		c.members[s.n] = s.e
		errs = append(errs, s.err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("start etcd in %s: %w", c.dir, err)
	}
	late := time.After(clusterStart)
	for _, n := range which {
		select {
		case <-c.members[n].Server.ReadyNotify():
		case <-late:
			return fmt.Errorf("start etcd in %s: member %d was not ready within %v", c.dir, n, clusterStart)
		}
	}
	return nil
}

// Stop ends members at once, as a crash does: they leave no word to the others.
func (c *Cluster) Stop(which ...int) {
	for _, n := range which {
		if e := c.members[n]; e != nil {
			e.Server.HardStop()
			e.Close()
			_ = os.Remove(c.client(n))
			c.members[n] = nil
		}
	}
}

// Close ends all.
func (c *Cluster) Close() { c.Stop(c.all()...) }
