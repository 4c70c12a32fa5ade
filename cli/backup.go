package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"weir.dev/weir/api/backup"
	"weir.dev/weir/instance"
)

func (a *app) backupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Save the whole state into a file, secrets included",
		Long: `Save all that the store holds at one moment, with a checksum: endpoints, functions, chains, policies, hosts, tokens, secrets, the authority of hosts'
certificates, events. Whoever reads the file can do what an admin can: it gets mode 0600. Images and logs are not in it, nor the key of --secret-key. "weir
up --restore FILE" brings the state back. It is for admins.`,
		Example: `  weir backup weir.backup
  weir backup weir.backup -o json`,
		Args: wantArgs(1, 1, "the file to write"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := args[0]
			if _, err := os.Lstat(path); err == nil {
				return withCode(ExitConflict, fmt.Errorf("%s exists: give another name, or remove it first", path))
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			in, err := c.Backup(cmd.Context())
			if err != nil {
				return err
			}
			defer in.Close()
			h, err := saveBackup(in, path)
			if err != nil {
				return err
			}
			if a.structured() {
				return a.encode(map[string]any{"file": path, "revision": h.Revision, "values": h.Values, "made": h.Made, "version": h.Version})
			}
			_, err = fmt.Fprintf(a.Stdout, "%s has the state at revision %d: %d values, secrets and tokens among them; its mode is 0600\n", path, h.Revision, h.Values)
			return err
		},
	}
}

// saveBackup writes a file that is whole, or none.
func saveBackup(in io.Reader, path string) (backup.Header, error) {
	next := path + instance.FileNew
	f, err := os.OpenFile(next, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return backup.Header{}, err
	}
	defer f.Close()
	fail := func(err error) (backup.Header, error) {
		return backup.Header{}, errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(next))
	}
	if err := f.Chmod(0o600); err != nil { // it was there with another
		return fail(err)
	}
	if _, err := io.Copy(f, in); err != nil {
		return fail(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fail(err)
	}
	h, _, err := backup.Read(f)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Link(next, path) // not over a file that came meanwhile
	}
	if err != nil {
		return fail(err)
	}
	if err := os.Remove(next); err != nil {
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
