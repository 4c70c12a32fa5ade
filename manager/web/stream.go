package web

import (
	"io"
	"net/http"
	"time"

	"weir.dev/weir/api"
)

// Flushing sends each piece at once.
func Flushing(w http.ResponseWriter) io.Writer { return flushing{w, http.NewResponseController(w)} }

type flushing struct {
	w io.Writer
	c *http.ResponseController
}

func (f flushing) Write(p []byte) (int, error) {
	if err := f.c.SetWriteDeadline(time.Now().Add(WriteTimeout)); err != nil {
		return 0, err
	}
	n, err := f.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, f.c.Flush()
}

// Slots bound how many do something at once.
type Slots chan struct{}

// Take takes a slot, or refuses.
func (s Slots) Take(what string) (release func(), err error) {
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	default:
		return nil, api.Refuse(http.StatusServiceUnavailable, "too many "+what+" at once: close some or try again later")
	}
}
