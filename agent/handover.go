package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/image"
)

// An image with weir.export and weir.import hands its state over: what the instance that goes exports, the one that comes imports, before frames reach it.
// Without state the new instance works all the same, and an event says why.

// handFor bounds a command of a hand-over, and how long it waits for its turn.
const handFor = 5 * time.Second

// handOver gives a new instance beside the one in force the state of that.
func (f *function) handOver(ctx context.Context, to string) {
	state, err := f.export(ctx)
	if err == nil && state != nil {
		err = f.bring(ctx, to, f.ready.image, state)
	}
	f.lost(err)
}

// carry keeps the state of an instance that ends before the next one begins.
func (f *function) carry(ctx context.Context) {
	var err error
	if f.carried, err = f.export(ctx); err != nil {
		f.lost(err)
	}
}

// deliver gives the instance in force what was kept for it.
func (f *function) deliver(ctx context.Context, img image.Image) {
	if f.carried == nil {
		return
	}
	state := f.carried
	f.carried = nil
	f.lost(f.bring(ctx, f.container(), img, state))
}

// export is the state of the instance in force; nil: it has none.
func (f *function) export(ctx context.Context) ([]byte, error) {
	if len(f.applied.Export) == 0 || f.have != container.Running {
		return nil, nil
	}
	out, said := bounded{most: api.MaxState}, tail{}
	code, err := f.command(ctx, f.a.hands, f.container(), handFor, f.applied.Export, nil, &out, &said)
	switch {
	case out.over:
		return nil, fmt.Errorf("the former instance exports more than %d MiB", api.MaxState>>20)
	case err != nil:
		return nil, fmt.Errorf("export of the former instance: %w", err)
	case code != 0:
		return nil, fmt.Errorf("export of the former instance: exit code %d: %s", code, said.line())
	}
	return append([]byte{}, out.b.Bytes()...), nil // without the buffer's spare room: it may be kept for a while
}

// bring state into an instance.
func (f *function) bring(ctx context.Context, to string, img image.Image, state []byte) error {
	if len(img.Contract.Import) == 0 {
		return errors.New("the new image imports none")
	}
	var said tail
	code, err := f.command(ctx, f.a.hands, to, handFor, img.Contract.Import, bytes.NewReader(state), &said, &said)
	switch {
	case err != nil:
		return fmt.Errorf("import by the new instance: %w", err)
	case code != 0:
		return fmt.Errorf("import by the new instance: exit code %d: %s", code, said.line())
	}
	return nil
}

// lost says that a new instance begins without state.
func (f *function) lost(err error) {
	if err != nil {
		f.event(api.Warning, "StateLost", fmt.Sprintf("the new instance begins without the state of the former one: %v", err), 0)
	}
}
