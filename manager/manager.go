// Package manager serves the API: it admits specs, keeps objects with their generations, and follows operations.
//
// It is stateless over the store: several managers can serve one store. It owns Meta and operations; status comes from agents.
// It computes no rules and knows no drivers: what needs a host's answer goes through Node. DESIGN.md has the flow and the invariants.
package manager

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/access"
	"weir.dev/weir/manager/ask"
	"weir.dev/weir/manager/history"
	"weir.dev/weir/manager/images"
	"weir.dev/weir/manager/intent"
	"weir.dev/weir/manager/join"
	"weir.dev/weir/manager/keys"
	"weir.dev/weir/manager/labs"
	"weir.dev/weir/manager/lead"
	"weir.dev/weir/manager/members"
	"weir.dev/weir/manager/news"
	"weir.dev/weir/manager/read"
	"weir.dev/weir/manager/switchcert"
	"weir.dev/weir/manager/tx"
	"weir.dev/weir/manager/ui"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/pki"
	"weir.dev/weir/placement"
	"weir.dev/weir/store"
)

// Options are what a manager needs. Only Store is required.
type Options struct {
	Store store.Store
	// Validate tells everything that is wrong between the objects of a whole document, of which a part is new or changed:
	// router.ValidateChange. Each spec by itself is checked in any case.
	Validate func(d, changed api.Document) []api.Problem
	// Trace tells what becomes of a packet: router.Trace.
	Trace func(d api.Document, q api.TraceQuery, macs map[string]string, down map[string]bool) (api.Trace, error)
	// Admit tells what hosts have against what is new or changed in a document: an image or an interface that is missing. What
	// is there already stays admitted, whatever becomes of the host. It may take a while: nobody waits for it but who changes something.
	Admit func(ctx context.Context, d, changed api.Document) intent.Verdict
	// Node finds a host's Node; "" is the only host. nil: not reachable from here.
	Node func(host string) ask.Node
	// Fabric answers for the OpenFlow switches; nil: there are none here.
	Fabric ask.Fabric
	// NoRouter says that no router runs, whatever switches are known from before.
	NoRouter bool
	// Health, if set, must be nil for /healthz to be well.
	Health func() error
	// Host is the host whose agent runs in this process, "" if none does: nobody else can join by its name, and it is alive.
	Host string
	// AgentConfig is what all hosts have in common; the manager adds its clock and the key of link discovery.
	AgentConfig api.AgentConfig
	// Placement is the name of the strategy by which functions get their hosts; default placement.Default.
	Placement string
	// CertificateLife is how long agents' certificates are valid; default pki.AgentLife.
	CertificateLife time.Duration
	// Where tells people of other managers where this one is when it leads; default its host and process.
	Where string
	// SecretKey (32 bytes) encrypts secrets in the store, which whoever reads it could use else; nil: they are there as they are.
	SecretKey []byte
	// AuditFile is where the audit log is kept as JSON lines, beside the store; "" nowhere.
	AuditFile string
	// SecretsKey gives the text of the file with the key of users' secrets, for backups; nil or "": there is none, or it is somebody else's to keep.
	SecretsKey func() (string, error)
	// SealKey gives the key (32 bytes) of users' secrets; nil: SecretKey is it.
	SealKey func() ([]byte, error)
	// UI has the files of the web UI (package web); nil: this manager has none.
	UI fs.FS
	// Lab measures on this machine; nil: this manager has none.
	Lab labs.Lab
	// Images is the registry from which agents elsewhere fetch images that their hosts lack; nil: there is none.
	Images http.Handler
	// Stock keeps the manager's images: pulls and imports go there; nil: it keeps none.
	Stock images.Store
	// SessionsFile keeps sessions of the web UI over restarts; "": they end with this manager.
	SessionsFile string
	// TrafficEvery is how often the traffic of the last hour gets a point; default 20 s.
	TrafficEvery time.Duration
	// ID tells this manager from others of the store; it stays the same over restarts. "" is one of its own.
	ID      string
	Version string
	Log     *slog.Logger     // default none
	Now     func() time.Time // default time.Now
}

// ServeOptions say where the API is offered.
type ServeOptions = web.ServeOptions

// Manager serves the API: its parts, which share one writer. Make it with New.
type Manager struct {
	*web.API
	*lead.Leader
	Keys     *keys.Keys
	Intent   *intent.Editor
	Read     *read.Reader
	News     *news.Intake
	Ask      *ask.Asker
	Join     *join.Joiner
	Switches *switchcert.Certs
}

// New makes a manager.
func New(o Options) (*Manager, error) {
	// Options that are not given get their defaults.
	if o.Store == nil {
		return nil, errors.New("manager without a store")
	}
	if o.Validate == nil {
		o.Validate = func(_, _ api.Document) []api.Problem { return nil }
	}
	if o.Trace == nil {
		o.Trace = func(api.Document, api.TraceQuery, map[string]string, map[string]bool) (api.Trace, error) {
			return api.Trace{}, api.Refuse(http.StatusNotImplemented, "this manager has no router that could tell")
		}
	}
	if o.Admit == nil {
		o.Admit = func(context.Context, api.Document, api.Document) intent.Verdict { return intent.Verdict{} }
	}
	if o.Node == nil {
		o.Node = func(string) ask.Node { return nil }
	}
	if o.Health == nil {
		o.Health = func() error { return nil }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.CertificateLife == 0 {
		o.CertificateLife = pki.AgentLife
	}
	if o.Where == "" {
		o.Where = fmt.Sprintf("%s/%d", o.Host, os.Getpid())
	}
	strategy, err := placement.Named(o.Placement)
	if err != nil {
		return nil, err
	}
	began := o.Now() // UTC() would take the monotonic clock away, and what is compared with it could be stepped
	// Parts that others share.
	writer := &tx.Writer{Store: o.Store, Log: o.Log, Now: o.Now}
	audit := &history.Audit{Store: o.Store, Log: o.Log, Now: o.Now, File: history.File{Path: o.AuditFile}}
	ks := &keys.Keys{Store: o.Store, Now: o.Now, SecretKey: o.SecretKey, SealKey: o.SealKey}
	hosts := members.New(members.Options{Writer: writer, Began: began, Host: o.Host, ID: o.ID})
	tokens := access.New(access.Options{Store: o.Store, Log: o.Log, Now: o.Now, Began: began, Keys: ks})
	m := &Manager{Keys: ks, Switches: &switchcert.Certs{Writer: writer, Keys: ks}}
	// Parts that serve routes.
	m.Intent = &intent.Editor{
		Writer: writer, Hosts: hosts, Keys: ks, Validate: o.Validate, Admit: o.Admit,
		Strategy: strategy, Placement: o.Placement, Underlay: o.AgentConfig.Underlay, NoRouter: o.NoRouter,
	}
	m.Leader = &lead.Leader{Store: o.Store, Log: o.Log, Where: o.Where, Hosts: hosts, Intent: m.Intent}
	m.News = news.New(news.Options{Writer: writer, Host: o.Host, Resettle: m.Intent.Resettle})
	m.Read = read.New(read.Options{Store: o.Store, Now: o.Now, Hosts: hosts, Audit: audit, Version: o.Version, SecretsKey: o.SecretsKey})
	stock := images.New(images.Options{Store: o.Stock, Log: o.Log, Now: o.Now})
	m.Ask = ask.New(ask.Options{Store: o.Store, Log: o.Log, Hosts: hosts, Intent: m.Intent, Lead: m.Leader, Node: o.Node, Fabric: o.Fabric, Own: stock.Own, Trace: o.Trace, TrafficEvery: o.TrafficEvery})
	m.Join = join.New(join.Options{Writer: writer, Host: o.Host, Hosts: hosts, Keys: ks, Intent: m.Intent, AgentConfig: o.AgentConfig, CertificateLife: o.CertificateLife})
	site, err := ui.New(ui.Options{Files: o.UI, Kept: o.SessionsFile, Tokens: tokens, Log: o.Log, Now: o.Now, Version: o.Version})
	if err != nil {
		return nil, err
	}
	// The API serves the routes of all parts.
	health := func(ctx context.Context) error {
		if err := o.Health(); err != nil {
			return api.Refuse(http.StatusServiceUnavailable, err.Error())
		}
		_, err := o.Store.Count(ctx, store.Prefix(api.KindHost))
		return err
	}
	served := web.Options{Log: o.Log, Now: o.Now, Tokens: tokens, Hosts: hosts, Keys: ks, Audit: audit, Health: health, Images: o.Images, Watches: m.Read.Watches, Metrics: []prometheus.Collector{m.Ask.Metrics(writer.Events)}}
	if o.UI != nil {
		served.UI = site
	}
	m.API = web.New(served, site.Routes(),
		m.Read.Routes(), m.Intent.Routes(), m.News.Routes(), m.Ask.Routes(), m.Join.Routes(), m.Switches.Routes(), tokens.Routes(), hosts.Routes(), labs.Server{Lab: o.Lab}.Routes(), stock.Routes())
	return m, nil
}
