package ui

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/web"
)

// Bounds of links and sessions. Where there are too many, whoever has the most loses the oldest.
const (
	codeLife     = 5 * time.Minute
	sessionLife  = 12 * time.Hour
	maxEntries   = 1000
	maxOfOne     = 32
	recheckEvery = 2 * time.Second
)

// digest is by what a secret is found: the secret itself is kept nowhere.
type digest [sha256.Size]byte

func digestOf(secret string) digest { return sha256.Sum256([]byte(secret)) }

// newSecret has 256 random bits.
func newSecret() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// entry is a link that was not followed yet, or a session.
type entry struct {
	caller  web.Caller // for whom it stands
	user    string     // of this machine, whose browser it is; "" of links
	expires time.Time
	made    uint64 // order
	ctx     context.Context
	end     context.CancelFunc
}

// vault keeps entries by the digests of their secrets: in memory and, if it has a path, in a file (kept.go).
type vault struct {
	cleaned map[digest]bool // sessions whose browser has forgotten what others served here, since this process began
	path    string          // "" none
	log     *slog.Logger

	mu      sync.Mutex
	made    uint64
	changes uint64
	all     map[digest]*entry

	saving  sync.Mutex // held over the writing of the file, before mu
	saved   uint64     // changes that are in the file
	failing bool       // the last writing failed
}

func newVault(path string, log *slog.Logger) *vault {
	return &vault{path: path, log: log, all: map[digest]*entry{}}
}

// add keeps an entry and returns its secret.
func (v *vault) add(now time.Time, e entry) string {
	secret := newSecret()
	v.insert(now, digestOf(secret), e)
	_ = v.save()
	return secret
}

func (v *vault) insert(now time.Time, d digest, e entry) {
	v.mu.Lock()
	defer v.mu.Unlock()
	count := map[string]int{}
	for d, old := range v.all {
		if !now.Before(old.expires) {
			v.drop(d)
			continue
		}
		count[old.caller.Who]++
	}
	switch {
	case count[e.caller.Who] >= maxOfOne:
		v.dropOldest(e.caller.Who)
	case len(v.all) >= maxEntries:
		most := ""
		for who, n := range count {
			if n > count[most] {
				most = who
			}
		}
		v.dropOldest(most)
	}
	v.put(d, e)
}

// put keeps an entry; the caller has seen to the bounds.
func (v *vault) put(d digest, e entry) {
	v.made++
	v.changes++
	e.made = v.made
	e.ctx, e.end = context.WithCancel(context.Background())
	v.all[d] = &e
}

// drop tells whether there was one.
func (v *vault) drop(d digest) bool {
	e := v.all[d]
	if e == nil {
		return false
	}
	e.end()
	delete(v.all, d)
	delete(v.cleaned, d)
	v.changes++
	return true
}

func (v *vault) dropOldest(who string) {
	var oldest digest
	var found *entry
	for d, e := range v.all {
		if e.caller.Who == who && (found == nil || e.made < found.made) {
			oldest, found = d, e
		}
	}
	if found != nil {
		v.drop(oldest)
	}
}

// get finds what a secret is of; nil: nothing, or nothing any more.
func (v *vault) get(now time.Time, d digest) *entry {
	v.mu.Lock()
	defer v.mu.Unlock()
	e := v.all[d]
	if e != nil && !now.Before(e.expires) {
		v.drop(d)
		return nil
	}
	return e
}

// clean tells whether the browser of a session has forgotten what others served here since this process began; whoever asks has it forget now.
func (v *vault) clean(now time.Time, d digest) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	e := v.all[d]
	if e == nil || !now.Before(e.expires) {
		return false
	}
	was := v.cleaned[d]
	if v.cleaned == nil {
		v.cleaned = map[digest]bool{}
	}
	v.cleaned[d] = true
	return was
}

// take is get, and nobody gets it again.
func (v *vault) take(now time.Time, d digest) *entry {
	v.mu.Lock()
	e := v.all[d]
	v.drop(d)
	v.mu.Unlock()
	_ = v.save()
	if e == nil || !now.Before(e.expires) {
		return nil
	}
	return e
}

// remove ends entries, and writes down what has changed before. If it returns an error they have ended in this process only.
func (v *vault) remove(these ...digest) error {
	v.mu.Lock()
	for _, d := range these {
		v.drop(d)
	}
	v.mu.Unlock()
	return v.save()
}

// keep ends what does not stand any more, as remove does.
func (v *vault) keep(stands func(*entry) bool) error {
	v.mu.Lock()
	all := make(map[digest]*entry, len(v.all))
	for d, e := range v.all {
		all[d] = e
	}
	v.mu.Unlock()
	var ended []digest
	for d, e := range all {
		if !stands(e) {
			ended = append(ended, d)
		}
	}
	return v.remove(ended...)
}

// errSignIn is told whoever brings no valid session, and not why.
func errSignIn() error {
	return api.Refuse(http.StatusUnauthorized, "sign in: open the link that `weir ui` prints, or paste a token")
}
