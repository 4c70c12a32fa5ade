package read

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"weir.dev/weir/api"
	"weir.dev/weir/api/backup"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/store"
)

// Backup writes all that the store holds at one revision, secrets included.
func (rd *Reader) Backup(ctx context.Context, w io.Writer) (backup.Header, error) {
	h := backup.Header{Version: rd.Version, Made: rd.Now().UTC()}
	values, revision, err := store.Backup(ctx, rd.Store)
	if err != nil {
		return h, fmt.Errorf("backup: %w", err)
	}
	h.Revision, h.Values = revision, len(values)
	if rd.SecretsKey != nil {
		if h.SecretsKey, err = rd.SecretsKey(); err != nil {
			return h, fmt.Errorf("backup: %w", err)
		}
	}
	return h, backup.Write(w, h, values)
}

// backup answers with a backup. What it holds is worth as much as the token of an admin.
func (rd *Reader) backup(w http.ResponseWriter, r *http.Request) error {
	release, err := rd.backups.Take("backups")
	if err != nil {
		return err
	}
	defer release()
	out := &late{w: w, r: r}
	_, err = rd.Backup(r.Context(), out)
	if out.begun { // the client is gone, or the checksum at the end is missing: it sees that
		return nil
	}
	return err
}

// late begins an answer with its first bytes: what fails before is a problem.
type late struct {
	w     http.ResponseWriter
	r     *http.Request
	begun bool
}

func (l *late) Write(p []byte) (int, error) {
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", "application/jsonl")
		l.w.Header().Set("Cache-Control", "no-store")
		web.Note(l.r).Began(http.StatusOK)
	}
	return web.Flushing(l.w).Write(p)
}

// Revision is the store's.
func (rd *Reader) Revision(ctx context.Context) (int64, error) {
	_, revision, err := rd.Store.List(ctx, store.Prefix(api.KindChain), store.ListOptions{KeysOnly: true, Limit: 1})
	return revision, err
}
