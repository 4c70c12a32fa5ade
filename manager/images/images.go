package images

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/strict"
	"weir.dev/weir/manager/web"
)

// Store keeps the manager's images.
type Store interface {
	// List has what the layouts of the manager's machine have.
	List() ([]api.Image, error)
	// Check refuses what is no reference to an image in a registry.
	Check(reference string, plainHTTP bool) error
	// Pull fetches an image; what is there already is not fetched again. Its error is for people.
	Pull(ctx context.Context, reference string, o PullOptions) (api.Image, error)
	// Import takes the images of an archive. An error that is no *api.ProblemError is about the archive.
	Import(ctx context.Context, archive io.Reader, as string) ([]api.Image, error)
	// Delete takes one out by its name.
	Delete(ctx context.Context, name string) error
	// Collect removes what no image uses, or with plan only says what it would remove.
	Collect(ctx context.Context, plan bool) (api.ImageGC, error)
	// Free is how many bytes there is room for.
	Free() (int64, error)
}

// PullOptions are those of a pull. Both functions may be called from several goroutines.
type PullOptions struct {
	PlainHTTP bool
	Progress  func(done, all int64) // bytes
	Warn      func(text string)
}

// Bounds.
const (
	maxPulls     = 4 // that go on
	maxEnded     = 20
	maxWarnings  = 10
	nameLength   = 12  // of a pull: characters of 5 random bits
	maxReference = 512 // bytes
	pullWithin   = time.Hour
	importWithin = time.Hour
	readWithin   = 30 * time.Second // for a piece of an archive
	reserve      = 1 << 30          // bytes of the disk that stay free
	copies       = 3                // of an archive that are on the disk while it is read: as it came, unpacked, and its blobs
	drained      = 64 << 20         // bytes that are read of an archive that is refused, so that its sender reads the answer
)

// kind of images, in the audit log.
const kind api.Kind = "image"

// Options are what a Server needs.
type Options struct {
	Store Store // nil: this manager has no images
	Log   *slog.Logger
	Now   func() time.Time
}

// Server serves pulls and imports. Make it with New.
type Server struct {
	Options
	imports web.Slots

	mu    sync.Mutex
	pulls []*pull // the oldest first
}

// pull is one, while it goes on and for a while afterwards.
type pull struct {
	api.ImagePull
	end context.CancelFunc
}

// New makes a Server.
func New(o Options) *Server { return &Server{Options: o, imports: make(web.Slots, 1)} }

// Routes of images that come to the manager. They bring code from anywhere to all hosts, so they are for administrators.
func (s *Server) Routes() []web.Route {
	return []web.Route{
		{Method: "GET", Path: "/v1/images/pulls", ID: "image-pulls", Needs: api.RoleViewer, Summary: "images that the manager fetches from registries now, and the last ones that it fetched, the newest first",
			Answers: map[int]any{200: api.ImagePulls{}}, Handler: s.list},
		{Method: "POST", Path: "/v1/images/pulls", ID: "pull-image", Needs: api.RoleAdmin, Does: "pull", Kind: kind, Summary: "have the manager fetch an image from a registry, for itself and for all hosts: it goes on after the answer",
			Body: api.ImagePullRequest{}, Answers: map[int]any{202: api.ImagePull{}}, Problems: []int{409, 422}, Handler: s.pull},
		{Method: "GET", Path: "/v1/images/pulls/{name}", ID: "image-pull", Needs: api.RoleViewer, Summary: "a fetch of an image, and how far it is",
			Answers: map[int]any{200: api.ImagePull{}}, Problems: []int{404}, Handler: s.one},
		{Method: "DELETE", Path: "/v1/images/pulls/{name}", ID: "end-image-pull", Needs: api.RoleAdmin, Does: "end-pull", Kind: kind, Summary: "end a fetch that goes on, or forget one that has ended",
			Answers: map[int]any{204: nil}, Problems: []int{404}, Handler: s.remove},
		{Method: "DELETE", Path: "/v1/images", ID: "delete-image", Needs: api.RoleAdmin, Kind: kind, Summary: "take an image from the manager: hosts that have it keep it, and functions that run go on",
			Query: []string{"image"}, Answers: map[int]any{204: nil}, Problems: []int{404, 409}, Handler: s.drop},
		{Method: "POST", Path: "/v1/images/gc", ID: "collect-images", Needs: api.RoleAdmin, Does: "gc", Kind: kind, Summary: "remove from the manager's store what no image uses: what interrupted pulls and imports left; with plan only say what would go, and why the rest stays",
			Body: api.ImageGCRequest{}, Answers: map[int]any{200: api.ImageGC{}}, Problems: []int{409, 422}, Handler: s.collect},
		{Method: "POST", Path: "/v1/images/import", ID: "import-image", Needs: api.RoleAdmin, Does: "import", Kind: kind,
			Summary: "give the manager the images of an archive, at most 1 GiB, as `docker save`, `podman save` and `weir image export` write one; one archive at a time, with its length beforehand",
			Query:   []string{"as"}, Body: web.Text(api.ImageArchiveType), Answers: map[int]any{200: api.ImageImport{}}, Problems: []int{409, 411, 422, 507}, Handler: s.take},
	}
}

// Own lists the manager's images; a manager without a store has none.
func (s *Server) Own() ([]api.Image, error) {
	if s.Store == nil {
		return nil, nil
	}
	return s.Store.List()
}

// there refuses where no images are kept.
func (s *Server) there() error {
	if s.Store == nil {
		return api.Refuse(http.StatusConflict, "this manager keeps no images: it is no host, and no agents join it (--agents)")
	}
	return nil
}

func (s *Server) list(w http.ResponseWriter, _ *http.Request) error {
	s.mu.Lock()
	out := api.ImagePulls{Items: []api.ImagePull{}}
	for _, p := range slices.Backward(s.pulls) {
		out.Items = append(out.Items, p.shown())
	}
	s.mu.Unlock()
	return web.Answer(w, http.StatusOK, out)
}

// shown is a copy; the caller holds the lock.
func (p *pull) shown() api.ImagePull {
	out := p.ImagePull
	out.Warnings = slices.Clone(out.Warnings)
	return out
}

// find a pull by its name; the caller holds the lock.
func (s *Server) find(name string) (*pull, error) {
	at := slices.IndexFunc(s.pulls, func(p *pull) bool { return p.Name == name })
	if at < 0 {
		return nil, api.Refuse(http.StatusNotFound, fmt.Sprintf("no pull %q: those that ended long ago are forgotten", strict.Clip(name, strict.MaxText)))
	}
	return s.pulls[at], nil
}

func (s *Server) one(w http.ResponseWriter, r *http.Request) error {
	s.mu.Lock()
	p, err := s.find(r.PathValue("name"))
	var out api.ImagePull
	if err == nil {
		out = p.shown()
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return web.Answer(w, http.StatusOK, out)
}

func (s *Server) remove(w http.ResponseWriter, r *http.Request) error {
	s.mu.Lock()
	p, err := s.find(r.PathValue("name"))
	if err == nil {
		web.Note(r).Object = p.Reference
		if p.State == api.ImagePulling {
			p.State, p.Ended = api.ImageCancelled, s.Now().UTC()
			p.end()
		} else {
			s.pulls = slices.DeleteFunc(s.pulls, func(x *pull) bool { return x == p })
		}
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) pull(w http.ResponseWriter, r *http.Request) error {
	if err := s.there(); err != nil {
		return err
	}
	var q api.ImagePullRequest
	if err := web.ReadBody(w, r, &q); err != nil {
		return err
	}
	web.Note(r).Object = strict.Clip(q.Reference, strict.MaxText)
	if len(q.Reference) > maxReference {
		return api.Refuse(http.StatusUnprocessableEntity, "", api.Problem{Path: "reference", Message: fmt.Sprintf("has %d bytes", len(q.Reference)), Hint: fmt.Sprintf("want at most %d", maxReference)})
	}
	if err := s.Store.Check(q.Reference, q.PlainHTTP); err != nil {
		return api.Refuse(http.StatusUnprocessableEntity, "", api.Problem{Path: "reference", Message: err.Error()})
	}
	out, err := s.begin(q)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/images/pulls/"+out.Name)
	return web.Answer(w, http.StatusAccepted, out)
}

// newName is the name of a pull: a client that remembers one finds no other under it after a restart.
func newName() string { return strings.ToLower(rand.Text()[:nameLength]) }

// begin a pull, unless the same goes on.
func (s *Server) begin(q api.ImagePullRequest) (api.ImagePull, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	running := 0
	for _, p := range s.pulls {
		if p.State != api.ImagePulling {
			continue
		}
		if p.Reference == q.Reference && p.PlainHTTP == q.PlainHTTP {
			return p.shown(), nil
		}
		running++
	}
	if running >= maxPulls {
		return api.ImagePull{}, api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("%d images are being pulled, the most at a time: try again when one is there, or end one", running))
	}
	ctx, end := context.WithTimeout(context.Background(), pullWithin)
	p := &pull{end: end, ImagePull: api.ImagePull{Name: newName(), Reference: q.Reference, PlainHTTP: q.PlainHTTP, State: api.ImagePulling, Began: s.Now().UTC()}}
	s.pulls = append(s.pulls, p)
	for over := len(s.pulls) - maxPulls - maxEnded; over > 0; over-- {
		oldest := slices.IndexFunc(s.pulls, func(p *pull) bool { return p.State != api.ImagePulling }) // there are more than maxPulls
		s.pulls = slices.Delete(s.pulls, oldest, oldest+1)
	}
	go s.run(ctx, p)
	return p.shown(), nil
}

func (s *Server) run(ctx context.Context, p *pull) {
	defer p.end()
	s.Log.Info("pull image", "image", p.Reference)
	img, err := s.Store.Pull(ctx, p.Reference, PullOptions{PlainHTTP: p.PlainHTTP,
		Progress: func(done, all int64) {
			s.mu.Lock()
			defer s.mu.Unlock()
			p.Done, p.Size = max(done, 0), max(all, 0)
		},
		Warn: func(text string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(p.Warnings) < maxWarnings {
				p.Warnings = append(p.Warnings, strict.Clip(text, strict.MaxText))
			}
		}})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil: // also where somebody ended it a moment too late
		p.State, p.Digest = api.ImagePulled, img.Digest
		s.Log.Info("image pulled", "image", p.Reference, "digest", img.Digest)
	case p.State == api.ImageCancelled:
		return
	default:
		p.State, p.Message = api.ImageFailed, strict.Clip(err.Error(), api.MaxImageText)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			p.Message = fmt.Sprintf("it took more than %s: pull it again, which goes on where it was", pullWithin)
		}
		s.Log.Warn("pull image", "image", p.Reference, "error", err)
	}
	p.Ended = s.Now().UTC()
}

// drop an image.
func (s *Server) drop(w http.ResponseWriter, r *http.Request) error {
	if err := s.there(); err != nil {
		return err
	}
	name := r.URL.Query().Get("image")
	web.Note(r).Object = strict.Clip(name, strict.MaxText)
	if name == "" {
		return api.Refuse(http.StatusBadRequest, "the query is refused", api.Problem{Path: "query.image", Message: "is missing", Hint: "want the name of an image"})
	}
	if err := s.Store.Delete(r.Context(), name); err != nil {
		return err
	}
	s.Log.Info("image deleted", "image", name)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// collect what no image uses.
func (s *Server) collect(w http.ResponseWriter, r *http.Request) error {
	if err := s.there(); err != nil {
		return err
	}
	var q api.ImageGCRequest
	if err := web.ReadBody(w, r, &q); err != nil {
		return err
	}
	web.Note(r).Idle = q.Plan
	got, err := s.Store.Collect(r.Context(), q.Plan)
	if err != nil {
		return err
	}
	if !q.Plan {
		s.Log.Info("images collected", "freed_bytes", got.Freed)
	}
	got.Plan = q.Plan
	got.Removed, got.RemovedMore = first(got.Removed)
	got.Kept, got.KeptMore = first(got.Kept)
	return web.Answer(w, http.StatusOK, got)
}

// first are the first items of a list, and how many there are beside them.
func first(all []api.ImageGCItem) (items []api.ImageGCItem, more int) {
	items = slices.Clone(all[:min(len(all), api.MaxImages)])
	for i := range items {
		items[i].Name = strict.Clip(items[i].Name, maxReference)
		items[i].Why = strict.Clip(items[i].Why, api.MaxImageText)
	}
	return append([]api.ImageGCItem{}, items...), len(all) - len(items)
}

// take the images of an archive.
func (s *Server) take(w http.ResponseWriter, r *http.Request) error {
	err := s.there()
	if err == nil {
		err = mayImport(r)
	}
	release := func() {}
	if err == nil {
		release, err = s.imports.Take("imports of images")
	}
	if err == nil {
		defer release()
		err = s.room(r.ContentLength)
	}
	if err != nil {
		if r.Header.Get("Expect") == "" { // who still writes when the connection closes does not get to read the answer
			c := http.NewResponseController(w)
			_ = c.SetReadDeadline(time.Now().Add(readWithin)) // not possible on every kind of connection
			_, _ = io.CopyN(io.Discard, r.Body, drained)
		}
		return err
	}
	as := r.URL.Query().Get("as")
	web.Note(r).Object = strict.Clip(as, strict.MaxText)
	streaming, cancel := web.StreamContext(r)
	defer cancel()
	ctx, cancel2 := context.WithTimeout(streaming, importWithin)
	defer cancel2()
	body := &patient{r: http.MaxBytesReader(w, r.Body, api.MaxImageArchive), c: http.NewResponseController(w), ctx: ctx}
	items, err := s.Store.Import(ctx, body, as)
	var p *api.ProblemError
	switch {
	case err == nil:
	case body.err != nil:
		return api.Refuse(http.StatusBadRequest, fmt.Sprintf("the archive could not be read to its end: %v", body.err))
	case errors.As(err, &p):
		return p
	case ctx.Err() != nil:
		return api.Refuse(http.StatusServiceUnavailable, "the import was cut: the manager ends, or it took too long")
	default:
		return api.Refuse(http.StatusUnprocessableEntity, strict.Clip(err.Error(), api.MaxImageText))
	}
	var names []string
	for _, i := range items {
		names = append(names, i.Name)
		s.Log.Info("image imported", "image", i.Name, "digest", i.Digest)
	}
	web.Note(r).Objects = names
	return web.Answer(w, http.StatusOK, api.ImageImport{Items: items})
}

// mayImport refuses what is too large, and what is no archive by its own word.
func mayImport(r *http.Request) error {
	if text := r.Header.Get("Content-Type"); text != "" {
		t, _, err := mime.ParseMediaType(text)
		if err != nil || t != api.ImageArchiveType && t != "application/octet-stream" {
			return api.Refuse(http.StatusUnsupportedMediaType, fmt.Sprintf("content type %q: want %s", strict.Clip(text, strict.MaxText), api.ImageArchiveType))
		}
	}
	switch n := r.ContentLength; {
	case n < 0:
		return api.Refuse(http.StatusLengthRequired, "want the length of the archive beforehand, in the header Content-Length")
	case n > api.MaxImageArchive:
		return api.Refuse(http.StatusRequestEntityTooLarge, fmt.Sprintf("the archive has %d MiB, at most %d: `weir image import FILE` on the manager's machine takes larger ones", n>>20, int64(api.MaxImageArchive)>>20))
	}
	return nil
}

// room refuses an archive that the disk cannot hold.
func (s *Server) room(n int64) error {
	free, err := s.Store.Free()
	if err != nil {
		return err
	}
	if need := copies*n + reserve; free < need {
		return api.Refuse(http.StatusInsufficientStorage, fmt.Sprintf("the manager's disk has %d MiB free: to import an archive of %d MiB takes %d, of which %d stay free", free>>20, n>>20, need>>20, reserve>>20))
	}
	return nil
}

// patient reads a body each piece of which has a bounded time.
type patient struct {
	r   io.Reader
	c   *http.ResponseController
	ctx context.Context
	err error // what reading ended with, unless with its end
}

func (p *patient) Read(b []byte) (int, error) {
	if err := p.ctx.Err(); err != nil {
		p.err = err
		return 0, err
	}
	_ = p.c.SetReadDeadline(time.Now().Add(readWithin)) // not possible on every kind of connection
	n, err := p.r.Read(b)
	if err != nil {
		_ = p.c.SetReadDeadline(time.Time{})
		if !errors.Is(err, io.EOF) {
			p.err = err
		}
	}
	return n, err
}
