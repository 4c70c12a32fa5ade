package store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	callTimeout = 15 * time.Second // of a call whose context has no deadline
	awayTimeout = 8 * time.Second  // of a call to an external cluster, which gives up itself after 7 s
	dialTimeout = 5 * time.Second  // until an external cluster has to answer
)

const defaultPrefix = "/weir/v1/"

// limits are the embedded etcd's, as flags for members of an external cluster.
var limits = fmt.Sprintf("--max-txn-ops=%d --max-request-bytes=%d", maxTxnOps, maxRequestBytes)

// Options say where etcd is. Either Dir and SocketDir are set (etcd runs inside this process) or Endpoints are.
type Options struct {
	Dir       string // durable state of the embedded etcd, made with mode 0700
	SocketDir string // its Unix sockets come into a folder etcd here; on a path short enough for them (107 bytes)
	Reserve   int64  // writes are refused when the disk has fewer bytes free; default 64 MiB, negative none
	Quota     int64  // writes are refused that the database would grow beyond it by, in bytes; default 1 GiB

	Endpoints         []string // of an external cluster: https://host:2379
	CA, Cert, KeyFile string   // PEM files for https

	Remedy func() string // says how a store that is damaged is restored; default "restore it from a backup"

	Prefix string       // of all keys; default /weir/v1/
	Log    *slog.Logger // for etcd's warnings and errors; default none
}

// Etcd is a Store over etcd. Make it with Open.
type Etcd struct {
	client   *clientv3.Client
	prefix   string
	embedded *embedded // nil: an external cluster
	shared   shared
	close    func() error

	reclaiming  sync.Mutex
	reclaimNext time.Time // not before
}

var _ Store = (*Etcd)(nil)

// Open starts the embedded etcd or connects to an external one, and waits until it answers.
func Open(ctx context.Context, o Options) (*Etcd, error) {
	if o.Prefix == "" {
		o.Prefix = defaultPrefix
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if len(o.Endpoints) > 0 {
		return external(ctx, o)
	}
	if o.Dir == "" || o.SocketDir == "" {
		return nil, errors.New("open store: neither a state directory nor etcd endpoints given")
	}
	e, err := startEmbedded(ctx, o)
	if err != nil {
		return nil, err
	}
	s, err := connect(o, []string{e.endpoint}, nil)
	if err != nil {
		e.stop()
		return nil, err
	}
	s.embedded = e
	_, err = s.Count(ctx, "none")
	if err == nil {
		err = s.endOldLeases(ctx)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("open store in %s: %w", o.Dir, err)
	}
	return s, nil
}

func external(ctx context.Context, o Options) (*Etcd, error) {
	conf, err := tlsConfig(o)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPEM, err)
	}
	s, err := connect(o, o.Endpoints, conf)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if _, err := s.Count(ctx, "none"); err != nil {
		s.Close()
		return nil, fmt.Errorf("connect to etcd at %s: %w: check the address, the TLS files, and that the cluster has a leader", strings.Join(o.Endpoints, ","), err)
	}
	if err := s.probeLimits(ctx); errors.Is(err, ErrTooLarge) {
		o.Log.Warn("larger files and reports will be refused", "error", err)
	}
	return s, nil
}

// What a cluster should take at once: a file of some thousand policies, the report of a host with some hundred functions.
const (
	probeOps   = 10_000
	probeBytes = 4 << 20
)

// probeLimits asks for a transaction of that size whose condition no cluster meets and that would only read: only its size matters.
func (s *Etcd) probeLimits(ctx context.Context) error {
	never := clientv3.Compare(clientv3.Version(s.prefix), "<", 0)
	ops := make([]clientv3.Op, probeOps)
	for i := range ops {
		ops[i] = clientv3.OpGet(s.prefix+"none/"+strings.Repeat("-", probeBytes/probeOps), clientv3.WithCountOnly())
	}
	if _, err := s.client.Txn(ctx).If(never).Then(ops...).Commit(); err != nil {
		return fmt.Errorf("a transaction of %d operations, %d MiB: %w", probeOps, probeBytes>>20, s.fault(ctx, err))
	}
	return nil
}

func connect(o Options, endpoints []string, conf *tls.Config) (*Etcd, error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints:          endpoints,
		TLS:                conf,
		Logger:             zap.NewNop(),
		MaxCallSendMsgSize: maxRequestBytes + 1<<20,
		DialTimeout:        dialTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(endpoints, ","), err)
	}
	s := &Etcd{client: c, prefix: o.Prefix}
	s.shared.s = s
	s.close = sync.OnceValue(s.shut)
	return s, nil
}

// ErrPEM is about a file of Options that cannot be read, or has no certificate or key.
var ErrPEM = errors.New("unusable PEM file")

func tlsConfig(o Options) (*tls.Config, error) {
	if o.CA == "" && o.Cert == "" && o.KeyFile == "" {
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CA != "" {
		pem, err := os.ReadFile(o.CA)
		if err != nil {
			return nil, fmt.Errorf("etcd's CA: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("etcd's CA: %s holds no PEM certificate", o.CA)
		}
	}
	if o.Cert != "" || o.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(o.Cert, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("etcd's client certificate: %w", err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}

// Failed is closed when the embedded etcd had to stop by itself; Failure says why. The process should end then.
func (s *Etcd) Failed() <-chan struct{} {
	if s.embedded == nil {
		return nil
	}
	return s.embedded.fault.ctx.Done()
}

// Failure says why the embedded etcd had to stop; nil: it has not.
func (s *Etcd) Failure() error {
	if s.embedded == nil {
		return nil
	}
	return s.embedded.fault.get()
}

// Writable refuses when the embedded etcd's folder cannot be written.
func (s *Etcd) Writable() error {
	if s.embedded == nil {
		return nil
	}
	return s.embedded.writable()
}

// Close implements Store. Closing again does nothing.
func (s *Etcd) Close() error { return s.close() }

func (s *Etcd) shut() error {
	err := s.client.Close()
	if errors.Is(err, context.Canceled) { // the client reports its own end
		err = nil
	}
	if s.embedded != nil {
		err = errors.Join(err, s.embedded.stop())
	}
	return err
}

// begin bounds a call and ends it when the embedded server fails.
func (s *Etcd) begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if s.client.Ctx().Err() != nil {
		return nil, nil, ErrStopped
	}
	if s.embedded == nil {
		ctx, cancel := context.WithTimeout(ctx, awayTimeout)
		return ctx, cancel, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	if err := s.embedded.fault.get(); err != nil {
		cancel()
		return nil, nil, err
	}
	stop := context.AfterFunc(s.embedded.fault.ctx, cancel)
	return ctx, func() { stop(); cancel() }, nil
}

// fault turns etcd's errors into the package's.
func (s *Etcd) fault(ctx context.Context, err error) error {
	if s.embedded != nil {
		if f := s.embedded.fault.get(); f != nil {
			return f
		}
	}
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w: etcd's database has reached its quota: delete objects that are no longer needed", ErrFull)
	case errors.Is(err, rpctypes.ErrTooManyOps), errors.Is(err, rpctypes.ErrRequestTooLarge), status.Code(err) == codes.ResourceExhausted:
		return fmt.Errorf("%w: %w: nothing was changed; apply in smaller parts, or start each member of etcd with %s", ErrTooLarge, err, limits)
	case errors.Is(err, rpctypes.ErrCompacted), errors.Is(err, rpctypes.ErrFutureRev):
		return fmt.Errorf("%w: list again, and watch from the revision of that list", ErrCompacted)
	case s.embedded == nil && s.client.Ctx().Err() == nil && away(err):
		return fmt.Errorf("%w: etcd at %s has lost its quorum or cannot be reached (%w): start its members again; what is in force stays meanwhile",
			ErrAway, strings.Join(s.client.Endpoints(), ","), err)
	case errors.Is(err, clientv3.ErrNoAvailableEndpoints), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("etcd does not answer: %w", err)
	case s.client.Ctx().Err() != nil && ctx.Err() == nil:
		return ErrStopped
	}
	return err
}

// away tells errors of a cluster without a leader, or out of reach.
func away(err error) bool {
	code := status.Code(err)
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		code = e.Code()
	}
	return code == codes.Unavailable || code == codes.DeadlineExceeded || errors.Is(err, clientv3.ErrNoAvailableEndpoints) || errors.Is(err, context.DeadlineExceeded)
}

// open takes a value that was read out of its checksum. One that is damaged is nobody's to act upon: the store has to be restored.
func (s *Etcd) open(key string, stored []byte) ([]byte, error) {
	value, err := unseal(key, stored)
	if err == nil {
		return value, nil
	}
	if s.embedded != nil {
		return nil, s.embedded.explain(fmt.Errorf("%s: %w", s.embedded.tree(), err))
	}
	return nil, fmt.Errorf("%w: %w: in etcd at %s: restore etcd from a backup, or delete the key %s there and apply your file again: traffic goes on meanwhile",
		ErrDamaged, err, strings.Join(s.client.Endpoints(), ","), s.prefix+key)
}

// Get implements Store.
func (s *Etcd) Get(ctx context.Context, key string) (Item, error) {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return Item{}, err
	}
	defer cancel()
	r, err := s.client.Get(ctx, s.prefix+key)
	if err != nil {
		return Item{}, fmt.Errorf("read %s: %w", key, s.fault(ctx, err))
	}
	if len(r.Kvs) == 0 {
		return Item{}, fmt.Errorf("%s: %w", key, ErrNotFound)
	}
	value, err := s.open(key, r.Kvs[0].Value)
	return Item{Key: key, Value: value, Revision: r.Kvs[0].ModRevision}, err
}

// List implements Store.
func (s *Etcd) List(ctx context.Context, prefix string, o ListOptions) ([]Item, int64, error) {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer cancel()
	opts := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithLimit(int64(o.Limit))}
	if o.KeysOnly {
		opts = append(opts, clientv3.WithKeysOnly())
	}
	r, err := s.client.Get(ctx, s.prefix+prefix, opts...)
	if err != nil {
		return nil, 0, fmt.Errorf("list %s: %w", prefix, s.fault(ctx, err))
	}
	out := make([]Item, len(r.Kvs))
	for n, kv := range r.Kvs {
		out[n] = Item{Key: strings.TrimPrefix(string(kv.Key), s.prefix), Revision: kv.ModRevision}
		if o.KeysOnly {
			continue
		}
		if out[n].Value, err = s.open(out[n].Key, kv.Value); err != nil {
			return nil, 0, err
		}
	}
	return out, r.Header.Revision, nil
}

// Count implements Store.
func (s *Etcd) Count(ctx context.Context, prefix string) (int, error) {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer cancel()
	r, err := s.client.Get(ctx, s.prefix+prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("count %s: %w", prefix, s.fault(ctx, err))
	}
	return int(r.Count), nil
}

// Txn implements Store.
func (s *Etcd) Txn(ctx context.Context, conds []Cond, ops []Op) (int64, error) {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer cancel()
	done, err := s.admit(ctx, ops)
	if err != nil {
		return 0, err
	}
	defer done()
	var cmps []clientv3.Cmp
	var do, look []clientv3.Op
	for _, c := range conds {
		key := s.prefix + c.Key
		if c.Revision == 0 {
			cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision(key), "=", 0))
		} else {
			cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(key), "=", c.Revision))
		}
		look = append(look, clientv3.OpGet(key, clientv3.WithKeysOnly()))
	}
	for _, op := range ops {
		if op.Value == nil {
			do = append(do, clientv3.OpDelete(s.prefix+op.Key))
		} else {
			do = append(do, clientv3.OpPut(s.prefix+op.Key, seal(op.Key, op.Value)))
		}
	}
	r, err := s.client.Txn(ctx).If(cmps...).Then(do...).Else(look...).Commit()
	if err != nil {
		if errors.Is(err, rpctypes.ErrNoSpace) {
			s.reclaim(ctx) // for the next one: etcd may have done this one
		}
		return 0, fmt.Errorf("transaction of %d operations: %w", len(ops), s.fault(ctx, err))
	}
	if r.Succeeded {
		return r.Header.Revision, nil
	}
	for n, c := range conds {
		var have int64
		if kvs := r.Responses[n].GetResponseRange().Kvs; len(kvs) > 0 {
			have = kvs[0].ModRevision
		}
		if have != c.Revision {
			return 0, &ConflictError{Key: c.Key, Want: c.Revision, Have: have}
		}
	}
	return 0, fmt.Errorf("transaction of %d operations: %w", len(ops), ErrConflict)
}

// admit refuses a transaction that the disk or the quota has no room for. Removals are let through: they are how room is made.
// done is called when the transaction has been answered.
func (s *Etcd) admit(ctx context.Context, ops []Op) (done func(), err error) {
	if s.embedded == nil {
		return func() {}, nil
	}
	var bytes int64
	for _, op := range ops {
		if op.Value != nil {
			bytes += int64(len(s.prefix)+len(op.Key)+len(op.Value)+trailerLen) + opOverhead
		}
	}
	if err := s.embedded.writable(); err != nil {
		return nil, err
	}
	done = func() { s.embedded.answered(bytes) }
	if bytes == 0 {
		return done, nil
	}
	if err := s.embedded.room(); err != nil {
		return nil, err
	}
	err = s.embedded.take(bytes)
	if err != nil && s.reclaim(ctx) {
		err = s.embedded.take(bytes)
	}
	return done, err
}

// reclaim makes room in an embedded etcd that is near its quota: history is forgotten, free pages are given back, an alarm is
// cleared. It tells whether it is worth trying again. At most a tenth of the time goes into it.
func (s *Etcd) reclaim(ctx context.Context) bool {
	if s.embedded == nil {
		return false
	}
	s.reclaiming.Lock()
	defer s.reclaiming.Unlock()
	began := time.Now()
	if began.Before(s.reclaimNext) {
		return false
	}
	defer func() { s.reclaimNext = time.Now().Add(10 * time.Since(began)) }()
	r, err := s.client.Get(ctx, s.prefix, clientv3.WithCountOnly())
	if err != nil || s.Compact(ctx, r.Header.Revision) != nil {
		return false
	}
	if _, err := s.client.Defragment(ctx, s.client.Endpoints()[0]); err != nil {
		return false
	}
	_, err = s.client.AlarmDisarm(ctx, &clientv3.AlarmMember{}) // all; one that still holds is raised again by the next write
	return err == nil
}

// Compact implements Store.
func (s *Etcd) Compact(ctx context.Context, revision int64) error {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	if s.embedded != nil {
		if err := s.embedded.writable(); err != nil {
			return err
		}
	}
	_, err = s.client.Compact(ctx, revision, clientv3.WithCompactPhysical())
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("compact at revision %d: %w", revision, s.fault(ctx, err))
	}
	return nil
}
