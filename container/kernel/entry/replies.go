package entry

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// replies is the named pipe in which a container's first process says how far it has come. That the process holds it open, alone, tells that it has
// executed nothing yet: so long the pipe does not end.
type replies struct {
	path string
	read *os.File
	hold *os.File // so that it does not end before the process has come
}

func newReply(bundle string) (r *replies, err error) {
	r = &replies{path: filepath.Join(bundle, replyFile)}
	if r.read, err = fifo(r.path, unix.O_RDONLY); err != nil {
		return nil, err
	}
	// Root of a user namespace opens it anew, by its descriptor: nobody gets to it by its path.
	if err := os.Chmod(r.path, 0o622); err != nil {
		r.read.Close()
		return nil, err
	}
	if r.hold, err = openFIFO(r.path, unix.O_WRONLY); err != nil {
		r.read.Close()
		return nil, err
	}
	return r, nil
}

func (r *replies) Close() {
	r.read.Close()
	r.hold.Close()
}

// await waits for the process to be ready. over is closed when the engine's program has ended.
func (r *replies) await(ctx context.Context, over <-chan struct{}, command string, lists ...*List) error {
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-ctx.Done():
			_ = r.read.SetReadDeadline(time.Unix(1, 0))
		case <-over: // nobody is left to say more, unless the container's process goes on without it
			r.hold.Close()
		case <-done:
		}
	}()
	defer func() {
		close(done)
		<-watched
	}()
	return readReply(r.read, command, lists...)
}
