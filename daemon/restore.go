package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"weir.dev/weir/api/backup"
	"weir.dev/weir/manager"
	"weir.dev/weir/store"
)

// Folders of the state directory.
const (
	etcdDir      = "etcd"
	restoringDir = "etcd.restoring" // a restore that is under way, see store.Restore
	replacedDir  = "replaced"       // states that a restore has replaced
	snapshotDir  = "snapshots"

	secretsKeyFile = "secrets.key"
)

func (o UpOptions) storeDir() string    { return filepath.Join(o.Instance.Root, etcdDir) }
func (o UpOptions) secretsFile() string { return filepath.Join(o.Instance.Root, secretsKeyFile) }

// secretsKey is the text of the file with the key of users' secrets; "": there is none.
func (o UpOptions) secretsKey() (string, error) {
	b, err := os.ReadFile(o.secretsFile())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(b), err
}

// remedy says how a damaged store is restored.
func (o UpOptions) remedy() string {
	const yours = "restore it from a backup of yours (weir up --restore FILE)"
	have := snapshots(filepath.Join(o.Instance.Root, snapshotDir))
	if len(have) == 0 {
		return yours
	}
	newest := have[len(have)-1]
	info, err := os.Stat(newest)
	if err != nil {
		return yours
	}
	return fmt.Sprintf("restore it from a backup: Weir's own of %s (weir up --restore %s), or a newer one of yours", info.ModTime().UTC().Format(time.RFC3339), newest)
}

// restore puts a backup in the place of the state, if it was asked to, and ends what a restore that was killed has left. Nothing is forgotten of what
// forwards meanwhile.
func (o UpOptions) restore(ctx context.Context) error {
	if o.Replace && o.Restore == "" {
		return errors.New("--replace puts a state aside for the one of --restore FILE: give both or neither")
	}
	if len(o.Etcd) > 0 {
		if o.Restore != "" {
			return errors.New("--restore is for Weir's own store: restore an etcd elsewhere by its own means (etcdutl snapshot restore)")
		}
		return nil
	}
	if err := o.putAside(); err != nil { // first, or this restore would be built where the state before the last one is
		return err
	}
	if o.Restore == "" {
		return nil
	}
	f, err := os.Open(o.Restore)
	if err != nil {
		return fmt.Errorf("%w: --restore: %w", ErrFile, err)
	}
	h, values, err := backup.Read(f)
	_ = f.Close()
	if err != nil {
		return fmt.Errorf("%w: --restore %s: %w: nothing was changed", ErrFile, o.Restore, err)
	}
	err = store.Restore(ctx, store.RestoreOptions{Dir: o.storeDir(), SocketDir: o.Instance.Run, Header: h, Values: values, Replace: o.Replace})
	if err != nil {
		return err
	}
	o.Log.Info("state restored", "from", o.Restore, "made", h.Made, "values", h.Values)
	return o.putAside()
}

// putAside puts the state that a restore has replaced aside, if one has.
func (o UpOptions) putAside() error {
	former, _, err := store.FinishRestore(o.storeDir(), o.secretsFile(), filepath.Join(o.Instance.Root, replacedDir), time.Now())
	if former != "" {
		o.Log.Info("the former state was put aside", "in", former)
	}
	return err
}

// finishRestore makes a state that was restored the current one.
func (o UpOptions) finishRestore(ctx context.Context, m *manager.Manager) error {
	if len(o.Etcd) > 0 || !store.Restoring(o.storeDir()) {
		return nil
	}
	if err := m.Intent.Restored(ctx); err != nil {
		return err
	}
	return store.RestoreDone(o.storeDir())
}

// snapshots are the backups that Weir has made by itself, the oldest first. Revisions do not tell: a state that was begun anew has lower ones.
func snapshots(dir string) (paths []string) {
	type snapshot struct {
		path string
		made time.Time
	}
	var found []snapshot
	matches, _ := filepath.Glob(filepath.Join(dir, "*"+snapshotEnd))
	for _, path := range matches {
		if info, err := os.Stat(path); err == nil {
			found = append(found, snapshot{path, info.ModTime()})
		}
	}
	slices.SortFunc(found, func(a, b snapshot) int { return cmp.Or(a.made.Compare(b.made), cmp.Compare(a.path, b.path)) })
	for _, s := range found {
		paths = append(paths, s.path)
	}
	return paths
}
