// Package secrets keeps the values of functions' secrets on a host, in memory only: INSTANCE.Run/secrets is a file system of its own that is not swapped
// out, where the kernel can. Each function has a directory there, with a file for each value of a secret: NAME.VERSION. A container has these files
// mounted. Their names are part of what a container is made from, so another value makes another container.
package secrets

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/instance"
)

func dirOf(i instance.Instance) string { return filepath.Join(i.Run, "secrets") }

// maxSecretsSize bounds what the secrets of a host take.
const maxSecretsSize = "size=64m"

// Fetch asks the manager for the values of a function's secrets.
type Fetch func(ctx context.Context, function string) ([]api.FunctionSecret, error)

// Store holds the secrets of an instance's functions.
type Store struct {
	instance instance.Instance
	fetch    Fetch
	mu       sync.Mutex // held while the file system is looked at or made
}

// New prepares a Store; nothing happens before the first secret is placed.
func New(i instance.Instance, f Fetch) *Store { return &Store{instance: i, fetch: f} }

func (s *Store) dir(function string) string { return filepath.Join(dirOf(s.instance), function) }

func (s *Store) mount() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir := dirOf(s.instance)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var here, above unix.Stat_t
	if err := errors.Join(unix.Stat(dir, &here), unix.Stat(filepath.Dir(dir), &above)); err != nil {
		return err
	}
	if here.Dev != above.Dev {
		return nil
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV // a user namespace could not take noexec away again, which a bind mount does
	err := unix.Mount("weir-secrets", dir, "tmpfs", flags, "mode=0700,noswap,"+maxSecretsSize)
	if errors.Is(err, unix.EINVAL) { // before kernel 6.4 tmpfs is always swapped out; ramfs never is
		err = unix.Mount("weir-secrets", dir, "ramfs", flags, "mode=0700")
	}
	if err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return nil
}

// Delete removes an instance's secrets from memory. None: nil.
func Delete(i instance.Instance) error {
	err := unix.Unmount(dirOf(i), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// Place fetches a function's secrets, unless they are there, and adds them to what its container is made from.
func (s *Store) Place(ctx context.Context, want api.Function, spec *container.Spec) error {
	dir := s.dir(want.Name)
	if len(want.Spec.Secrets) == 0 {
		return s.Remove(want.Name)
	}
	if err := s.mount(); err != nil {
		return fmt.Errorf("secrets of function %s: %w", want.Name, err)
	}
	if err := os.MkdirAll(dir, 0o711); err != nil { // only root gets so far: see Run/functions
		return fmt.Errorf("secrets of function %s: %w", want.Name, err)
	}
	var keep []string
	missing := false
	for _, text := range want.Spec.Secrets {
		name, target, err := api.ParseSecret(text)
		if err != nil {
			return err
		}
		version := want.Secrets[name]
		if version == "" {
			return fmt.Errorf("the manager names no value of secret %s", name)
		}
		file := name + "." + version
		keep = append(keep, file)
		spec.Mounts = append(spec.Mounts, container.Mount{Source: filepath.Join(dir, file), Target: target, ReadOnly: true})
		_, err = os.Stat(filepath.Join(dir, file))
		missing = missing || err != nil
	}
	if missing {
		if err := s.bring(ctx, want, dir); err != nil {
			return err
		}
	}
	there, err := os.ReadDir(dir)
	for _, e := range there { // a container that has a former one keeps it as long as it lives
		if !slices.Contains(keep, e.Name()) && !e.IsDir() {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

func (s *Store) bring(ctx context.Context, want api.Function, dir string) error {
	list, err := s.fetch(ctx, want.Name)
	if err != nil {
		return fmt.Errorf("secrets of function %s: %w", want.Name, err)
	}
	for _, x := range list {
		if api.CheckName(x.Name) != nil || strings.Contains(x.Version, "/") {
			return fmt.Errorf("secrets of function %s: the manager names one that cannot be a file", want.Name)
		}
		if want.Secrets[x.Name] != x.Version {
			return fmt.Errorf("secret %s changed meanwhile: waiting for the function's new generation", x.Name)
		}
		if err := instance.Replace(filepath.Join(dir, x.Name+"."+x.Version), x.Value, 0o400); err != nil {
			return fmt.Errorf("secret %s of function %s: %w", x.Name, want.Name, err)
		}
	}
	return nil
}

// Own gives a container that is about to be made copies of the secrets' files that are its user's, as that user is outside the sandbox.
// Those of former containers go; what is mounted stays readable for who has it.
func (s *Store) Own(function string, spec container.Spec) (container.Spec, error) {
	dir := s.dir(function)
	own := filepath.Join(dir, ownedBy+spec.ID)
	there, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return spec, nil
	}
	for _, e := range there {
		if strings.HasPrefix(e.Name(), ownedBy) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	if err = errors.Join(err, os.MkdirAll(own, 0o711)); err != nil {
		return spec, fmt.Errorf("secrets of function %s: %w", function, err)
	}
	spec.Mounts = slices.Clone(spec.Mounts)
	for i, m := range spec.Mounts {
		if filepath.Dir(m.Source) != dir {
			continue
		}
		value, err := os.ReadFile(m.Source)
		if err == nil {
			spec.Mounts[i].Source = filepath.Join(own, filepath.Base(m.Source))
			err = instance.Replace(spec.Mounts[i].Source, value, 0o400)
		}
		if err == nil {
			err = os.Chown(spec.Mounts[i].Source, int(spec.IDs.First+spec.UID), int(spec.IDs.First+spec.GID))
		}
		if err != nil {
			return spec, fmt.Errorf("secrets of function %s: %w", function, err)
		}
	}
	return spec, nil
}

// ownedBy begins the name of a container's directory; no secret is called so.
const ownedBy = "="

// Remove removes a function's secrets. None: nil.
func (s *Store) Remove(function string) error {
	dir := s.dir(function)
	if _, err := os.Lstat(dir); err != nil {
		return nil // there are none
	}
	return os.RemoveAll(dir)
}
