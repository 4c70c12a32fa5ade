package store_test

import (
	"os"
	"path/filepath"
	"testing"

	"weir.dev/weir/store"
	"weir.dev/weir/store/suite"
)

// shortDir is a directory whose path leaves room for Unix sockets.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func options(dir string) store.Options {
	return store.Options{Dir: filepath.Join(dir, "etcd"), SocketDir: filepath.Join(dir, "run"), Reserve: 1}
}

func open(t testing.TB, o store.Options) *store.Etcd {
	t.Helper()
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEmbeddedSuite(t *testing.T) {
	suite.Run(t, func(t *testing.T) store.Store { return open(t, options(shortDir(t))) })
}
