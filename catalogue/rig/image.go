package rig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"weir.dev/weir/image"
	"weir.dev/weir/instance"
)

// Mounted is the root of the image whose recipe is in the folder in which the tests run; it is built with the packages in the cache, or fetched.
func Mounted(t testing.TB) (root string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("not root: this test makes network namespaces (sudo make test)")
	}
	fail := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	r, err := image.LoadRecipe(".")
	fail(err)
	inst, err := instance.New(fmt.Sprintf("%.3s%x", r.Name, os.Getpid()&0xffff), t.TempDir())
	fail(err)
	layout := filepath.Join(t.TempDir(), "layout")
	_, err = r.Build(t.Context(), layout)
	fail(err)
	s := image.Open(inst, layout)
	t.Cleanup(func() {
		fail(s.Destroy(context.Background()))
		fail(os.Remove(inst.Run))
	})
	root, err = s.Mount(t.Context(), r.Name)
	fail(err)
	return root
}

// enter makes the image's root writable where a container's is, and runs a program in it.
const enter = `root=$1 config=$2; shift 2
mount -t tmpfs -o size=16m run "$root/run" && mount -t tmpfs -o size=64m tmp "$root/tmp" && mount -t proc proc "$root/proc" && mount --bind /dev "$root/dev" && mount --bind "$config" "$root/etc/weir" &&
exec chroot "$root" "$@"`

// StartImage runs a program of an image's root in the function's namespace, with a directory as /etc/weir.
func (r *Rig) StartImage(root, etc string, argv ...string) *Process {
	r.T.Helper()
	return r.Start("unshare", append([]string{"--mount", "sh", "-c", enter, "sh", root, etc}, argv...)...)
}
