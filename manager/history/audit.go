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
			op, err := store.Put(api.KindAudit, &rec)
			if err == nil {
				ops = append(ops, op)
			}
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
