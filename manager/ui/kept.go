package ui

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/instance"
	"weir.dev/weir/manager/web"
)

// maxKept bounds the file of sessions, in bytes: maxEntries are below 512 KiB.
const maxKept = 1 << 20

// kept is the file of sessions. They are this machine's: a cookie counts at loopback, for a user of this kernel. So they are not in the store.
type kept struct {
	Version  int             `json:"version"`
	SHA256   string          `json:"sha256"` // of Sessions as they stand here
	Sessions json.RawMessage `json:"sessions"`
}

const keptVersion = 1

// keptSession is a session in the file: the digest of its cookie, and for whom it stands. There is no role of a token: it is looked up at each request.
type keptSession struct {
	Digest  string    `json:"digest"`
	Who     string    `json:"who"`
	Role    api.Role  `json:"role,omitempty"`  // without a token: of the user of the Unix socket
	Token   string    `json:"token,omitempty"` // name
	Proof   string    `json:"proof,omitempty"` // the token's hash: a later token of this name is another
	From    string    `json:"from"`
	User    string    `json:"user"`
	Expires time.Time `json:"expires"`
}

// save writes the sessions as they are, whole or not at all, unless that was done since the last change. Where the file cannot be written it is removed:
// it may hold a session that has ended. An error says that such a file is left. The log has the first failure of several.
func (v *vault) save() error {
	if v.path == "" {
		return nil
	}
	v.mu.Lock()
	wanted := v.changes
	v.mu.Unlock()
	v.saving.Lock()
	defer v.saving.Unlock()
	if v.saved >= wanted {
		return nil
	}
	v.mu.Lock()
	changes := v.changes
	text, err := v.text()
	v.mu.Unlock()
	if err == nil {
		err = instance.WriteFile(v.path, text)
	}
	if err == nil {
		v.saved, v.failing = changes, false
		return nil
	}
	left := os.Remove(v.path)
	if errors.Is(left, fs.ErrNotExist) {
		left = nil
	}
	if left != nil {
		left = fmt.Errorf("the session has ended, but would count again after a restart: remove %s: %w", v.path, left)
	}
	if !v.failing {
		v.log.Warn("the web UI's sessions cannot be written, and will not outlive this process", "file", v.path, "error", errors.Join(err, left))
	}
	v.failing = true
	return left
}

// text is the file's; the caller holds the lock.
func (v *vault) text() ([]byte, error) {
	list := make([]keptSession, 0, len(v.all))
	for _, d := range v.inOrder() {
		e := v.all[d]
		k := keptSession{Digest: hex.EncodeToString(d[:]), Who: e.caller.Who, Token: e.caller.Token, Proof: e.caller.Proof, From: e.caller.From, User: e.user, Expires: e.expires.UTC()}
		if k.Token == "" {
			k.Role = e.caller.Role
		}
		list = append(list, k)
	}
	sessions, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(kept{Version: keptVersion, SHA256: sumOf(sessions), Sessions: sessions})
	return append(text, '\n'), err
}

func sumOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func (v *vault) inOrder() []digest {
	out := make([]digest, 0, len(v.all))
	for d := range v.all {
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b digest) int { return cmp.Compare(v.all[a].made, v.all[b].made) })
	return out
}

// load reads the sessions that a former process kept. A file that is damaged, or that others could have written, is removed: then everybody signs in again.
func (v *vault) load(now time.Time) {
	if v.path == "" {
		return
	}
	list, err := readKept(v.path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		err = errors.Join(err, os.Remove(v.path))
		v.log.Warn("the web UI's sessions of before are not used: sign in again", "file", v.path, "error", err)
		return
	}
	for _, k := range list {
		left := k.Expires.Sub(now)
		if left <= 0 || left > sessionLife { // it has ended, or the clock was set back by more than its age
			v.changes++
			continue
		}
		var d digest
		_, _ = hex.Decode(d[:], []byte(k.Digest)) // readKept has checked it
		c := web.Caller{Who: k.Who, Role: k.Role, From: k.From, Token: k.Token, Proof: k.Proof, Session: true}
		v.put(d, entry{caller: c, user: k.User, expires: now.Add(left)}) // by the monotonic clock from here on
	}
	if len(v.all) == len(list) { // the file is as it should be
		v.saved = v.changes
	}
}

func readKept(path string) ([]keptSession, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, errors.New("it is no file")
	case int(st.Uid) != os.Geteuid(), st.Mode&0o077 != 0:
		return nil, fmt.Errorf("user %d owns it, its mode is %04o: others may have written it", st.Uid, st.Mode&0o7777)
	case st.Size > maxKept:
		return nil, fmt.Errorf("it has %d bytes: Weir writes %d at most", st.Size, maxKept)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKept))
	if err != nil {
		return nil, err
	}
	return parseKept(text)
}

func parseKept(text []byte) ([]keptSession, error) {
	var k kept
	if err := json.Unmarshal(text, &k); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	if k.Version != keptVersion {
		return nil, fmt.Errorf("it is of another version of Weir (%d)", k.Version)
	}
	if sumOf(k.Sessions) != k.SHA256 {
		return nil, errors.New("it is damaged: its checksum is another")
	}
	var list []keptSession
	if err := json.Unmarshal(k.Sessions, &list); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	if len(list) > maxEntries {
		return nil, fmt.Errorf("it has %d sessions: Weir writes %d at most", len(list), maxEntries)
	}
	for i, s := range list {
		d, err := hex.DecodeString(s.Digest)
		if err != nil || len(d) != len(digest{}) || s.User == "" || s.Token == "" && !slices.Contains(api.Roles(), s.Role) {
			return nil, fmt.Errorf("it is damaged: session %d is none", i+1)
		}
	}
	return list, nil
}
