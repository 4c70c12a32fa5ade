package ui

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/web"
)

// open reads a file as the next process does.
func open(path string, now time.Time) (*vault, string) {
	var log bytes.Buffer
	v := newVault(path, slog.New(slog.NewTextHandler(&log, nil)))
	v.load(now)
	return v, log.String()
}

func root(now time.Time) entry {
	return entry{caller: web.Caller{Who: "user root", Role: api.RoleAdmin, From: "127.0.0.1, web UI", Session: true}, user: "user 0", expires: now.Add(sessionLife)}
}

func TestKeptSessionsAreThoseOfBefore(t *testing.T) {
	now := time.Now()
	path := filepath.Join(t.TempDir(), "sessions.json")
	v, said := open(path, now)
	e := root(now)
	e.caller.Token, e.caller.Proof = "ann", "hash"
	first, second, third := v.add(now, root(now)), v.add(now, e), v.add(now, root(now))
	if err := v.remove(digestOf(third)); err != nil {
		t.Fatal(err)
	}
	next, alsoSaid := open(path, now.Add(time.Hour))
	if said+alsoSaid != "" || len(next.all) != 2 {
		t.Fatalf("%d sessions, the log says %s%s", len(next.all), said, alsoSaid)
	}
	want := root(now).caller
	if got := next.get(now, digestOf(first)); got == nil || got.caller != want || got.user != "user 0" || !got.expires.Equal(now.Add(sessionLife)) {
		t.Errorf("session %+v", got)
	}
	e.caller.Role = "" // is looked up
	if got := next.get(now, digestOf(second)); got == nil || got.caller != e.caller || got.made < next.get(now, digestOf(first)).made {
		t.Errorf("session of a token %+v", got)
	}
	for name, at := range map[string]time.Time{"after its time": now.Add(sessionLife), "a clock that was set back": now.Add(-time.Hour)} {
		later, _ := open(path, at)
		if len(later.all) != 0 {
			t.Errorf("%s there are %d sessions", name, len(later.all))
		}
		if err := later.save(); err != nil {
			t.Error(err)
		}
		if again, _ := open(path, now); len(again.all) != 0 {
			t.Errorf("%s, and back: %d sessions", name, len(again.all))
		}
		next.changes++ // the file as it was, for the next case
		if err := next.save(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAFileThatIsNotAsWrittenIsRemovedAndSaid(t *testing.T) {
	now := time.Now()
	edit := func(change func(string) string) func(string) error {
		return func(path string) error {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, []byte(change(string(text))), 0o600)
		}
	}
	sealed := func(list string) func(string) error { // with a right checksum
		return edit(func(string) string {
			b, _ := json.Marshal(kept{Version: keptVersion, SHA256: sumOf([]byte(list)), Sessions: json.RawMessage(list)})
			return string(b)
		})
	}
	for name, damage := range map[string]func(path string) error{
		"empty":               edit(func(string) string { return "" }),
		"cut":                 edit(func(s string) string { return s[:len(s)/2] }),
		"a flipped bit":       edit(func(s string) string { return strings.Replace(s, "user 0", "user 1", 1) }),
		"more after it":       edit(func(s string) string { return s + "{}" }),
		"another version":     edit(func(s string) string { return strings.Replace(s, `"version":1`, `"version":2`, 1) }),
		"no text":             edit(func(string) string { return "\x00\xff" }),
		"too large":           edit(func(s string) string { return s + strings.Repeat(" ", maxKept) }),
		"no list":             sealed(`{"digest":"x"}`),
		"a digest that is no": sealed(`[{"digest":"00","who":"user root","role":"admin","user":"user 0","expires":"2999-01-01T00:00:00Z"}]`),
		"a role that is none": sealed(`[{"digest":"` + strings.Repeat("0", 64) + `","who":"user root","role":"king","user":"user 0","expires":"2999-01-01T00:00:00Z"}]`),
		"too many":            sealed("[" + strings.Repeat("{},", maxEntries) + "{}]"),
		"others may read it":  func(path string) error { return os.Chmod(path, 0o644) },
		"a link": func(path string) error {
			if err := os.Rename(path, path+".there"); err != nil {
				return err
			}
			return os.Symlink(path+".there", path)
		},
		"a pipe": func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return unix.Mkfifo(path, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "sessions.json")
			v, _ := open(path, now)
			v.add(now, root(now))
			if err := damage(path); err != nil {
				t.Fatal(err)
			}
			next, said := open(path, now)
			if len(next.all) != 0 || !strings.Contains(said, path) || !strings.Contains(said, "sign in again") {
				t.Errorf("%d sessions, the log says %q", len(next.all), said)
			}
			if _, err := os.Lstat(path); !os.IsNotExist(err) {
				t.Errorf("the file is still there: %v", err)
			}
			secret := next.add(now, root(now)) // it goes on
			if after, said := open(path, now); after.get(now, digestOf(secret)) == nil || said != "" {
				t.Errorf("a new session is not kept: %s", said)
			}
		})
	}
}

// Where the file cannot be written, a session that has ended must not be in the former one.
func TestAnEndedSessionIsInNoFileThatCannotBeWritten(t *testing.T) {
	now := time.Now()
	path := filepath.Join(t.TempDir(), "sessions.json")
	v, _ := open(path, now)
	ended, stays := v.add(now, root(now)), v.add(now, root(now))
	obstacle := path + ".new/in the way" // a folder where the new file is to be
	if err := os.MkdirAll(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := v.remove(digestOf(ended)); err != nil {
		t.Errorf("the file was removed, and so the session ended for good: %v", err)
	}
	if next, _ := open(path, now); len(next.all) != 0 {
		t.Errorf("%d sessions", len(next.all))
	}
	if v.get(now, digestOf(stays)) == nil {
		t.Error("the other session has ended, too")
	}
	if err := os.RemoveAll(path + ".new"); err != nil {
		t.Fatal(err)
	}
	if err := v.remove(); err != nil { // the next check
		t.Fatal(err)
	}
	if next, _ := open(path, now); len(next.all) != 1 || next.get(now, digestOf(stays)) == nil {
		t.Errorf("%d sessions, want the one that stays", len(next.all))
	}
}

// Each change is in the file when it returns, also among many.
func TestManyAtOnceAreKept(t *testing.T) {
	now := time.Now()
	path := filepath.Join(t.TempDir(), "sessions.json")
	v, _ := open(path, now)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			e := root(now)
			e.caller.Who = strconv.Itoa(i)
			for range 5 {
				ends, stays := digestOf(v.add(now, e)), digestOf(v.add(now, e))
				if err := v.remove(ends); err != nil {
					t.Error(err)
				}
				next, said := open(path, now)
				if next.all[stays] == nil || next.all[ends] != nil || said != "" {
					t.Errorf("kept: %v, still there: %v; %s", next.all[stays] != nil, next.all[ends] != nil, said)
				}
			}
		})
	}
	wg.Wait()
	if next, _ := open(path, now); len(next.all) != 40 {
		t.Errorf("%d sessions, want 40", len(next.all))
	}
}

func TestTheLargestFileIsRead(t *testing.T) {
	now := time.Now()
	path := filepath.Join(t.TempDir(), "sessions.json")
	v := newVault(path, slog.New(slog.DiscardHandler))
	for i := range maxEntries {
		e := root(now)
		name := strings.Repeat("a", 63)
		e.caller = web.Caller{Who: "token " + name, From: strings.Repeat("f", 60), Token: name, Proof: strings.Repeat("0", 64)}
		v.put(digestOf(string(rune(i))), e)
	}
	if err := v.save(); err != nil {
		t.Fatal(err)
	}
	if next, said := open(path, now); len(next.all) != maxEntries || said != "" {
		t.Errorf("%d sessions of %d: %s", len(next.all), maxEntries, said)
	}
}

func FuzzParseKept(f *testing.F) {
	now := time.Now()
	v := newVault("", slog.New(slog.DiscardHandler))
	v.put(digestOf("x"), root(now))
	text, err := v.text()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"version":1,"sha256":"","sessions":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := parseKept(text)
		if err != nil && len(list) > 0 || len(list) > maxEntries {
			t.Errorf("%d sessions, %v", len(list), err)
		}
	})
}
