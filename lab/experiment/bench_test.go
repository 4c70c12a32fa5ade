package experiment

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"weir.dev/weir/instance"
)

// A Weir of the user's may have a name that a run of the lab could have, too: it is no leftover, and no run takes it.
func TestInstancesOfTheUserAreNoLeftovers(t *testing.T) {
	end, err := guard(t.Context()) // nobody sweeps meanwhile
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
		b := &Bench{Name: name}
		if ok, err := b.take(); ok || err != nil {
			t.Errorf("a run takes the name %s, which the user's %s has: %t, %v", name, i.Name, ok, err)
		}
		if err := b.letGo(); err != nil {
			t.Error(err)
		}
	}
}

// Whoever waits for another run's sweep can be interrupted.
func TestWaitingForASweepEndsWithItsContext(t *testing.T) {
	end, err := guard(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := guard(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
