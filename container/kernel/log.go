package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
)

// openLog opens a log that a container may hold a lease on, as its owner: that would have whoever opens it wait for 45 s, time and again. So it is EAGAIN
// until the kernel ends the lease, which it begins to at the first try.
func openLog(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.EAGAIN) {
		return nil, fmt.Errorf("%s: the function holds a lease on its log: try again in a minute, or restart it: %w", path, err)
	}
	return f, err
}

// startLog opens a log for a process that is to print to it. Where a former process of the function holds a lease on it, the log begins anew, and what was
// there is the older file.
func startLog(path string) (*os.File, error) {
	const flag = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	f, err := os.OpenFile(path, flag|unix.O_NONBLOCK, 0o600)
	if errors.Is(err, unix.EAGAIN) {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(path, flag|unix.O_NONBLOCK, 0o600)
	}
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(int(f.Fd()), false); err != nil { // the program's own business
		f.Close()
		return nil, err
	}
	return f, nil
}

// bound keeps a log within its size. The container holds the file open, so it is copied and cut, not renamed; lines written in
// between may be lost.
func (r *Runtime) bound(log string) error {
	path := r.LogFile(log)
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && fi.Size() <= r.logBytes {
		return nil
	}
	if err != nil {
		return fmt.Errorf("log of %s: %w", log, err)
	}
	f, err := openLog(path, os.O_RDWR)
	if errors.Is(err, unix.EAGAIN) {
		return nil // the next look may cut it; it grows to maxLog at most
	}
	if err != nil {
		return fmt.Errorf("log of %s: %w", log, err)
	}
	defer f.Close()
	old, err := os.OpenFile(path+".1.new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("log of %s: %w", log, err)
	}
	err = copyTail(old, f, max(0, fi.Size()-r.logBytes), 2*r.logBytes)
	if cerr := old.Close(); err == nil {
		err = cerr
	}
	if err != nil { // a full disk: the log is given up for the sake of the rest
		os.Remove(path + ".1.new")
	} else {
		err = os.Rename(path+".1.new", path+".1")
	}
	if terr := f.Truncate(0); terr != nil {
		return fmt.Errorf("log of %s: %w", log, terr)
	}
	if err != nil {
		return fmt.Errorf("log of %s: %w", log, err)
	}
	return nil
}

// copyTail copies what begins at an offset, at most so many bytes, and says beside it what is lost.
func copyTail(w io.Writer, f *os.File, from, limit int64) error {
	if from > 0 {
		if _, err := fmt.Fprintf(w, "[weir: %d bytes before this are lost: more was printed than the log keeps]\n", from); err != nil {
			return err
		}
	}
	n, err := io.Copy(w, io.NewSectionReader(f, from, limit))
	if err != nil {
		return err
	}
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if fi.Size() >= maxLog {
		_, err = fmt.Fprintf(w, "\n[weir: lines after this are lost: the log was full, at %d MiB, until it was cut]\n", maxLog>>20)
	} else if missed := fi.Size() - from - n; missed > 0 {
		_, err = fmt.Fprintf(w, "\n[weir: %d bytes after this are lost: they were printed while the log was cut]\n", missed)
	}
	return err
}

const followEvery = 200 * time.Millisecond

// Logs streams the container's output, the older file first.
func (r *Runtime) Logs(ctx context.Context, id string, o container.LogOptions) (io.ReadCloser, error) {
	r.mu.Lock()
	known, start, log := r.containers[id].known(), int64(0), ""
	if known {
		log = logOf(r.containers[id].rec.Spec)
	}
	if known && o.Latest {
		start = r.containers[id].rec.LogStart
	}
	r.mu.Unlock()
	if !known {
		return nil, fmt.Errorf("logs of container %s: %w", id, container.ErrNotFound)
	}
	l := &logReader{ctx: ctx, follow: o.Follow}
	paths := []string{r.LogFile(log) + ".1", r.LogFile(log)}
	if o.Latest {
		paths = paths[1:]
	}
	for _, path := range paths {
		f, err := openLog(path, os.O_RDONLY)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			l.Close()
			return nil, fmt.Errorf("logs of container %s: %w", id, err)
		}
		l.files = append(l.files, f)
	}
	if o.Tail > 0 {
		if err := l.seekTail(o.Tail, 2*r.logBytes); err != nil {
			l.Close()
			return nil, fmt.Errorf("logs of container %s: %w", id, err)
		}
	}
	if o.Latest && len(l.files) > 0 {
		if fi, err := l.files[0].Stat(); err == nil && fi.Size() >= start { // else it was cut since
			l.offset = max(l.offset, start)
		}
	}
	return l, nil
}

// logReader reads files one after another and may follow the last.
type logReader struct {
	ctx    context.Context
	files  []*os.File
	offset int64 // in files[0]
	follow bool
}

func (l *logReader) Close() error {
	var errs []error
	for _, f := range l.files {
		errs = append(errs, f.Close())
	}
	l.files = nil
	return errors.Join(errs...)
}

func (l *logReader) Read(p []byte) (int, error) {
	for len(l.files) > 0 {
		n, err := l.files[0].ReadAt(p, l.offset)
		l.offset += int64(n)
		if n > 0 {
			return n, nil
		}
		if err != nil && err != io.EOF {
			return 0, err
		}
		if len(l.files) > 1 {
			l.files[0].Close()
			l.files, l.offset = l.files[1:], 0
			continue
		}
		if !l.follow {
			return 0, io.EOF
		}
		if fi, err := l.files[0].Stat(); err == nil && fi.Size() < l.offset {
			l.offset = 0 // it was cut
			continue
		}
		select {
		case <-l.ctx.Done():
			return 0, io.EOF
		case <-time.After(followEvery):
		}
	}
	return 0, io.EOF
}

// seekTail finds where the last n lines begin, reading backwards, in a file at most so many bytes: the container may have made it longer than anybody
// could read, of which nothing is on the disk.
func (l *logReader) seekTail(n int, back int64) error {
	for i := len(l.files) - 1; i >= 0; i-- {
		fi, err := l.files[i].Stat()
		if err != nil {
			return err
		}
		at, found, err := tailOffset(l.files[i], max(0, fi.Size()-back), fi.Size(), &n)
		if err != nil {
			return err
		}
		if found {
			for _, f := range l.files[:i] {
				f.Close()
			}
			l.files, l.offset = l.files[i:], at
			return nil
		}
	}
	return nil
}

// tailOffset looks for the n-th line end from behind, no further than first; a line end at the very end of the file ends the last line. What it counts
// is taken off n.
func tailOffset(f io.ReaderAt, first, size int64, n *int) (int64, bool, error) {
	buf := make([]byte, 32<<10)
	for end := size; end > first; {
		start := max(first, end-int64(len(buf)))
		chunk := buf[:end-start]
		if _, err := f.ReadAt(chunk, start); err != nil && err != io.EOF {
			return 0, false, err
		}
		for {
			i := bytes.LastIndexByte(chunk, '\n')
			if i < 0 {
				break
			}
			if at := start + int64(i) + 1; at < size {
				if *n--; *n == 0 {
					return at, true, nil
				}
			}
			chunk = chunk[:i]
		}
		end = start
	}
	if first > 0 {
		return first, true, nil
	}
	if size > 0 {
		if *n--; *n == 0 { // the file's first line
			return 0, true, nil
		}
	}
	return 0, false, nil
}
