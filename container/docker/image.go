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

// importImage gives the engine the image.
func (e *engine) importImage(ctx context.Context) error {
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

// removeImage removes the image, if it is ours.
func (e *engine) removeImage(ctx context.Context) error {
	i, err := e.api.ImageInspect(ctx, e.image())
	if err == nil && i.Config != nil && i.Config.Labels[labelInstance] == e.inst.Name {
		_, err = e.api.ImageRemove(ctx, e.image(), client.ImageRemoveOptions{PruneChildren: true})
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove image %s from the engine: %w", e.image(), explain(err))
	}
	return nil
}
