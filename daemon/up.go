package daemon

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/daemon/config"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/ask"
	stocked "weir.dev/weir/manager/images"
	"weir.dev/weir/manager/labs"
	"weir.dev/weir/router"
	"weir.dev/weir/store"
)

// UpOptions say how the daemon runs.
type UpOptions struct {
	Instance instance.Instance
	config.Manager
	Host    config.Host
	Version string
	Log     *slog.Logger
	Ready   func() // called once the API answers and the manager has heard of this host, but for the latter at most knownWithin is waited
	served  func() // called once the API answers
	Drivers Drivers
	Site    fs.FS // files of the web UI; nil: there is none
	Lab     Lab   // nil: nothing is measured here
}

// Lab measures on this machine. Run is called once; when its ctx ends, so does what is measured.
type Lab interface {
	labs.Lab
	Run(ctx context.Context)
}

// Up runs store, manager and, if this machine is a host, its agent until ctx ends. What they made goes on forwarding then.
func Up(ctx context.Context, o UpOptions) (err error) {
	// Check rights; take the instance, so that no second process runs it.
	if err := o.checkRights(); err != nil {
		return fmt.Errorf("weir up: %w", err)
	}
	c, err := take(o.Instance)
	if err != nil {
		return err
	}
	defer c.release()
	// Notify systemd; remove everything again if a first start fails.
	isUp := false
	notify := newNotifier()
	o.served = func() { isUp = true }
	o.Ready = both(func() { notify.ready(o.Log) }, o.Ready)
	defer notify.stopping()
	defer func() {
		if err != nil && !isUp && c.fresh(o.Instance) {
			err = errors.Join(err, c.neverWas(ctx, o.Instance, o.Drivers))
		}
	}()
	// Restore a backup before anything reads the state.
	if err := o.restore(ctx); err != nil {
		return err
	}
	client, err := api.Dial(api.Options{Socket: o.Instance.Socket()})
	if err != nil {
		return err
	}
	defer client.Close()
	// Open this host: runtime, switch and agent.
	var h *host
	fresh := false
	if !o.NoAgent {
		if fresh, err = settle(o.Instance); err != nil {
			return err
		}
		host := agentOptions(o.Host)
		host.Instance, host.Version, host.API, host.Log = o.Instance, o.Version, client, o.Log
		if h, err = openHost(ctx, host, o.Drivers); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, h.close()) }()
	}
	// Open the store and make the manager.
	key, err := secretKey(o.SecretKey)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFile, err)
	}
	st, err := store.Open(ctx, store.Options{
		Dir: o.storeDir(), SocketDir: o.Instance.Run, Endpoints: o.Etcd, CA: o.EtcdCA, Cert: o.EtcdCert, KeyFile: o.EtcdKey, Log: o.Log, Remedy: o.remedy,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	r := &fabric{o: o, client: client}
	m, err := newManager(ctx, o, key, st, h, r)
	if err != nil {
		return err
	}
	if err := o.finishRestore(ctx, m); err != nil {
		return err
	}
	if fresh { // what a status tells was true before the reboot
		if err := m.News.ForgetStatus(ctx); err != nil {
			return err
		}
	}
	// Start the watchdog, end if the store fails, save snapshots regularly.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go notify.watch(ctx, o.Log, func(ctx context.Context) error {
		if h != nil {
			if err := h.agent.Stalled(); err != nil {
				return err
			}
		}
		err := client.Health(ctx)
		if errors.Is(err, api.ErrBusy) {
			return nil // the store is away or cannot be written: a restart would mend nothing, and nobody would heal functions meanwhile
		}
		return err
	})
	go func() {
		select {
		case <-st.Failed():
			cancel(fmt.Errorf("%w: %w", errStoreFailed, st.Failure()))
		case <-ctx.Done():
		}
	}()
	saves := saver{dir: filepath.Join(o.Instance.Root, snapshotDir), m: m, log: o.Log, now: time.Now}
	if len(o.Etcd) == 0 {
		saving := saves.start(ctx)
		defer func() {
			cancel(nil)
			<-saving
			if isUp {
				saves.save(context.Background())
			}
		}()
	}
	// Serve the API and run router and agent until ctx ends.
	err = serve(ctx, o, m, h, r, client)
	if cause := context.Cause(ctx); errors.Is(cause, errStoreFailed) {
		err = errors.Join(cause, err)
	}
	return err
}

func (o UpOptions) checkRights() error {
	if o.NoAgent {
		return nil // it makes directories and a socket only
	}
	return checkRights()
}

func both(first, then func()) func() {
	return func() {
		first()
		if then != nil {
			then()
		}
	}
}

func newManager(ctx context.Context, o UpOptions, key []byte, st *store.Etcd, h *host, r *fabric) (*manager.Manager, error) {
	a := &admission{own: h}
	own := ""
	var images http.Handler
	var keeps stocked.Store
	switch {
	case h != nil:
		own, images, keeps = h.name, h.images.Handler(""), stock{h.images}
	case o.Agents != "":
		kept := o.Drivers.Images(o.Instance)
		images, keeps = kept.Handler(""), stock{kept}
	}
	var measures labs.Lab
	if o.Lab != nil { // not a nil of one interface in another
		measures = o.Lab
	}
	m, err := manager.New(manager.Options{
		Lab:   measures,
		Store: st, ID: managerID(o.Instance), Where: o.where(), SecretKey: key, Version: o.Version, Log: o.Log, Host: own, AgentConfig: api.AgentConfig{Underlay: o.Underlay, TagFirst: flow.TagFirst, TagLast: flow.TagLast}, CertificateLife: o.CertificateLife,
		UI: o.Site, Images: images, Stock: keeps, SessionsFile: o.Instance.SessionsFile(), Placement: o.Placement, Fabric: r, NoRouter: !r.wanted(), AuditFile: o.Instance.AuditFile(), SealKey: o.sealKey(key), SecretsKey: o.secretsKey, Health: st.Writable,
		Validate: router.ValidateChange,
		Trace:    router.Trace,
		Admit:    a.admit,
		Node: func(name string) ask.Node {
			if h == nil || name != "" && name != own {
				return nil
			}
			return h.agent
		},
	})
	a.manager = m
	return m, err
}

// minSecret is how many characters a file for --secret-key has at least.
const minSecret = 32

// secretKey makes a key out of a file of random characters.
func secretKey(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("--secret-key: %w: make it on one machine (openssl rand -hex 32), and copy it to all managers of this state", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("--secret-key: %s has mode %04o: others may have read it: make a new one with mode 0600", path, info.Mode().Perm())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--secret-key: %w", err)
	}
	if b = bytes.TrimSpace(b); len(b) < minSecret {
		return nil, fmt.Errorf("--secret-key: %s holds %d characters: want at least %d random ones (openssl rand -hex 32)", path, len(b), minSecret)
	}
	sum := sha256.Sum256(append([]byte("weir secrets 1\x00"), b...))
	return sum[:], nil
}

// sealKey is the key of users' secrets: that of --secret-key, or, where the state is this manager's alone, one in a file that the first secret makes.
func (o UpOptions) sealKey(key []byte) func() ([]byte, error) {
	if key != nil || len(o.Etcd) > 0 {
		return nil
	}
	return sync.OnceValues(func() ([]byte, error) {
		path := o.secretsFile()
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			var b [32]byte
			_, _ = rand.Read(b[:]) // never fails
			if err := instance.WriteFile(path, []byte(hex.EncodeToString(b[:])+"\n")); err != nil {
				return nil, fmt.Errorf("key of secrets: %w", err)
			}
		}
		return secretKey(path)
	})
}

// where is this manager, in words for people elsewhere.
func (o UpOptions) where() string {
	name, err := os.Hostname()
	if err != nil {
		name = "unknown"
	}
	text := fmt.Sprintf("machine %s, instance %s, process %d", name, o.Instance.Name, os.Getpid())
	if o.Agents != "" {
		text += ", agents at " + o.Agents
	}
	return text
}

// managerID tells the managers of a store apart: by machine and state directory.
func managerID(i instance.Instance) string {
	machine, err := os.ReadFile("/etc/machine-id")
	if err != nil || len(machine) == 0 {
		name, _ := os.Hostname() // not known: the directory alone
		machine = []byte(name)
	}
	sum := sha256.Sum256(append(machine, i.Root...))
	return hex.EncodeToString(sum[:6])
}

// errStoreFailed ends the daemon: etcd cannot be opened again in the same process. Traffic goes on; starting again is safe.
var errStoreFailed = errors.New("weir cannot go on without its state")

// knownWithin bounds how long the daemon waits, before it reports that it is ready, for the manager to hear of its host.
const knownWithin = 2 * time.Second

// awaitKnown waits until the manager has heard of this host, so that whoever applies something next finds a host to place it on. It returns false when
// ctx ends first.
func awaitKnown(ctx context.Context, known <-chan struct{}, log *slog.Logger) bool {
	late := time.NewTimer(knownWithin)
	defer late.Stop()
	select {
	case <-known:
	case <-late.C:
		log.Warn("ready, but the manager has not heard of this host yet: what is applied now waits for a host", "waited", knownWithin)
	case <-ctx.Done():
		return false
	}
	return true
}

// serve runs manager and agent side by side; the agent ends first, so that its last reports arrive.
func serve(ctx context.Context, o UpOptions, m *manager.Manager, h *host, r *fabric, client *api.Client) error {
	if err := r.check(); err != nil {
		return err
	}
	server, err := m.Listen(manager.ServeOptions{
		Socket: o.Instance.Socket(), Listen: o.Listen, TokenFile: o.Instance.TokenFile(), Agents: o.Agents, UI: o.UI, UIMoves: o.UIMoves,
	})
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var served error
	wg.Go(func() {
		defer cancel()
		served = server.Serve(serving)
	})
	o.served() // connections wait in the listeners' queues from here on: what is written now must stay
	var ran, led error
	var own sync.WaitGroup // what ends before the API does
	own.Go(func() { led = m.Lead(ctx, func(ctx context.Context) { r.run(ctx, m) }) })
	own.Go(func() { m.Ask.RememberTraffic(ctx) })
	if o.Lab != nil {
		own.Go(func() { o.Lab.Run(ctx) })
	}
	if h == nil {
		o.Ready()
		<-ctx.Done()
	} else {
		own.Go(func() {
			if awaitKnown(ctx, h.agent.HostKnown(), o.Log) {
				o.Ready()
			}
		})
		own.Go(func() {
			pulse{client: client, host: h.name, now: time.Now, changed: func(_, now error) { o.Log.Debug("beat", "error", now) }, clock: func(time.Time) {}}.run(ctx)
		})
		ran = h.agent.Run(ctx)
	}
	cancel()
	own.Wait()
	stop()
	wg.Wait()
	return errors.Join(served, ran, led)
}
