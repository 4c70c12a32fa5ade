package history

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"encoding/json"
	"fmt"
	"io/fs"
	"os"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/strict"
	"weir.dev/weir/store"
)

// Bounds of the audit log in the store. When it is full, whoever has the most records there loses the oldest: nobody drives others' out.
const (
	maxAudit       = 10_000
	auditTrimEvery = 200   // records
	maxAuditQueue  = 2_000 // on their way to the store; the file has all
	auditBatch     = 100   // in a transaction
	auditTimeout   = 10 * time.Second
	maxAlike       = 5_000
	alikeFor       = time.Hour // refusals that are alike are counted for so long
)

// Audit is the log on its way: records go to the file at once, to the store a moment later.
type Audit struct {
	Store store.Store
	Log   *slog.Logger
	Now   func() time.Time
	File  File

	mu      sync.Mutex
	queue   map[string]api.AuditRecord // by name: a count that grows replaces the record
	order   []string
	busy    chan struct{} // closed when the flush that runs is done; nil: none runs
	dropped int
	written int
	alike   map[alike]api.AuditRecord
}

// alike is what makes two refusals, or two uses of a token, one record.
type alike struct {
	who, from, verb, kind, object string
	status                        int
}

func sourceOf(who string) string {
	sum := sha256.Sum256([]byte(who))
	return hex.EncodeToString(sum[:4])
}

// Tell writes a record. Refusals are counted with those that are alike: as their number reaches 2, 4, 8 ... the record says so.
func (a *Audit) Tell(rec api.AuditRecord, count bool) {
	now := a.Now().UTC()
	for _, s := range []*string{&rec.Who, &rec.From, &rec.Verb, &rec.Object} {
		*s = strict.Clip(*s, maxWord)
	}
	rec.Problem = strict.Clip(rec.Problem, 2*maxWord)
	rec.Time = now
	rec.Meta = api.Meta{Name: object.TimeName(now) + "." + sourceOf(rec.Who), Created: now}
	a.mu.Lock()
	defer a.mu.Unlock()
	if count {
		key := alike{rec.Who, rec.From, rec.Verb, string(rec.Kind), rec.Object, rec.Status}
		old, known := a.alike[key]
		if known && now.Sub(old.Time) < alikeFor && !now.Before(old.Time) {
			old.Count, old.Last = max(old.Count, 1)+1, now
			a.alike[key] = old
			if old.Count&(old.Count-1) != 0 {
				return
			}
			rec = old
		} else {
			if a.alike == nil || len(a.alike) >= maxAlike {
				a.alike = map[alike]api.AuditRecord{}
			}
			a.alike[key] = rec
		}
	}
	if err := a.File.write(rec); err != nil {
		a.Log.Error("audit log", "file", a.File.Path, "error", err)
	}
	if _, waiting := a.queue[rec.Name]; !waiting {
		if len(a.queue) >= maxAuditQueue {
			a.dropped++
			return
		}
		a.order = append(a.order, rec.Name)
	}
	if a.queue == nil {
		a.queue = map[string]api.AuditRecord{}
	}
	a.queue[rec.Name] = rec
	if a.busy == nil {
		a.busy = make(chan struct{})
		go a.flush(a.busy)
	}
}

// flush writes the queue to the store until it is empty.
func (a *Audit) flush(done chan struct{}) {
	defer close(done)
	for {
		a.mu.Lock()
		var ops []store.Op
		n := min(len(a.order), auditBatch)
		for _, name := range a.order[:n] {
			rec := a.queue[name]
			delete(a.queue, name)
			ops = append(ops, store.Put(api.KindAudit, &rec))
		}
		a.order = slices.Delete(a.order, 0, n)
		if len(ops) == 0 {
			a.busy = nil
			a.mu.Unlock()
			return
		}
		dropped, trim := a.dropped, false
		a.dropped = 0
		if a.written += len(ops); a.written >= auditTrimEvery {
			a.written, trim = 0, true
		}
		a.mu.Unlock()
		if dropped > 0 {
			a.Log.Warn("audit log: the store is slow: some records are in the file only", "records", dropped)
		}
		ctx, cancel := context.WithTimeout(context.Background(), auditTimeout)
		_, err := a.Store.Txn(ctx, nil, ops)
		if err == nil && trim {
			err = Trim(ctx, a.Store, api.KindAudit, maxAudit-auditTrimEvery, maxAudit-auditTrimEvery)
		}
		cancel()
		if err != nil && !errors.Is(err, store.ErrStopped) {
			a.Log.Warn("audit log: some records are in the file only", "records", len(ops), "error", err)
		}
	}
}

// Settled waits until what was told is in the store.
func (a *Audit) Settled(ctx context.Context) {
	a.mu.Lock()
	busy := a.busy
	a.mu.Unlock()
	if busy == nil {
		return
	}
	select {
	case <-busy:
	case <-ctx.Done():
	}
}

// Bounds of the audit log's files: PATH, PATH.1 and so on, the oldest last.
const (
	auditFileSize  = 16 << 20
	auditFileCount = 5
)

// File is the audit log as JSON lines, mode 0600. It is used under audit.mu.
type File struct {
	Path string // "" none
	f    *os.File
	size int64
}

func (a *File) write(rec api.AuditRecord) error {
	if a.Path == "" {
		return nil
	}
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if a.f != nil && a.size+int64(len(b)) > auditFileSize {
		if err := a.rotate(); err != nil {
			return err
		}
	}
	if a.f == nil {
		if err := a.open(); err != nil {
			return err
		}
	}
	n, err := a.f.Write(b) // in one call: a line is whole, or cut by a full disk
	a.size += int64(n)
	return err
}

func (a *File) open() error {
	f, err := os.OpenFile(a.Path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = f.Chmod(0o600)
	}
	if err == nil && info.Size() > 0 { // a line that a crash or a full disk cut ends here
		var last [1]byte
		if _, e := f.ReadAt(last[:], info.Size()-1); e == nil && last[0] != '\n' {
			_, err = f.Write([]byte("\n"))
		}
	}
	if err != nil {
		f.Close()
		return err
	}
	a.f, a.size = f, info.Size()
	return nil
}

// rotate gives the file a number; the oldest goes.
func (a *File) rotate() error {
	a.close()
	for n := auditFileCount - 1; n > 0; n-- {
		from := a.Path
		if n > 1 {
			from = fmt.Sprintf("%s.%d", a.Path, n-1)
		}
		if err := os.Rename(from, fmt.Sprintf("%s.%d", a.Path, n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (a *File) close() {
	if a.f != nil {
		a.f.Close()
		a.f = nil
	}
}
