package store

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// etcdLogger passes etcd's errors to log, and turns what would end the process into a fault of the store.
func etcdLogger(log *slog.Logger, f *fault) *zap.Logger {
	stop := stopHook{f}
	return zap.New(zapCore{log: log}, zap.WithFatalHook(stop), zap.WithPanicHook(stop))
}

// stopHook ends only the goroutine that logged. The server is unusable from then on.
type stopHook struct{ f *fault }

func (h stopHook) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	text := e.Message + fieldText(fields)
	advice := "start weir again: traffic goes on meanwhile, and nothing that was acknowledged is lost"
	if strings.Contains(text, syscall.ENOSPC.Error()) {
		h.f.set(fmt.Errorf("%w: %w: etcd: %s: free some space, then %s", ErrStopped, ErrFull, text, advice))
	}
	if strings.Contains(text, syscall.EROFS.Error()) || strings.Contains(text, syscall.EIO.Error()) {
		advice = "make the file system writable again (see dmesg: its disk may have errors), then " + advice
	}
	h.f.set(fmt.Errorf("%w: etcd: %s: %s", ErrStopped, text, advice))
	runtime.Goexit()
}

func fieldText(fields []zapcore.Field) string {
	text := ""
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			text += ": " + err.Error()
		}
	}
	return text
}

// harmless are errors of etcd's that mean nothing: a stop, and a store too young to have a snapshot. Real failures come out of the
// server's Err too.
var harmless = [...]string{"setting up serving from embedded etcd failed.", "failed to update storage version"}

// zapCore is a zap core over slog, from errors up: etcd warns much.
type zapCore struct {
	log    *slog.Logger
	fields []zapcore.Field
}

func (c zapCore) Enabled(l zapcore.Level) bool { return l >= zapcore.ErrorLevel }

func (c zapCore) With(fields []zapcore.Field) zapcore.Core {
	return zapCore{c.log, append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

func (c zapCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c zapCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range c.fields {
		f.AddTo(enc)
	}
	for _, f := range fields {
		f.AddTo(enc)
	}
	attrs := make([]slog.Attr, 0, len(enc.Fields)+1)
	attrs = append(attrs, slog.String("component", "etcd"))
	for k, v := range enc.Fields {
		attrs = append(attrs, slog.Any(k, v))
	}
	level := slog.LevelError
	if slices.Contains(harmless[:], e.Message) {
		level = slog.LevelDebug
	}
	c.log.LogAttrs(context.Background(), level, e.Message, attrs...)
	return nil
}

func (c zapCore) Sync() error { return nil }
