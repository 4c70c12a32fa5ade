// Package config is what a daemon is told: the command line fills it in and checks it, the daemon does it.
package config

import (
	"net/netip"
	"time"
)

// Host describes this machine as a host.
type Host struct {
	Name            string         // "": the machine's own, or that under which it has joined
	Switch          string         // what forwards: the name of a driver
	Runtime         string         // of functions that name none: the name of a driver
	AllowBare       bool           // the runtime bare runs every image, not the catalogue's alone
	Uplink          string         // interface into the OpenFlow fabric; "" none
	UnderlayAddress netip.Addr     // where tunnels from other hosts end; invalid: none
	Collector       netip.AddrPort // that gets what functions export of flows; invalid: none
}

// Manager says how a manager runs.
type Manager struct {
	Listen            string        // loopback address of the API; "": its Unix socket only
	UI                string        // loopback address of the web UI; "": it is not served
	UIMoves           bool          // to a free port, if that one is taken
	Agents            string        // address for agents elsewhere; "": none can join
	CertificateLife   time.Duration // of agents; 0: pki.AgentLife
	Underlay          string        // none, vxlan
	Tunnels           string        // their encryption: auto, encrypted, plain
	OpenFlow          string        // address for the fabric's switches, with "tcp:" before it for no TLS; "": none
	DefaultForwarding bool          // in the OpenFlow fabric; off: something else forwards there what no policy selects
	Placement         string        // how hosts are chosen: a strategy by name
	Etcd              []string      // external etcd; none: embedded
	EtcdCA            string        // PEM files for https, see store.Options
	EtcdCert, EtcdKey string
	SecretKey         string // file by which secrets in the state are encrypted; "": they are there as they are
	Restore           string // file of a backup that becomes the state; "" none
	Replace           bool   // with Restore: also a state that is whole
	Lab               string // directory of the lab's runs; "": there is no lab
	NoAgent           bool   // a manager only: this machine is no host
}
