package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"weir.dev/weir/catalogue/rig"
)

// BenchmarkRequests measures requests of one client on one connection, through the function: answers that are kept (hit), that are not (miss), and the same server
// at a port that passes nginx by (past).
func BenchmarkRequests(b *testing.B) {
	root := rig.Mounted(b)
	r, _ := start(b, root, ``)
	serveSite(b, r, "80")
	serveSite(b, r, "8080")
	for name, url := range map[string]string{"hit": "http://" + server4 + "/keep", "miss": "http://" + server4 + "/plain", "past": "http://" + server4 + ":8080/plain"} {
		b.Run(name, func(b *testing.B) {
			transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				return r.Client.Dial(ctx, network, addr)
			}}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport, Timeout: rig.Patience}
			for b.Loop() {
				resp, err := client.Get(url)
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
}
