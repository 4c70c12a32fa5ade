package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
	"weir.dev/weir/netns"
)

// TestRealTraffic: many clients of the kernel's TCP at once, on lines that lose and swap frames. What is allowed comes whole, what is forbidden never does.
func TestRealTraffic(t *testing.T) {
	for name, loss := range map[string]int{"clean": 0, "lossy": 50} { // one frame in so many is lost, another comes late
		t.Run(name, func(t *testing.T) {
			r := rig.New(t, false)
			cfg, err := parseConfig([]byte(rules + "}"))
			must(t, err)
			var frames *nf.Frames
			x, err := newFilter(cfg, func(d nf.Dir, f nf.Frame) { frames.Send(d, f) }, func(string, string) {}, time.Now())
			must(t, err)
			random := rand.New(rand.NewPCG(1, uint64(loss)))
			var late [2]*nf.Frame
			handle := func(d nf.Dir, f nf.Frame) nf.Verdict {
				if loss > 0 {
					switch random.IntN(loss) {
					case 0:
						return nf.Drop
					case 1:
						if late[d] == nil {
							c := f.Clone()
							late[d] = &c
							return nf.Drop
						}
					}
				}
				v := x.frame(d, f)
				if l := late[d]; l != nil {
					late[d] = nil
					if v == nf.Pass { // in its place
						frames.Send(d, f.Clone())
					}
					if x.frame(d, *l) == nf.Pass {
						frames.Send(d, *l)
					}
					return nf.Drop
				}
				return v
			}
			r.Do(r.Netns, func() (err error) {
				frames, err = nf.OpenFrames(nf.Options{Handle: handle, Tick: x.tick, Probe: rig.WriteProbe(t, t.TempDir())})
				return err
			})
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- frames.Run(ctx) }()
			defer func() {
				stop()
				must(t, <-ended)
				t.Logf("%+v; at most %d bytes now", x.count, x.budget.Used)
				frames.Close()
			}()
			var l net.Listener
			r.Do(r.Server.Netns, func() (err error) { l, err = net.Listen("tcp4", "10.77.0.2:80"); return err })
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				body, err := io.ReadAll(q.Body)
				if err != nil {
					return
				}
				if strings.Contains(q.URL.Path, "evil") {
					body = append(body, "what is forbidden"...)
				}
				_, _ = w.Write(body)
			}))
			s.Listener.Close()
			s.Listener = l
			s.Start()
			defer s.Close()
			client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 8, DialContext: func(ctx context.Context, _, addr string) (c net.Conn, err error) {
				err = netns.Do(r.Client.Netns, func() error { c, err = (&net.Dialer{}).DialContext(ctx, "tcp4", addr); return err })
				return c, err
			}}}
			defer client.CloseIdleConnections()
			var fine, stopped atomic.Int64
			var wg sync.WaitGroup
			for worker := range 8 {
				wg.Go(func() {
					body := make([]byte, 100_000)
					_, _ = rand.NewChaCha8([32]byte{byte(worker)}).Read(body)
					want := sha256.Sum256(body)
					for i := range 4 {
						path := []string{"/", "/", "/evil", "/secret"}[i%4]
						answer, err := client.Post("http://10.77.0.2"+path, "application/octet-stream", bytes.NewReader(body))
						var got []byte
						if err == nil {
							got, err = io.ReadAll(answer.Body)
							answer.Body.Close()
						}
						switch {
						case bytes.Contains(got, []byte("forbidden")):
							t.Errorf("%s came", path)
						case path == "/" && (err != nil || sha256.Sum256(got) != want):
							t.Errorf("%s: %d bytes, %v", path, len(got), err)
						case path == "/":
							fine.Add(1)
						case err != nil && !errors.Is(err, context.DeadlineExceeded) || err == nil && answer.StatusCode == 403:
							stopped.Add(1)
						default:
							t.Errorf("%s: %d bytes, %v", path, len(got), err)
						}
					}
				})
			}
			wg.Wait()
			if got := fmt.Sprint(fine.Load(), stopped.Load()); got != "16 16" {
				t.Errorf("fine, stopped: %s of 16 each", got)
			}
		})
	}
}
