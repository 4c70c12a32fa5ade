package agent

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

// Secrets are in memory only: INSTANCE.Run/secrets is a file system of its own that is not swapped out, where the kernel can. Each function has a
// directory there, with a file for each value of a secret: NAME.VERSION. A container has these files mounted. Their names are part of what a container is made
// from, so another value makes another container.

func secretsDir(i instance.Instance) string { return filepath.Join(i.Run, "secrets") }

// maxSecretsSize bounds what the secrets of a host take.
const maxSecretsSize = "size=64m"

// secretsMount is held while the file system is looked at or made.
type secretsMount struct{ mu sync.Mutex }

func (m *secretsMount) ensure(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
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

// DeleteSecrets removes an instance's secrets from memory. None: nil.
func DeleteSecrets(i instance.Instance) error {
	err := unix.Unmount(secretsDir(i), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// placeSecrets fetches a function's secrets, unless they are there, and adds them to what its container is made from.
func (f *function) placeSecrets(ctx context.Context, want api.Function, s *container.Spec) error {
	dir := filepath.Join(secretsDir(f.a.Instance), f.name)
	if len(want.Spec.Secrets) == 0 {
		return removeSecretsDir(dir)
	}
	if err := f.a.secrets.ensure(secretsDir(f.a.Instance)); err != nil {
		return fmt.Errorf("secrets of function %s: %w", f.name, err)
	}
	if err := os.MkdirAll(dir, 0o711); err != nil { // only root gets so far: see Run/functions
		return fmt.Errorf("secrets of function %s: %w", f.name, err)
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
		s.Mounts = append(s.Mounts, container.Mount{Source: filepath.Join(dir, file), Target: target, ReadOnly: true})
		_, err = os.Stat(filepath.Join(dir, file))
		missing = missing || err != nil
	}
	if missing {
		if err := f.fetchSecrets(ctx, want, dir); err != nil {
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

func (f *function) fetchSecrets(ctx context.Context, want api.Function, dir string) error {
	list, err := f.a.API.FunctionSecrets(ctx, f.name)
	if err != nil {
		return fmt.Errorf("secrets of function %s: %w", f.name, err)
	}
	for _, x := range list {
		if api.CheckName(x.Name) != nil || strings.Contains(x.Version, "/") {
			return fmt.Errorf("secrets of function %s: the manager names one that cannot be a file", f.name)
		}
		if want.Secrets[x.Name] != x.Version {
			return fmt.Errorf("secret %s changed meanwhile: waiting for the function's new generation", x.Name)
		}
		if err := instance.Replace(filepath.Join(dir, x.Name+"."+x.Version), x.Value, 0o400); err != nil {
			return fmt.Errorf("secret %s of function %s: %w", x.Name, f.name, err)
		}
	}
	return nil
}

// ownSecrets gives a container that is about to be made copies of the secrets' files that are its user's, as that user is outside the sandbox.
// Those of former containers go; what is mounted stays readable for who has it.
func (f *function) ownSecrets(s container.Spec) (container.Spec, error) {
	dir := filepath.Join(secretsDir(f.a.Instance), f.name)
	own := filepath.Join(dir, ownedBy+s.ID)
	there, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	for _, e := range there {
		if strings.HasPrefix(e.Name(), ownedBy) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	if err = errors.Join(err, os.MkdirAll(own, 0o711)); err != nil {
		return s, fmt.Errorf("secrets of function %s: %w", f.name, err)
	}
	s.Mounts = slices.Clone(s.Mounts)
	for i, m := range s.Mounts {
		if filepath.Dir(m.Source) != dir {
			continue
		}
		value, err := os.ReadFile(m.Source)
		if err == nil {
			s.Mounts[i].Source = filepath.Join(own, filepath.Base(m.Source))
			err = instance.Replace(s.Mounts[i].Source, value, 0o400)
		}
		if err == nil {
			err = os.Chown(s.Mounts[i].Source, int(s.IDs.First+s.UID), int(s.IDs.First+s.GID))
		}
		if err != nil {
			return s, fmt.Errorf("secrets of function %s: %w", f.name, err)
		}
	}
	return s, nil
}

// ownedBy begins the name of a container's directory; no secret is called so.
const ownedBy = "="

func removeSecretsDir(dir string) error {
	if _, err := os.Lstat(dir); err != nil {
		return nil // there are none
	}
	return os.RemoveAll(dir)
}
