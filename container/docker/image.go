package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// image is the name of the instance's image. It is empty: a container's root is Spec.Rootfs. The engine wants one, and shows its name.
func (e *engine) image() string { return "weir/" + e.inst.Name + ":empty" }

// importImage gives the engine the image, unless another caller just has.
func (e *engine) importImage(ctx context.Context) error {
	e.shared.Lock()
	defer e.shared.Unlock()
	if _, err := e.api.ImageInspect(ctx, e.image()); !errdefs.IsNotFound(err) {
		return explain(err)
	}
	var layer bytes.Buffer
	if err := tar.NewWriter(&layer).Close(); err != nil {
		return err
	}
	r, err := e.api.ImageImport(ctx, client.ImageImportSource{Source: &layer, SourceName: "-"}, e.image(),
		client.ImageImportOptions{Changes: []string{"LABEL " + labelInstance + "=" + e.inst.Name}})
	if err == nil {
		err = errors.Join(importError(r), r.Close())
	}
	if err != nil {
		return fmt.Errorf("load image %s into the engine: %w", e.image(), explain(err))
	}
	return nil
}

// mostProgress bounds what is read of the engine's progress.
const mostProgress = 1 << 20

// importError reads the engine's progress to its end, where it tells an error.
func importError(r io.Reader) error {
	for d := json.NewDecoder(io.LimitReader(r, mostProgress)); ; {
		var line struct {
			Error string `json:"error"`
		}
		switch err := d.Decode(&line); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case line.Error != "":
			return errors.New(line.Error)
		}
	}
}

// removeImages removes the image, and any that a killed engine has not named yet.
func (e *engine) removeImages(ctx context.Context) error {
	list, err := e.api.ImageList(ctx, client.ImageListOptions{All: true, Filters: make(client.Filters).Add("label", labelInstance+"="+e.inst.Name)})
	if err != nil {
		return fmt.Errorf("find images in the engine: %w", explain(err))
	}
	for _, i := range list.Items {
		if _, err := e.api.ImageRemove(ctx, i.ID, client.ImageRemoveOptions{PruneChildren: true}); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove image %s from the engine: %w", i.ID, explain(err))
		}
	}
	return nil
}
