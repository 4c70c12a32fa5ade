package ui

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
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

// vault keeps entries by the digests of their secrets, in memory.
type vault struct {
	mu   sync.Mutex
	made uint64
	all  map[digest]*entry
}

func newVault() *vault { return &vault{all: map[digest]*entry{}} }

// add keeps an entry and returns its secret.
func (v *vault) add(now time.Time, e entry) string {
	secret := newSecret()
	e.ctx, e.end = context.WithCancel(context.Background())
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
	v.made++
	e.made = v.made
	v.all[digestOf(secret)] = &e
	return secret
}

func (v *vault) drop(d digest) {
	if e := v.all[d]; e != nil {
		e.end()
		delete(v.all, d)
	}
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

// take is get, and nobody gets it again.
func (v *vault) take(now time.Time, d digest) *entry {
	v.mu.Lock()
	defer v.mu.Unlock()
	e := v.all[d]
	v.drop(d)
	if e == nil || !now.Before(e.expires) {
		return nil
	}
	return e
}

func (v *vault) remove(d digest) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drop(d)
}

// keep drops what does not stand any more.
func (v *vault) keep(stands func(*entry) bool) {
	v.mu.Lock()
	all := make(map[digest]*entry, len(v.all))
	for d, e := range v.all {
		all[d] = e
	}
	v.mu.Unlock()
	for d, e := range all {
		if !stands(e) {
			v.remove(d)
		}
	}
}

// errSignIn is told whoever brings no valid session, and not why.
func errSignIn() error {
	return api.Refuse(http.StatusUnauthorized, "sign in: open the link that `weir ui` prints, or paste a token")
}
