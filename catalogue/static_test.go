package catalogue_test

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"weir.dev/weir/catalogue/rig"
	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/native"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
)

// TestStaticImagesAreSmallAndStart: each image without Debian packages has at most 20 MB unpacked. How long its container takes to create and start is logged:
// 50 ms are wanted, but a busy machine is no reason to fail.
func TestStaticImagesAreSmallAndStart(t *testing.T) {
	const (
		most  = 20_000_000
		times = 11
	)
	w := worldOf(t, func(ctx context.Context, inst instance.Instance) (*kernel.Runtime, error) {
		return native.New(ctx, inst, kernel.Options{Adopt: true})
	})
	folders, err := image.FindRecipes(".")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, folder := range folders {
		r, err := image.LoadRecipe(folder)
		if err != nil {
			t.Fatal(err)
		}
		if r.Debian() {
			continue
		}
		seen++
		t.Run(r.Name, func(t *testing.T) {
			img, err := w.images.Resolve(r.Name)
			if err != nil {
				t.Fatal(err)
			}
			root, err := w.images.Mount(t.Context(), r.Name)
			if err != nil {
				t.Fatal(err)
			}
			size := sizeOf(t, root)
			if size == 0 || size > most {
				t.Errorf("%d bytes unpacked: want 1 to %d", size, most)
			}
			ports := rig.New(t, img.Contract.Tap)
			took := make([]time.Duration, times)
			for i := range took {
				s := container.Spec{
					ID: fmt.Sprintf("%s-%d", r.Name, i), Rootfs: root, ReadOnly: true, Args: img.Args, Env: img.Env, Netns: ports.Netns, Capabilities: img.Contract.Capabilities,
				}
				begin := time.Now()
				if err := w.runtime.Create(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				if err := w.runtime.Start(t.Context(), s.ID); err != nil {
					t.Fatal(err)
				}
				took[i] = time.Since(begin)
				if err := w.runtime.Stop(t.Context(), s.ID, 10*time.Second); err != nil {
					t.Fatal(err)
				}
				if err := w.runtime.Delete(t.Context(), s.ID); err != nil {
					t.Fatal(err)
				}
			}
			slices.Sort(took)
			t.Logf("%.1f MB unpacked; created and started in %s, at most %s (%d times)", float64(size)/1e6, took[times/2].Round(10*time.Microsecond), took[times-1].Round(10*time.Microsecond), times)
			if took[times/2] > time.Second {
				t.Errorf("created and started in %s (median): 50 ms are wanted", took[times/2])
			}
		})
	}
	if seen < 10 {
		t.Errorf("%d static images in the catalogue: the test looks in the wrong place", seen)
	}
}

// sizeOf the files below a directory, in bytes.
func sizeOf(t *testing.T, dir string) (sum int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			sum += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}
