package remote_test

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/remote"
)

// A hostile host's answer is refused by its size and by what it would decode to, before it is decoded.
func TestAHostileAnswerIsBounded(t *testing.T) {
	for name, tt := range map[string]struct{ begin, item, end, want string }{
		"as much as is read": {`{"host":"`, "aaaaaaaaaaaaaaaa", `"}`, "more than 16777216 bytes"},
		"empty objects":      {`{"ports":[{}`, ",{}", `]}`, "more than 200000 objects or 2000000 values"},
		"empty words":        {`{"x":[1`, ",1", `]}`, "more than 200000 objects or 2000000 values"},
		"an honest one":      {`{"host":"evil","ports":[{}`, "", `]}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := 0
			if tt.item != "" {
				n = 16 << 20 / len(tt.item)
			}
			if strings.HasPrefix(tt.want, "more than 200000") {
				n -= 100 // in the bound of bytes
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var protocols http.Protocols
			protocols.SetUnencryptedHTTP2(true)
			s := &http.Server{Protocols: &protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte(tt.begin + strings.Repeat(tt.item, n) + tt.end)) // the manager may hang up
			})}
			go func() { _ = s.Serve(l) }()
			defer s.Close()
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			c := remote.Dial("evil", conn)
			defer c.Close()
			out, err := c.Counters(t.Context())
			if tt.want == "" {
				if err != nil || len(out.Ports) != 1 {
					t.Errorf("%+v, %v", out, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "host evil") {
				t.Errorf("%d ports, error %v", len(out.Ports), err)
			}
		})
	}
}

// An agent of a version before a question says so in words that help.
func TestAnOlderAgentCannotBeAskedEverything(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Protocols: &protocols, Handler: http.NewServeMux()}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := remote.Dial("old", conn)
	defer c.Close()
	_, _, state := c.State(t.Context(), "f", "uid")
	_, flows := c.Flows(t.Context(), "f", api.FlowOptions{})
	for _, err := range []error{state, flows} {
		var p *api.ProblemError
		if !errors.As(err, &p) || p.Status != http.StatusConflict || !strings.Contains(err.Error(), `the agent of host "old" is of a version that cannot be asked for this: upgrade it`) {
			t.Error(err)
		}
	}
}
