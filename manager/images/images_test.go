package images_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/images"
	"weir.dev/weir/store/mem"
)

// shelf is a Store whose pulls end when the test wants.
type shelf struct {
	mu    sync.Mutex
	ends  map[string]chan error // by reference
	free  int64
	taken int64
	as    string
	fails error

	garbage int  // blobs that no image uses
	busy    bool // a pull goes on
}

func (s *shelf) List() ([]api.Image, error) { return nil, nil }

func (s *shelf) Check(reference string, _ bool) error {
	if !strings.Contains(reference, "/") {
		return fmt.Errorf("image %s: want REGISTRY/NAME:TAG", reference)
	}
	return nil
}

func (s *shelf) end(reference string) chan error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ends == nil {
		s.ends = map[string]chan error{}
	}
	if s.ends[reference] == nil {
		s.ends[reference] = make(chan error, 1)
	}
	return s.ends[reference]
}

func (s *shelf) Pull(ctx context.Context, reference string, o images.PullOptions) (api.Image, error) {
	o.Progress(3, 10)
	for range 100 {
		o.Warn(strings.Repeat("w", 10_000))
	}
	select {
	case err := <-s.end(reference):
		return api.Image{Name: reference, Digest: "sha256:1"}, err
	case <-ctx.Done():
		return api.Image{}, ctx.Err()
	}
}

func (s *shelf) Import(_ context.Context, archive io.Reader, as string) ([]api.Image, error) {
	n, err := io.Copy(io.Discard, archive)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken, s.as = n, as
	return []api.Image{{Name: as, Digest: "sha256:2"}}, s.fails
}

func (s *shelf) Collect(_ context.Context, plan bool) (api.ImageGC, error) {
	if s.busy {
		return api.ImageGC{}, api.Refuse(http.StatusConflict, "images are being pulled")
	}
	out := api.ImageGC{Kept: []api.ImageGCItem{{Name: "mine:2", Size: 7, Why: strings.Repeat("w", 10_000)}}, Freed: int64(s.garbage)}
	for n := range s.garbage {
		out.Removed = append(out.Removed, api.ImageGCItem{Name: fmt.Sprintf("sha256:%d", n), Size: 1, Why: "no image uses it"})
	}
	if !plan {
		s.garbage = 0
	}
	return out, nil
}

func (s *shelf) Free() (int64, error) { return s.free, nil }

func (s *shelf) Delete(_ context.Context, name string) error {
	if name != "mine:2" {
		return api.Refuse(http.StatusNotFound, "no image "+name)
	}
	return nil
}

// serve a manager with a store.
func serve(t *testing.T, s images.Store) (*api.Client, string) {
	t.Helper()
	m, err := manager.New(manager.Options{Store: mem.New(), Stock: s})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(m.Handler())
	t.Cleanup(server.Close)
	c, err := api.Dial(api.Options{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, server.URL
}

func refused(t *testing.T, err error, status int, says string) {
	t.Helper()
	var p *api.ProblemError
	if !errors.As(err, &p) || p.Status != status || !strings.Contains(err.Error(), says) {
		t.Errorf("%v: want status %d and %q", err, status, says)
	}
}

// await a state of the pull of a reference, of those that are listed.
func await(t *testing.T, c *api.Client, reference string, state api.ImagePullState) api.ImagePull {
	t.Helper()
	var last api.ImagePulls
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		var err error
		if last, err = c.ImagePulls(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, p := range last.Items {
			if p.Reference == reference && p.State == state {
				return p
			}
		}
	}
	t.Fatalf("%s is never %s: %+v", reference, state, last)
	return api.ImagePull{}
}

func TestAPullSaysHowFarItIsAndWhatBecameOfIt(t *testing.T) {
	s := &shelf{}
	c, _ := serve(t, s)
	ref := func(n int) string { return fmt.Sprintf("registry.example.org/nf:%d", n) }
	pull := func(n int) (api.ImagePull, error) {
		return c.PullImage(t.Context(), api.ImagePullRequest{Reference: ref(n)})
	}
	_, err := c.PullImage(t.Context(), api.ImagePullRequest{Reference: "nf:1"})
	refused(t, err, http.StatusUnprocessableEntity, "reference: image nf:1: want REGISTRY/NAME:TAG")
	_, err = c.PullImage(t.Context(), api.ImagePullRequest{Reference: "r/" + strings.Repeat("x", 600)})
	refused(t, err, http.StatusUnprocessableEntity, "want at most 512")
	for n := range 4 {
		if _, err := pull(n); err != nil {
			t.Fatal(err)
		}
	}
	_, err = pull(9)
	refused(t, err, http.StatusServiceUnavailable, "4 images are being pulled, the most at a time")
	third := await(t, c, ref(2), api.ImagePulling).Name
	same, err := pull(2)
	if err != nil || same.Name != third {
		t.Errorf("%+v, %v: want the pull that goes on", same, err)
	}
	// Far, there, failed, cancelled.
	var far api.ImagePull
	for until := time.Now().Add(10 * time.Second); far.Size == 0 && time.Now().Before(until); {
		far = await(t, c, ref(0), api.ImagePulling)
	}
	if far.Done != 3 || far.Size != 10 || len(far.Warnings) > 10 || len(far.Warnings[0]) > 5_000 || !far.Ended.IsZero() {
		t.Errorf("%d of %d, %d warnings, ended %s", far.Done, far.Size, len(far.Warnings), far.Ended)
	}
	s.end(ref(0)) <- nil
	if p := await(t, c, ref(0), api.ImagePulled); p.Digest != "sha256:1" || p.Ended.IsZero() {
		t.Errorf("%+v", p)
	}
	s.end(ref(1)) <- errors.New("nobody answers " + strings.Repeat("x", 100_000))
	if p := await(t, c, ref(1), api.ImageFailed); !strings.Contains(p.Message, "nobody answers") || len(p.Message) > 5_000 {
		t.Errorf("%d bytes of message: %.100s", len(p.Message), p.Message)
	}
	if err := c.EndImagePull(t.Context(), third); err != nil {
		t.Error(err)
	}
	if p := await(t, c, ref(2), api.ImageCancelled); p.Message != "" {
		t.Errorf("%+v", p)
	}
	// Forgotten, and not known.
	for range 2 {
		err = c.EndImagePull(t.Context(), third)
	}
	refused(t, err, http.StatusNotFound, fmt.Sprintf("no pull %q", third))
	// Of those that have ended only the last are known.
	for n := 100; n < 140; n++ {
		if _, err := pull(n); err != nil {
			t.Fatal(err)
		}
		s.end(ref(n)) <- nil
		await(t, c, ref(n), api.ImagePulled)
	}
	all, err := c.ImagePulls(t.Context())
	if err != nil || len(all.Items) > 24 || all.Items[0].Reference != ref(139) || all.Items[len(all.Items)-1].State != api.ImagePulling {
		t.Errorf("%d are known, the first is %+v, %v: want the newest first, and the one that goes on", len(all.Items), all.Items[0], err)
	}
	s.end(ref(3)) <- nil
	await(t, c, ref(3), api.ImagePulled)
}

// A client that remembers the name of a pull finds no other pull under it after the manager has begun anew.
func TestNamesOfPullsDoNotComeAgain(t *testing.T) {
	names := map[string]bool{}
	for range 2 { // managers
		c, _ := serve(t, &shelf{})
		for n := range 3 {
			p, err := c.PullImage(t.Context(), api.ImagePullRequest{Reference: fmt.Sprintf("registry.example.org/nf:%d", n)})
			if err != nil {
				t.Fatal(err)
			}
			names[p.Name] = true
			if err := c.EndImagePull(t.Context(), p.Name); err != nil {
				t.Error(err)
			}
		}
	}
	if len(names) != 6 {
		t.Errorf("6 pulls have the names %v", names)
	}
}

// What no image uses is listed first, within bounds, and goes only when it is asked for without a plan.
func TestGarbageIsListedAndRemoved(t *testing.T) {
	s := &shelf{garbage: 1_003}
	c, _ := serve(t, s)
	for _, plan := range []bool{true, false} {
		got, err := c.CollectImages(t.Context(), api.ImageGCRequest{Plan: plan})
		if err != nil || got.Plan != plan || len(got.Removed) != 1_000 || got.RemovedMore != 3 || got.Freed != 1_003 || got.Removed[0].Why != "no image uses it" {
			t.Errorf("plan %t: %d removed and %d more, %d bytes, plan %t, %v", plan, len(got.Removed), got.RemovedMore, got.Freed, got.Plan, err)
		}
		if len(got.Kept) != 1 || got.Kept[0].Name != "mine:2" || len(got.Kept[0].Why) > 5_000 {
			t.Errorf("plan %t: kept %.200v", plan, got.Kept)
		}
	}
	if got, err := c.CollectImages(t.Context(), api.ImageGCRequest{}); err != nil || len(got.Removed) != 0 || got.Freed != 0 {
		t.Errorf("%+v, %v: all was removed before", got, err)
	}
	s.busy = true
	_, err := c.CollectImages(t.Context(), api.ImageGCRequest{Plan: true})
	refused(t, err, http.StatusConflict, "images are being pulled")
}

func TestAnImportIsBounded(t *testing.T) {
	s := &shelf{free: 1<<30 + 30}
	c, url := serve(t, s)
	got, err := c.ImportImage(t.Context(), strings.NewReader("an archive"), 10, "mine:2")
	if err != nil || len(got.Items) != 1 || got.Items[0].Name != "mine:2" || s.taken != 10 {
		t.Errorf("%+v, %v; %d bytes", got, err, s.taken)
	}
	_, err = c.ImportImage(t.Context(), strings.NewReader("an archive."), 11, "")
	refused(t, err, http.StatusInsufficientStorage, "the manager's disk has 1024 MiB free")
	s.free = 100 << 30
	s.fails = errors.New("import: neither an OCI archive nor one of `docker save`")
	_, err = c.ImportImage(t.Context(), strings.NewReader("an archive"), 10, "")
	refused(t, err, http.StatusUnprocessableEntity, "neither an OCI archive")
	s.fails = api.Refuse(http.StatusConflict, "its name is taken")
	_, err = c.ImportImage(t.Context(), strings.NewReader("an archive"), 10, "")
	refused(t, err, http.StatusConflict, "its name is taken")
	s.fails = nil
	for name, x := range map[string]struct {
		kind   string
		length int64
		status int
		says   string
	}{
		"no length":      {"application/x-tar", -1, http.StatusLengthRequired, "Content-Length"},
		"too large":      {"application/x-tar", 1<<30 + 1, http.StatusRequestEntityTooLarge, "`weir image import FILE` on the manager's machine"},
		"another kind":   {"text/html", 10, http.StatusUnsupportedMediaType, "want application/x-tar"},
		"without a kind": {"", 10, http.StatusOK, "items"},
	} {
		t.Run(name, func(t *testing.T) {
			var body io.Reader = strings.NewReader("an archive")
			if x.length < 0 {
				body = struct{ io.Reader }{body} // net/http cannot know its length
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/images/import", body)
			if err != nil {
				t.Fatal(err)
			}
			r.ContentLength = x.length
			if x.length > 10 {
				r.Header.Set("Expect", "100-continue") // nothing is sent before the answer
				r.Body = io.NopCloser(endless{})
			}
			if x.kind != "" {
				r.Header.Set("Content-Type", x.kind)
			}
			client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: 10 * time.Second}}
			defer client.CloseIdleConnections()
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != x.status || !bytes.Contains(text, []byte(x.says)) {
				t.Errorf("%d %s, %v: want %d and %q", resp.StatusCode, text, err, x.status, x.says)
			}
		})
	}
}

// endless is a body that has always more.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// A client that stalls, or goes, does not keep the one place for imports.
func TestACutImportEnds(t *testing.T) {
	s := &shelf{free: 100 << 30}
	c, _ := serve(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	half, write := io.Pipe()
	done := make(chan error, 1)
	go func() { _, err := c.ImportImage(ctx, half, 1000, ""); done <- err }()
	if _, err := write.Write([]byte("the beginning")); err != nil {
		t.Fatal(err)
	}
	var err error
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(5 * time.Millisecond) { // until the first one is being read
		if _, err = c.ImportImage(t.Context(), strings.NewReader("another"), 7, ""); err != nil {
			break
		}
	}
	refused(t, err, http.StatusServiceUnavailable, "too many imports of images at once")
	cancel()
	if err := errors.Join(write.Close(), <-done); err == nil {
		t.Error("an import that was cut has succeeded")
	}
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		if _, err = c.ImportImage(t.Context(), strings.NewReader("another"), 7, ""); err == nil {
			return
		}
	}
	t.Errorf("the place is not free again: %v", err)
}

func TestAnImageIsDeletedByItsName(t *testing.T) {
	c, _ := serve(t, &shelf{})
	if err := c.DeleteImage(t.Context(), "mine:2"); err != nil {
		t.Error(err)
	}
	refused(t, c.DeleteImage(t.Context(), "registry.example.org/x&y:1"), http.StatusNotFound, "no image registry.example.org/x&y:1")
	refused(t, c.DeleteImage(t.Context(), ""), http.StatusBadRequest, "query.image: is missing")
}

func TestAManagerWithoutImagesSaysSo(t *testing.T) {
	c, _ := serve(t, nil)
	_, err := c.PullImage(t.Context(), api.ImagePullRequest{Reference: "registry.example.org/nf:1"})
	refused(t, err, http.StatusConflict, "this manager keeps no images")
	_, err = c.ImportImage(t.Context(), strings.NewReader("an archive"), 10, "")
	refused(t, err, http.StatusConflict, "this manager keeps no images")
	refused(t, c.DeleteImage(t.Context(), "mine:2"), http.StatusConflict, "this manager keeps no images")
	_, err = c.CollectImages(t.Context(), api.ImageGCRequest{})
	refused(t, err, http.StatusConflict, "this manager keeps no images")
	if all, err := c.ImagePulls(t.Context()); err != nil || len(all.Items) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
}
