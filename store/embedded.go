package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

const (
	maxTxnOps       = 200_000
	maxRequestBytes = 64 << 20
	walSegment      = 4 << 20 // etcd's own 64 MiB are preallocated twice
	defaultReserve  = 64 << 20
	defaultQuota    = 1 << 30
	quotaMargin     = 4 * maxRequestBytes // etcd's own quota is this much higher, see take
	opOverhead      = 512                 // bytes that etcd needs beside a key and its value
	startTimeout    = 60 * time.Second    // replaying a long log on a slow disk
	history         = 10 * time.Minute    // from where watches can resume
	compactEvery    = time.Minute
	abandonTimeout  = 5 * time.Second
	tick            = 150 * time.Millisecond // a lone member waits 1 to 6 ticks before it elects itself
	electionTicks   = 5
)

// embedded is an etcd server of one member inside this process.
type embedded struct {
	dir       string
	endpoint  string
	reserve   int64
	allocated int64 // size of the tree's file when it had all of its blocks
	lock      *os.File
	server    *embed.Etcd
	fault     *fault
	budget    budget
	keeper    *keeper // of commits
	remedy    func() string

	dirty     chan struct{} // something was written
	stopping  chan struct{}
	committed chan struct{} // closed when commits has ended
}

// budget keeps the database below its quota.
type budget struct {
	mu    sync.Mutex
	quota int64
	taken int64 // bytes that were let in and that the database's size may not show yet
	done  int64 // those of them whose transaction has been answered
}

// fault remembers why the embedded server had to stop.
type fault struct {
	ctx context.Context // ends at the first
	set context.CancelCauseFunc
}

func newFault() *fault {
	ctx, set := context.WithCancelCause(context.Background())
	return &fault{ctx, set}
}

func (f *fault) get() error { return context.Cause(f.ctx) }

// walSize sets etcd's package variable, which it reads when it opens a log: once, before the first is opened.
var walSize = sync.OnceFunc(func() { wal.SegmentSizeBytes = walSegment })

func startEmbedded(ctx context.Context, o Options) (*embedded, error) {
	walSize()
	e := &embedded{dir: o.Dir, reserve: o.Reserve, remedy: o.Remedy, fault: newFault(),
		budget: budget{quota: cmp.Or(o.Quota, defaultQuota)},
		dirty:  make(chan struct{}, 1), stopping: make(chan struct{}), committed: make(chan struct{})}
	if e.reserve == 0 {
		e.reserve = defaultReserve
	}
	sockets := filepath.Join(o.SocketDir, "etcd")
	for _, dir := range []string{o.Dir, sockets} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("open store: %w", diskError(dir, err))
		}
		if err := os.Chmod(dir, 0o700); err != nil && !errors.Is(err, syscall.EROFS) { // the lock says it better
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	e.lock = lock
	client := filepath.Join(sockets, "client")
	if len(client) > 107 {
		e.unlock()
		return nil, fmt.Errorf("open store: socket path %s has %d bytes: want at most 107, use a shorter run directory", client, len(client))
	}
	e.endpoint = "unix://" + client
	last, err := e.inspect(o.Prefix)
	if err == nil {
		e.server, err = e.launch(ctx, e.config(o, client))
	}
	if err == nil {
		if err = e.begin(ctx, o.Prefix, last); err != nil {
			e.abandon(e.server)
		}
	}
	if err != nil {
		e.unlock()
		return nil, fmt.Errorf("open store in %s: %w", o.Dir, err)
	}
	e.allocate()
	go e.commits()
	return e, nil
}

// begin checks what a server that has come up holds, and marks the directory as used.
func (e *embedded) begin(ctx context.Context, prefix string, last *digest) (err error) {
	defer e.guard(&err)
	if err := e.keep(ctx, prefix, last); err != nil {
		return e.explain(err)
	}
	_ = os.Remove(filepath.Join(e.dir, damagedFile)) // it was put right
	return e.mark()
}

// guard turns a panic over a damaged page, also one that its disk does not give, into an error.
func (e *embedded) guard(err *error) {
	if p := recover(); p != nil {
		e.fault.set(fmt.Errorf("%w: %w", ErrStopped, e.explain(fmt.Errorf("%s: %v", e.tree(), p))))
		*err = e.fault.get()
	}
}

// commits moves what was written from the log into the tree at once, while the room that was found for it is there: etcd
// would do it some time later, and has to stop if the disk has become full meanwhile.
func (e *embedded) commits() {
	defer close(e.committed) // also when etcd ends this goroutine, see stopHook
	tick := time.NewTicker(compactEvery)
	defer tick.Stop()
	var former []int64 // revisions, one for each tick
	for {
		select {
		case <-e.stopping:
			return
		case <-e.fault.ctx.Done():
			return
		case <-tick.C:
			former = e.compact(append(former, e.server.Server.KV().Rev()))
		case <-e.dirty:
			e.budget.mu.Lock()
			done := e.budget.done
			e.budget.done = 0
			e.budget.mu.Unlock()
			if e.commit() != nil {
				return
			}
			e.budget.mu.Lock()
			e.budget.taken -= done
			e.budget.mu.Unlock()
		}
	}
}

// compact forgets the revisions that are older than the history that is kept. Etcd's own compactor would write to a file system that is read-only, and stop.
func (e *embedded) compact(former []int64) []int64 {
	if len(former) <= int(history/compactEvery) {
		return former
	}
	if e.writable() != nil {
		return former[1:]
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	_, _ = e.server.Server.Compact(ctx, &etcdserverpb.CompactionRequest{Revision: former[0]}) // was it done already, or not possible: the next one does it
	return former[1:]
}

// commit writes the log into the tree, and then what the tree holds into the digest.
func (e *embedded) commit() (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer e.guard(&err)
	backend := e.server.Server.Backend()
	backend.ForceCommit()
	e.allocate()
	e.keeper.follow()
	index, _ := schema.ReadConsistentIndex(backend.ReadTx())
	_ = e.keeper.write(index) // a disk that refuses leaves the former digest, which is true, too
	return nil
}

// allocate gives the tree's file all of its blocks while there is room. It is made longer than what is in it, by 16 MiB at a time: pages without
// blocks could not be written on a disk that has become full, not even to replace others.
func (e *embedded) allocate() {
	f, err := os.OpenFile(e.tree(), os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == e.allocated || e.room() != nil {
		return
	}
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, info.Size()); err == nil || errors.Is(err, syscall.EOPNOTSUPP) {
		e.allocated = info.Size()
	}
}

// tree is etcd's database.
func (e *embedded) tree() string { return filepath.Join(e.dir, "member", "snap", "db") }

// take sets bytes aside for a transaction, or refuses it before etcd sees it: etcd looks at its quota once more after a
// transaction, and then answers that there is no space though it has done it. So it never gets near its own.
func (e *embedded) take(bytes int64) error {
	b := &e.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	size := e.server.Server.Backend().Size() + b.taken
	if size+bytes > b.quota {
		return fmt.Errorf("%w: the database has %d KiB, with this it would exceed its quota of %d KiB: nothing was changed; delete objects that are no longer needed and try again",
			ErrFull, size>>10, b.quota>>10)
	}
	b.taken += bytes
	return nil
}

// answered tells that a transaction for which bytes were set aside has ended.
func (e *embedded) answered(bytes int64) {
	e.budget.mu.Lock()
	e.budget.done += bytes
	e.budget.mu.Unlock()
	select {
	case e.dirty <- struct{}{}:
	default: // it will be seen
	}
}

// marker is a file that says that the first start came to its end.
const marker = "weir-store-1"

// inspect tells a first start that was interrupted, of which nothing is worth keeping, from a directory that has lost its log,
// over which etcd would wait for ever.
// Else it reads the tree through, and returns what the digest says of it.
func (e *embedded) inspect(prefix string) (*digest, error) {
	log := e.log()
	files, err := os.ReadDir(log)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, e.explain(err)
	}
	files = slices.DeleteFunc(files, func(f os.DirEntry) bool { return filepath.Ext(f.Name()) != ".wal" })
	_, err = os.Stat(filepath.Join(e.dir, marker))
	began := err == nil
	switch {
	case len(files) == 0 && began:
		return nil, e.explain(fmt.Errorf("no log in %s", log))
	case len(files) == 0 || !began && committedNothing(log):
		return nil, errors.Join(os.RemoveAll(filepath.Join(e.dir, "member")), os.RemoveAll(filepath.Join(e.dir, digestFile)))
	}
	last, err := readDigest(e.dir)
	if err != nil {
		return nil, err
	}
	t, err := checkTree(e.tree(), prefix)
	if err != nil {
		return nil, e.explain(err)
	}
	if t == nil {
		return last, nil
	}
	if last != nil && t.index < last.Index {
		return nil, e.explain(fmt.Errorf("%w: %s has reached entry %d of the log, and had reached entry %d", errLost, e.tree(), t.index, last.Index))
	}
	if end, err := logEnd(log); err != nil {
		return nil, e.explain(fmt.Errorf("%s: %w", log, err))
	} else if t.index > end {
		return nil, e.explain(fmt.Errorf("%w: %s has reached entry %d of the log in %s, which ends at entry %d", errLost, e.tree(), t.index, log, end))
	}
	return last, nil
}

// log is the folder of etcd's log.
func (e *embedded) log() string { return filepath.Join(e.dir, "member", "wal") }

// logEnd returns the index of the last entry of a log.
func logEnd(dir string) (end uint64, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errLost, p)
		}
	}()
	from, err := wal.ValidSnapshotEntries(zap.NewNop(), dir)
	if err != nil {
		return 0, err
	}
	last := &walpb.Snapshot{}
	if len(from) > 0 {
		last = from[len(from)-1]
	}
	w, err := wal.OpenForRead(nil, dir, last)
	if err != nil {
		return 0, err
	}
	_, _, entries, err := w.ReadAll() // closes the files
	if err != nil {
		return 0, err
	}
	if len(entries) > 0 {
		return entries[len(entries)-1].GetIndex(), nil
	}
	return last.GetIndex(), nil
}

// committedNothing tells a log that a start had made and not yet written to: etcd finds no member in it that could lead, and waits for ever.
func committedNothing(dir string) bool {
	w, err := wal.OpenForRead(nil, dir, &walpb.Snapshot{})
	if err != nil {
		return false
	}
	_, state, _, err := w.ReadAll() // closes the files
	return err == nil && state.GetCommit() == 0
}

func (e *embedded) mark() error {
	path := filepath.Join(e.dir, marker)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	err := os.WriteFile(path, []byte("etcd's files, kept by weir\n"), 0o600)
	if err != nil {
		e.abandon(e.server)
	}
	return diskError(e.dir, err)
}

// abandon ends a server that may be unable to end.
func (e *embedded) abandon(server *embed.Etcd) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		server.Close()
	}()
	select {
	case <-ended:
	case <-time.After(abandonTimeout):
	}
}

func (e *embedded) config(o Options, client string) *embed.Config {
	c := embed.NewConfig()
	c.Name = "weir"
	c.Dir = o.Dir
	c.ListenClientUrls = []url.URL{{Scheme: "unix", Path: client}}
	c.AdvertiseClientUrls = c.ListenClientUrls
	// A lone member has no peers, and whoever reached a peer listener could write the store by a raft message without a word of who it is. Etcd also
	// listens at a Unix peer URL's host, not its path: without a host on an abstract socket, which has no permissions. The address is only a name.
	c.ListenPeerUrls = nil
	c.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Path: filepath.Join(filepath.Dir(client), "peer")}}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.TickMs = uint(tick / time.Millisecond)
	c.ElectionMs = c.TickMs * electionTicks
	c.MaxTxnOps = maxTxnOps
	c.MaxRequestBytes = maxRequestBytes
	c.QuotaBackendBytes = e.budget.quota + quotaMargin
	c.AutoCompactionRetention = "0" // see compact
	c.SnapshotCount = 2000
	c.SnapshotCatchUpEntries = 500
	c.MaxSnapFiles, c.MaxWalFiles = 2, 2
	c.BackendBatchInterval = 5 * time.Second // see commits
	c.WatchProgressNotifyInterval = time.Minute
	c.CompactHashCheckTime = time.Hour
	c.EnableGRPCGateway = false
	c.GRPCAdditionalServerOptions = e.guards()
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(etcdLogger(o.Log, e.fault))
	return c
}

// guards turn a panic over a damaged page into an error of the request that has read it, and of the store.
func (e *embedded) guards() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (_ any, err error) {
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			defer e.guard(&err)
			return handle(ctx, r)
		}),
		grpc.ChainStreamInterceptor(func(server any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			defer e.guard(&err)
			return handle(server, s)
		}),
	}
}

// launch starts the server. Etcd ends the process, or panics, over a directory that it cannot read: here both become errors.
func (e *embedded) launch(ctx context.Context, c *embed.Config) (*embed.Etcd, error) {
	type result struct {
		server *embed.Etcd
		err    error
	}
	done := make(chan result, 1)
	go func() {
		r := result{err: errAborted}
		defer func() {
			if p := recover(); p != nil {
				r.err = fmt.Errorf("%w: %v", errAborted, p)
			}
			done <- r
		}()
		r.server, r.err = embed.StartEtcd(c)
	}()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var r result
	select {
	case r = <-done:
	case <-e.fault.ctx.Done():
		r.err = errAborted
	case <-ctx.Done():
		return nil, fmt.Errorf("etcd did not start within %v: %w", startTimeout, ctx.Err())
	}
	if r.err != nil {
		return nil, e.explain(r.err)
	}
	select {
	case <-r.server.Server.ReadyNotify():
		return r.server, nil
	case err := <-r.server.Err():
		e.abandon(r.server)
		return nil, e.explain(err)
	case <-e.fault.ctx.Done():
		return nil, e.explain(errAborted)
	case <-ctx.Done():
		e.abandon(r.server)
		return nil, fmt.Errorf("etcd was not ready within %v: %w", startTimeout, ctx.Err())
	}
}

var errAborted = errors.New("etcd gave up")

// ofTheMachine is an error of the machine, which the state is not to blame for, or nil. etcd gives some as text alone.
func ofTheMachine(err error) error {
	is := func(all ...syscall.Errno) bool {
		return slices.ContainsFunc(all, func(why syscall.Errno) bool { return errors.Is(err, why) || strings.Contains(err.Error(), why.Error()) })
	}
	switch {
	case is(syscall.EMFILE, syscall.ENFILE), strings.Contains(err.Error(), fewDescriptors):
		return fmt.Errorf("%w: raise the limit of open files (LimitNOFILE= of the unit, ulimit -n of a shell) to 1024 or more and start again: nothing is lost", err)
	case is(syscall.EACCES, syscall.EPERM, syscall.EADDRINUSE, syscall.ENOMEM), errors.Is(err, os.ErrPermission):
		return err
	}
	return nil
}

// fewDescriptors is in what etcd gives up with where it may open almost no files.
const fewDescriptors = "file descriptor limit"

// explain says what a start that went wrong means and what to do.
func (e *embedded) explain(err error) error {
	if f := e.fault.get(); f != nil {
		err = f
	}
	if errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), syscall.ENOSPC.Error()) {
		return diskError(e.dir, syscall.ENOSPC)
	}
	if other := ofTheMachine(err); other != nil {
		return other
	}
	if !strings.Contains(err.Error(), e.dir) {
		err = fmt.Errorf("%w (the log in %s, or the database %s)", err, e.log(), e.tree())
	}
	_ = os.WriteFile(filepath.Join(e.dir, damagedFile), []byte(err.Error()+"\n"), 0o600) // Restore may replace it without further ado
	remedy := "restore it from a backup"
	if e.remedy != nil {
		remedy = e.remedy()
	}
	return fmt.Errorf("%w: %w: %s, or move it away (mv %s %s.bad), start again and apply your file again: traffic goes on meanwhile",
		ErrDamaged, err, remedy, e.dir, e.dir)
}

// diskError names the directory whose disk is full.
func diskError(dir string, err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: the disk of %s is full: free some space and try again", ErrFull, dir)
	}
	return err
}

// writable refuses when the folder's file system has become read-only, by an error of its disk or somebody's hand: etcd itself would have to stop. No flag of
// the file system tells in every case, only a write does.
func (e *embedded) writable() error {
	if _, err := e.lock.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0); err != nil && !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: %s: nothing was changed; make the folder writable again (see dmesg: a disk's errors make its file system read-only, then repair it and start weir again): traffic goes on meanwhile",
			ErrReadOnly, readOnly(e.dir, err))
	}
	return nil
}

// readOnly names the folder, and not the file in it.
func readOnly(dir string, err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return fmt.Errorf("%s: %w", dir, err)
}

// room refuses when the disk has less free than the reserve, so that etcd itself never meets a full disk: it would have to stop.
func (e *embedded) room() error {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(e.dir, &fs); err != nil {
		return fmt.Errorf("state directory %s: %w", e.dir, err)
	}
	free := int64(fs.Bavail) * fs.Bsize
	if free < e.reserve {
		return fmt.Errorf("%w: the disk of %s has %d MiB free, %d MiB are needed: nothing was changed; free some space and try again",
			ErrFull, e.dir, free>>20, e.reserve>>20)
	}
	return nil
}

// stop ends the server. One that failed cannot be stopped in good order: its goroutines may hold locks.
func (e *embedded) stop() error {
	close(e.stopping)
	select {
	case <-e.committed:
	case <-e.fault.ctx.Done():
	}
	if e.fault.get() == nil && e.commit() == nil {
		e.server.Close()
	}
	if e.keeper != nil {
		_ = e.keeper.file.Close()
	}
	return e.unlock()
}

// lockDir takes the directory for this process. The kernel lets go of the lock when the process ends, however it ends.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		if errors.Is(err, syscall.EROFS) {
			return nil, fmt.Errorf("open store: %w: %w: make the folder writable, or give another --root", ErrReadOnly, readOnly(dir, err))
		}
		return nil, fmt.Errorf("open store: %w", diskError(dir, err))
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		pid, _ := io.ReadAll(io.LimitReader(f, 32))
		f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		return nil, fmt.Errorf("%w: %s is held by process %s: is weir up already? stop it with `weir down`, or use another --root",
			ErrLocked, dir, strings.TrimSpace(string(pid)))
	}
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid()) // only for the message above
	}
	runtime.KeepAlive(f)
	return f, nil
}

// unlock lets go also where a child that is just being started still has the descriptor.
func (e *embedded) unlock() error {
	return errors.Join(syscall.Flock(int(e.lock.Fd()), syscall.LOCK_UN), e.lock.Close())
}
