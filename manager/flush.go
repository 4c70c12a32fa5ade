package manager

import (
	"io"
	"net/http"
	"time"

	"weir.dev/weir/api"
)

// flushing sends each piece at once.
type flushing struct {
	w io.Writer
	c *http.ResponseController
}

func (f flushing) Write(p []byte) (int, error) {
	if err := f.c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	n, err := f.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, f.c.Flush()
}

// acquire takes a slot of a bounded resource, or refuses.
func acquire(slots chan struct{}, what string) (release func(), err error) {
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	default:
		return nil, api.Refuse(http.StatusServiceUnavailable, "too many "+what+" at once: close some or try again later")
	}
}
