package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/api/backup"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/instance"
)

func (a *app) backupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Save the whole state into a file, secrets included",
		Long: `Save the whole state at one moment into a new file, with a checksum: endpoints, functions, chains, policies, hosts, tokens, secrets, the authority of
hosts' certificates, events. Whoever reads the file can do what an admin can, so its mode is 0600. Images, logs and the key of --secret-key are not in it.
"weir up --restore FILE" restores the state. The command needs the role admin.`,
		Example: `  weir backup weir.backup
  weir backup weir.backup -o json`,
		Args: command.WantArgs(1, 1, "the file to write"),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			path := args[0]
			if _, err := os.Lstat(path); err == nil {
				return command.WithCode(command.ExitConflict, fmt.Errorf("%s exists: give another name, or remove it first", path))
			}
			in, err := c.Backup(ctx)
			if err != nil {
				return err
			}
			defer in.Close()
			h, err := saveBackup(in, path)
			if err != nil {
				return err
			}
			if a.Structured() {
				return a.Encode(map[string]any{"file": path, "revision": h.Revision, "values": h.Values, "made": h.Made, "version": h.Version})
			}
			_, err = fmt.Fprintf(a.Stdout, "%s has the state at revision %d: %d values, secrets and tokens among them; its mode is 0600\n", path, h.Revision, h.Values)
			return err
		}),
	}
}

// saveBackup writes a file that is whole, or none. It is written under a name that nobody can foresee: whoever may write to the directory could have put a
// link there, or a file of his own.
func saveBackup(in io.Reader, path string) (h backup.Header, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*"+instance.FileNew) // mode 0600
	if err != nil {
		return h, fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		f.Close()
		if err != nil {
			_ = os.Remove(f.Name())
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	info, err := f.Stat()
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = fmt.Errorf("the file system gives files the mode %04o, so others could read the secrets: choose another directory", info.Mode().Perm())
	}
	if err != nil {
		return h, err
	}
	if _, err := io.Copy(f, in); err != nil {
		return h, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return h, err
	}
	if h, _, err = backup.Read(f); err != nil {
		return h, err
	}
	if err := f.Sync(); err != nil {
		return h, err
	}
	if err := unix.Renameat2(unix.AT_FDCWD, f.Name(), unix.AT_FDCWD, path, unix.RENAME_NOREPLACE); errors.Is(err, unix.EINVAL) { // NFS
		if err := os.Link(f.Name(), path); err != nil {
			return h, err
		}
		_ = os.Remove(f.Name())
	} else if err != nil { // a file came meanwhile
		return h, err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return h, err
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil && !errors.Is(err, fs.ErrInvalid) {
		return h, err
	}
	return h, nil
}
