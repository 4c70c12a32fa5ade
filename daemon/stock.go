package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"golang.org/x/sys/unix"

	"weir.dev/weir/agent"
	"weir.dev/weir/api"
	"weir.dev/weir/image"
	stocked "weir.dev/weir/manager/images"
)

// stock is this machine's images as the manager's: hosts fetch what they lack from here.
type stock struct{ images Images }

// List has all that can be read; what is wrong with others is told where they are used.
func (s stock) List() ([]api.Image, error) {
	images, err := s.images.List()
	if len(images) == 0 && err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	own, err := s.images.Own()
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	out := make([]api.Image, 0, len(images))
	for _, i := range images[:min(len(images), api.MaxImages)] {
		x := agent.ImageOf(i)
		x.Removable = slices.Contains(own, i.Ref)
		out = append(out, x)
	}
	return out, nil
}

// Delete takes an image out by its name.
func (s stock) Delete(ctx context.Context, name string) error {
	err := s.images.Delete(ctx, name)
	switch {
	case errors.Is(err, image.ErrNotFound):
		return api.Refuse(http.StatusNotFound, err.Error())
	case errors.Is(err, image.ErrShipped):
		return api.Refuse(http.StatusConflict, err.Error())
	}
	return err
}

// Check refuses what is no reference to an image in a registry.
func (stock) Check(reference string, plainHTTP bool) error {
	_, err := image.ParseRemote(reference, image.RemoteOptions{PlainHTTP: plainHTTP})
	return err
}

// Pull fetches an image.
func (s stock) Pull(ctx context.Context, reference string, o stocked.PullOptions) (api.Image, error) {
	img, err := s.images.Fetch(ctx, reference, image.RemoteOptions{PlainHTTP: o.PlainHTTP, Progress: o.Progress, Warn: o.Warn})
	if err != nil {
		return api.Image{}, err
	}
	return agent.ImageOf(img), nil
}

// Import takes the images of an archive.
func (s stock) Import(ctx context.Context, archive io.Reader, as string) ([]api.Image, error) {
	images, err := s.images.ImportFrom(ctx, archive, as)
	switch {
	case errors.Is(err, image.ErrHidden):
		return nil, api.Refuse(http.StatusConflict, err.Error())
	case errors.Is(err, unix.ENOSPC):
		return nil, api.Refuse(http.StatusInsufficientStorage, err.Error())
	case err != nil:
		return nil, err
	}
	out := make([]api.Image, 0, len(images))
	for _, i := range images {
		out = append(out, agent.ImageOf(i))
	}
	return out, nil
}

// Collect removes what no image uses, or with plan only says what it would remove. It does not wait: a pull may take an hour.
func (s stock) Collect(ctx context.Context, plan bool) (api.ImageGC, error) {
	c, err := s.images.Collect(ctx, image.CollectOptions{Plan: plan, Now: true})
	if errors.Is(err, image.ErrBusy) {
		return api.ImageGC{}, api.Refuse(http.StatusConflict, err.Error())
	}
	items := func(all []image.Collectable) (out []api.ImageGCItem) {
		for _, x := range all {
			out = append(out, api.ImageGCItem(x))
		}
		return out
	}
	return api.ImageGC{Plan: plan, Removed: items(c.Removed), Kept: items(c.Kept), Freed: c.Freed}, err
}

// Free is how many bytes there is room for.
func (s stock) Free() (int64, error) { return s.images.Free() }
