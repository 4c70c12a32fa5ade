package ovsdb_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"weir.dev/weir/ovsdb"
)

// heard is what a client made of a server's words.
type heard struct {
	Rows []ovsdb.Row
	Call string // why the transaction failed
	End  error
}

// hear lets a server say something after the client's first request, which has the id 1 and asks for rows, in pieces of some bytes.
func hear(t *testing.T, words []byte, piece int) heard {
	t.Helper()
	near, far := ends(t)
	defer far.Close()
	c := ovsdb.New(pieces{near, piece}, ovsdb.Options{MaxMessage: 1 << 20})
	defer c.Close()
	go func() {
		var request json.RawMessage
		if json.NewDecoder(far).Decode(&request) != nil {
			return
		}
		answers := make(chan struct{}) // to echo requests
		go func() { defer close(answers); _, _ = io.Copy(io.Discard, far) }()
		_, _ = far.Write(words)
		_ = far.CloseWrite() // and goes on to listen
		<-answers
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var h heard
	if res, err := c.Transact(ctx, "db", ovsdb.Select{Table: "Bridge"}); err != nil {
		h.Call = err.Error()
	} else {
		h.Rows = res[0].Rows
	}
	select {
	case <-c.Done():
	case <-ctx.Done():
		t.Fatal("the connection does not end with its server")
	}
	for _, end := range []error{ovsdb.ErrMalformed, ovsdb.ErrClosed} {
		if errors.Is(c.Err(), end) {
			h.End = end
			return h
		}
	}
	t.Fatalf("it ended for a reason that callers cannot tell: %v", c.Err())
	return h
}

// Whatever a server says, in whichever pieces it comes, the client makes the same of it and ends with the connection.
func FuzzStream(f *testing.F) {
	for _, s := range []string{
		`{"id":1,"error":null,"result":[{"rows":[{"name":"x"}]}]}{"id":null,"method":"update","params":["m1",{"Bridge":{"a":{"old":{"name":"x"}}}}]}`,
		`{"id":7,"method":"echo","params":[1]}{"id":1,"error":null,"result":[{}]} {"method":"update","params":["m9",{}]}`,
		`{"id":1,"error":{"error":"unknown database"},"result":null}`, `{"id":1,"result":{}}`, `{"id":1}`, `{"id":"1"}`, `{"id":1,"result":[`, `]`, ``,
		`{"id":1,"result":[{"error":"syntax error","details":"d"}]}{"method":"update"}`, `{"id":1,"result":[{"rows":[{"c":["set",[["set",[]]]]}]}]}`,
		`{"method":"stolen","params":["x"]}{"id":1,"result":[null]}`, `{"id":1,"result":[{"uuid":["uuid","a"]}]}{"id":1,"result":[]}`,
	} {
		f.Add([]byte(s), 1)
		f.Add([]byte(s), 7)
	}
	f.Fuzz(func(t *testing.T, words []byte, piece int) {
		if piece < 1 || len(words) > 1<<16 {
			return
		}
		whole := hear(t, words, len(words)+1)
		if diff := cmp.Diff(whole, hear(t, words, piece), cmp.Comparer(func(a, b error) bool { return errors.Is(a, b) })); diff != "" {
			t.Errorf("in pieces of %d bytes (-whole +pieces):\n%s", piece, diff)
		}
	})
}

// pieces is a connection that gives few bytes at a time.
type pieces struct {
	net.Conn
	n int
}

func (p pieces) Read(b []byte) (int, error) { return p.Conn.Read(b[:min(len(b), p.n)]) }

// ends are both ends of a connection.
func ends(t *testing.T) (near, far *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var both [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "stream")
		c, err := net.FileConn(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		both[i] = c.(*net.UnixConn)
	}
	return both[0], both[1]
}
