package manager

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
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
	maxAuditObject = 100 // of an apply
	maxOutline     = 10  // problems
	maxAlike       = 5_000
	alikeFor       = time.Hour // refusals that are alike are counted for so long
)

// audit is the log on its way: records go to the file at once, to the store a moment later.
type audit struct {
	mu      sync.Mutex
	queue   map[string]api.AuditRecord // by name: a count that grows replaces the record
	order   []string
	busy    chan struct{} // closed when the flush that runs is done; nil: none runs
	dropped int
	written int
	alike   map[alike]api.AuditRecord
	file    auditFile
}

// alike is what makes two refusals, or two uses of a token, one record.
type alike struct {
	who, from, verb, kind, object string
	status                        int
}

// noted is what a handler says of its request for the audit log.
type noted struct {
	who        string // of who joins: there is no caller
	kind       api.Kind
	object     string
	generation int64
	objects    []string
	idle       bool             // nothing was changed: there is nothing to record, unless it was refused
	began      func(status int) // of streams: writes the record at their beginning
}

type notedKey struct{}

// note is where a handler says what it does; there is always one.
func note(r *http.Request) *noted {
	if n, ok := r.Context().Value(notedKey{}).(*noted); ok {
		return n
	}
	return &noted{}
}

func sourceOf(who string) string {
	sum := sha256.Sum256([]byte(who))
	return hex.EncodeToString(sum[:4])
}

// auditRequest records what became of a request.
func (m *Manager) auditRequest(r *http.Request, rt route, n *noted, status int, err error) {
	c := callerOf(r)
	kind := cmp.Or(n.kind, rt.kind)
	rec := api.AuditRecord{Who: cmp.Or(n.who, c.who), Role: c.role, From: c.from, Verb: rt.verb(r), Kind: kind,
		Object: cmp.Or(n.object, r.PathValue("name")), Generation: n.generation, Objects: n.objects, Status: status}
	if err != nil {
		p := problemOf(err)
		rec.Status, rec.Problem = p.Status, outline(p)
	}
	m.audit.tell(m, rec, rec.Status == http.StatusUnauthorized || rec.Status == http.StatusForbidden || rec.Status == http.StatusTooManyRequests)
}

// outline says what is wrong and where, without the values that were sent: they may be secret.
func outline(p *api.ProblemError) string {
	text := cmp.Or(p.Detail, p.Title)
	var at []string
	for _, x := range p.Problems[:min(len(p.Problems), maxOutline)] {
		at = append(at, x.Path)
	}
	if len(at) > 0 {
		text += ": " + strings.Join(at, ", ")
	}
	return text
}

// tell writes a record. Refusals are counted with those that are alike: as their number reaches 2, 4, 8 ... the record says so.
func (a *audit) tell(m *Manager, rec api.AuditRecord, count bool) {
	now := m.Now().UTC()
	for _, s := range []*string{&rec.Who, &rec.From, &rec.Verb, &rec.Object} {
		*s = strict.Clip(*s, maxWord)
	}
	rec.Problem = strict.Clip(rec.Problem, 2*maxWord)
	rec.Time = now
	rec.Meta = api.Meta{Name: timeName(now) + "." + sourceOf(rec.Who), Created: now}
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
	if err := a.file.write(rec); err != nil {
		m.Log.Error("audit log", "file", a.file.path, "error", err)
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
		go a.flush(m, a.busy)
	}
}

// flush writes the queue to the store until it is empty.
func (a *audit) flush(m *Manager, done chan struct{}) {
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
			m.Log.Warn("audit log: the store is slow: some records are in the file only", "records", dropped)
		}
		ctx, cancel := context.WithTimeout(context.Background(), auditTimeout)
		_, err := m.Store.Txn(ctx, nil, ops)
		if err == nil && trim {
			err = m.trimAudit(ctx)
		}
		cancel()
		if err != nil && !errors.Is(err, store.ErrStopped) {
			m.Log.Warn("audit log: some records are in the file only", "records", len(ops), "error", err)
		}
	}
}

// settled waits until what was told is in the store.
func (a *audit) settled(ctx context.Context) {
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

// trimAudit makes room.
func (m *Manager) trimAudit(ctx context.Context) error {
	items, _, err := m.Store.List(ctx, store.Prefix(api.KindAudit), store.ListOptions{KeysOnly: true})
	if err != nil {
		return err
	}
	keys := make([]string, len(items))
	for i := range items {
		keys[i] = items[i].Key
	}
	return m.forgetKeys(ctx, excess(keys, maxAudit-auditTrimEvery))
}

// forgetKeys removes keys, so many at once.
func (m *Manager) forgetKeys(ctx context.Context, gone []string) error {
	for len(gone) > 0 {
		n := min(len(gone), forgetAtOnce)
		var ops []store.Op
		for _, key := range gone[:n] {
			ops = append(ops, store.Op{Key: key})
		}
		if _, err := m.Store.Txn(ctx, nil, ops); err != nil {
			return err
		}
		gone = gone[n:]
	}
	return nil
}

// excess are the keys, sorted by time, that go so that at most so many stay: the oldest of the source that has the most, again and again.
func excess(keys []string, limit int) (gone []string) {
	by := map[string][]string{}
	for _, key := range keys {
		source := "" // events of former versions have none
		if parts := strings.SplitN(key, ".", 3); len(parts) == 3 {
			source = parts[2]
		}
		by[source] = append(by[source], key)
	}
	shares := make([]int, 0, len(by))
	for _, list := range by {
		shares = append(shares, len(list))
	}
	slices.Sort(shares)
	left, share := limit, 0
	for i, n := range shares { // the largest share that fits, when small ones leave theirs
		if share = left / (len(shares) - i); n > share {
			break
		}
		left -= n
		share = n
	}
	for _, source := range slices.Sorted(maps.Keys(by)) {
		if list := by[source]; len(list) > share {
			gone = append(gone, list[:len(list)-share]...)
		}
	}
	return gone
}

// auditNoun is the audit log as lists and watches see it.
var auditNoun = noun{kind: api.KindAudit, object: api.AuditRecord{}}

// audits lists the audit log, or watches it.
func (m *Manager) audits(w http.ResponseWriter, r *http.Request) error {
	m.audit.settled(r.Context())
	return m.list(auditNoun, w, r)
}

// verb is what the audit log calls a request.
func (rt route) verb(r *http.Request) string {
	if rt.does != "" {
		return rt.does
	}
	return strings.ToLower(r.Method)
}

// applied notes what an apply changed.
func (n *noted) applied(changes []api.Change) {
	for _, c := range changes {
		if c.Action == "unchanged" {
			continue
		}
		if len(n.objects) == maxAuditObject {
			n.objects = append(n.objects, "...")
			return
		}
		n.objects = append(n.objects, fmt.Sprintf("%s %s/%s", c.Action, c.Kind, c.Name))
	}
}
