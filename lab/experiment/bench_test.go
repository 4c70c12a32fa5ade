package experiment

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/instance"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/netns"
)

// A Weir of the user's may have a name that a run of the lab could have, too: it is no leftover, and no run takes it.
func TestInstancesOfTheUserAreNoLeftovers(t *testing.T) {
	end, err := platform.Guard(t.Context()) // nobody sweeps meanwhile
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	for _, suffix := range []string{"", "-e"} {
		var id [2]byte
		_, _ = rand.Read(id[:]) // never fails
		name := "lab-" + hex.EncodeToString(id[:])
		i, err := instance.New(name+suffix, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{i.Run, i.Root} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			})
		}
		left := func() bool {
			names, err := Leftovers()
			if err != nil {
				t.Fatal(err)
			}
			return slices.Contains(names, name)
		}
		if !left() {
			t.Errorf("%s: without a daemon's lock it is a leftover", i.Name)
		}
		if err := os.WriteFile(filepath.Join(i.Root, instance.LockFile), nil, 0o600); err != nil { // all that a reboot leaves
			t.Fatal(err)
		}
		if left() {
			t.Errorf("%s is the user's, and the next run would remove it", i.Name)
		}
		c, ok, err := platform.Take(name)
		if ok || err != nil {
			t.Errorf("a run takes the name %s, which the user's %s has: %t, %v", name, i.Name, ok, err)
		}
		if err := c.LetGo(); err != nil {
			t.Error(err)
		}
	}
}

// What a killed test of platforms has left goes as what a killed run has: its namespaces and directories. What a test that goes on has made stays, and so
// does that of one that has no claim, unless it is old.
func TestWhatKilledTestsLeaveIsSwept(t *testing.T) {
	end, err := platform.Guard(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	made := map[string]instance.Instance{}
	claims := map[string]*platform.Claim{}
	for _, which := range []string{"killed", "going on", "young", "old"} {
		var id [2]byte
		_, _ = rand.Read(id[:]) // never fails
		name := ofTests + hex.EncodeToString(id[:])
		c, ok, err := platform.Take(name)
		if !ok || err != nil {
			t.Fatalf("take %s: %t, %v", name, ok, err)
		}
		i, err := instance.New(name+"-0", "")
		if err != nil {
			t.Fatal(err)
		}
		made[which], claims[which] = i, c
		t.Cleanup(func() {
			if err := errors.Join(platform.Remove(context.WithoutCancel(t.Context()), name), os.RemoveAll(filepath.Join(platform.Run, name)), os.RemoveAll(filepath.Join(platform.State, name))); err != nil {
				t.Error(err)
			}
		})
		if err := errors.Join(os.MkdirAll(i.NetnsDir(), 0o755), netns.Create(filepath.Join(i.NetnsDir(), "left"), netns.Options{}), os.MkdirAll(i.Root, 0o700),
			os.WriteFile(filepath.Join(i.Run, "hugepages"), []byte("{}"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	name := func(which string) string { return strings.TrimSuffix(made[which].Name, "-0") }
	long := time.Now().Add(-2 * testEnds)
	if err := errors.Join(claims["killed"].Leave(), claims["young"].LetGo(), claims["old"].LetGo(), os.Chtimes(made["old"].Run, long, long), os.Chtimes(made["old"].Root, long, long)); err != nil {
		t.Fatal(err)
	}
	names, err := Leftovers()
	if err != nil {
		t.Fatal(err)
	}
	if err := remove(t.Context(), slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return !strings.HasPrefix(n, ofTests) || n != name("killed") && n != name("old") && n != name("young") && n != name("going on")
	})); err != nil {
		t.Error(err)
	}
	for which, want := range map[string]bool{"killed": false, "old": false, "young": true, "going on": true} {
		if slices.Contains(names, name(which)) == want {
			t.Errorf("%s: it is a leftover: %t", which, !want)
		}
		for _, path := range []string{made[which].Run, filepath.Join(made[which].NetnsDir(), "left"), made[which].Root} {
			if _, err := os.Lstat(path); (err == nil) != want {
				t.Errorf("%s: %s: %v, want it there: %t", which, path, err, want)
			}
		}
	}
	if _, err := os.Lstat(filepath.Join(platform.Run, name("killed"))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the claim of the killed one is there: %v", err)
	}
	if err := claims["going on"].LetGo(); err != nil {
		t.Error(err)
	}
}

// Whoever waits for another run's sweep can be interrupted.
func TestWaitingForASweepEndsWithItsContext(t *testing.T) {
	end, err := platform.Guard(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := platform.Guard(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
