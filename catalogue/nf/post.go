package nf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

const (
	postTimeout = time.Second
	maxAnswer   = 4 << 10 // bytes of an answer that are read
	maxWhy      = 256     // bytes of a refusal that are quoted
)

// post to one of the platform's sockets. It speaks HTTP/1.0: then the answer is not chunked, and ends with the connection. That is all that is needed here, and net/http would
// be a third of a small function's program.
func post(ctx context.Context, socket, kind string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	request := fmt.Appendf(nil, "POST / HTTP/1.0\r\nHost: weir\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", kind, len(body), body)
	_, unsent := c.Write(request)
	answer, err := io.ReadAll(io.LimitReader(c, maxAnswer))
	switch {
	case len(answer) > 0 && ctx.Err() == nil: // who refuses a part need not take the rest
		return refusal(answer)
	case unsent != nil:
		return fmt.Errorf("post to %s: %w", socket, errors.Join(unsent, ctx.Err()))
	case err != nil:
		return fmt.Errorf("answer of %s: %w", socket, errors.Join(err, ctx.Err()))
	}
	return refusal(answer)
}

// refusal is nil if an answer says that all is well.
func refusal(answer []byte) error {
	head, why, whole := bytes.Cut(answer, []byte("\r\n\r\n"))
	status, _, _ := strings.Cut(string(head), "\r\n")
	version, status, _ := strings.Cut(status, " ")
	code, _, _ := strings.Cut(status, " ")
	switch n, err := strconv.Atoi(code); {
	case !whole || err != nil || !strings.HasPrefix(version, "HTTP/1."):
		return fmt.Errorf("answer %.40q: want HTTP/1 with a status", answer)
	case n >= 300:
		return fmt.Errorf("answer %s: %s", status, bytes.TrimSpace(why[:min(len(why), maxWhy)]))
	}
	return nil
}
