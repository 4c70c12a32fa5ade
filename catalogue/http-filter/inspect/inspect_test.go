package inspect

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"pgregory.net/rapid"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var rules = []Rule{
	{Name: "host", Hosts: []string{"bad.example", "*.bad.example", "Bücher.example"}},
	{Name: "path", Hosts: []string{"good.example"}, Paths: []string{"/secret*", "*/admin", "/q?x=1*"}},
	{Name: "method", Hosts: []string{"good.example"}, Methods: []string{"delete"}, Action: Reset},
	{Name: "word", Words: []string{"forbidden", "Straße"}},
	{Name: "answer", Words: []string{"onlyhere"}, Direction: "response"},
	{Name: "question", Words: []string{"askedfor"}, Direction: "request", Page: "<p>no</p>"},
}

func policy(t testing.TB, o Options) *Policy {
	t.Helper()
	p, err := NewPolicy(rules, o)
	must(t, err)
	return p
}

var closed = Options{NoName: Reset, Undecodable: Reset}

// step is what one side sends.
type step struct {
	side Side
	text string
}

func c(text string) step { return step{Client, text} }
func s(text string) step { return step{Server, text} }

// play feeds steps in pieces of some length, and tells what ended it, and in which step.
func play(t testing.TB, p *Policy, piece int, steps ...step) (*Block, int) {
	t.Helper()
	budget := &Budget{Limit: 1 << 20}
	conn := p.NewConn(budget, netip.MustParseAddr("10.0.0.2"))
	defer func() {
		conn.Close()
		if budget.Used != 0 {
			t.Errorf("%d bytes of the budget are not given back", budget.Used)
		}
	}()
	for i, s := range steps {
		for b := []byte(s.text); len(b) > 0; {
			n := min(len(b), piece)
			if err := conn.Feed(s.side, b[:n]); err != nil {
				var block *Block
				if !errors.As(err, &block) {
					t.Fatal(err)
				}
				return block, i
			}
			if k := min(conn.Skip(s.side), uint64(len(b)-n)); k > 0 { // as the stream does with what need not be looked at
				conn.Skipped(s.side, k)
				n += int(k)
			}
			b = b[n:]
		}
	}
	return nil, -1
}

func gzipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

func zlibbed(text string) string {
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

func deflated(text string) string {
	var b bytes.Buffer
	w, _ := flate.NewWriter(&b, 6)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

const get = "GET / HTTP/1.1\r\nHost: good.example\r\n\r\n"

func answer(header, body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s", header, len(body), body)
}

func chunked(parts ...string) string {
	out := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, p := range parts {
		out += fmt.Sprintf("%x;ext=\"forbidden\"\r\n%s\r\n", len(p), p)
	}
	return out + "0\r\nX: y\r\n\r\n"
}

func ask(line string, headers ...string) step {
	return c(line + "\r\nHost: good.example\r\n" + strings.Join(append(headers, ""), "\r\n") + "\r\n")
}

func post(headers, body string) step {
	return c(fmt.Sprintf("POST /form HTTP/1.1\r\nHost: good.example\r\n%sContent-Length: %d\r\n\r\n%s", headers, len(body), body))
}

func wide(text string) string {
	var out []byte
	for _, b := range []byte(text) {
		out = append(out, b, 0)
	}
	return string(out)
}

// TestHTTP1 plays conversations in pieces of all kinds. want is the rule, or a part of the reason, that ends it in the last step; "" lets all pass.
func TestHTTP1(t *testing.T) {
	ok := s(answer("", "fine"))
	for name, x := range map[string]struct {
		want  string
		steps []step
	}{
		"allowed":                   {"", []step{c(get), ok, c(get), ok}},
		"host":                      {"host", []step{c("GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n")}},
		"host in capitals":          {"host", []step{c("GET / HTTP/1.1\r\nhOST:\tBAD.example.:80 \r\n\r\n")}},
		"name below":                {"host", []step{c("GET / HTTP/1.1\r\nHost: a.b.bad.example\r\n\r\n")}},
		"host with two ports":       {"host", []step{c("GET / HTTP/1.1\r\nHost: bad.example:80:80\r\n\r\n")}},
		"long address":              {"address of more", []step{c("GET /" + strings.Repeat("x", 20000) + " HTTP/1.1\r\n\r\n")}},
		"another name":              {"", []step{c("GET / HTTP/1.1\r\nHost: notbad.example\r\n\r\n"), ok}},
		"IDN":                       {"host", []step{c("GET / HTTP/1.1\r\nHost: xn--bcher-kva.example\r\n\r\n")}},
		"IDN raw":                   {"host", []step{c("GET / HTTP/1.1\r\nHost: bücher.example\r\n\r\n")}},
		"host escaped":              {"host", []step{c("GET / HTTP/1.1\r\nHost: b%61d.example\r\n\r\n")}},
		"user before the host":      {"host", []step{c("GET http://u:p@bad.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n")}},
		"absolute form":             {"host", []step{c("GET HTTP://bad.example HTTP/1.1\r\nHost: good.example\r\n\r\n")}},
		"absolute form, path":       {"path", []step{c("GET http://good.example/secret HTTP/1.1\r\nHost: x\r\n\r\n")}},
		"two hosts":                 {"host", []step{c("GET / HTTP/1.1\r\nHost: good.example\r\nHost: bad.example\r\n\r\n")}},
		"folded host":               {"folded", []step{c("GET / HTTP/1.1\r\nHost:\r\n bad.example\r\n\r\n")}},
		"space before colon":        {"header line", []step{c("GET / HTTP/1.1\r\nHost : bad.example\r\n\r\n")}},
		"bare line feeds":           {"host", []step{c("GET / HTTP/1.1\nHost: bad.example\n\n")}},
		"bare CR":                   {"header line", []step{c("GET / HTTP/1.1\r\nX: y\rHost: bad.example\r\n\r\n")}},
		"NUL":                       {"header line", []step{c("GET / HTTP/1.1\r\nHost: bad\x00.example\r\n\r\n")}},
		"empty lines before":        {"host", []step{c("\r\n\r\nGET / HTTP/1.1\r\nHost: bad.example\r\n\r\n")}},
		"many line feeds before":    {"host", []step{c(strings.Repeat("\n", 129)), c("GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n")}},
		"only blanks before":        {"host", []step{c(strings.Repeat(" \t\v\f\r\n", 20000)), c("GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n")}},
		"empty lines between":       {"host", []step{c(get), ok, c(strings.Repeat("\r\n", 70000)), c("GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n")}},
		"blanks before binary":      {"", []step{c("\r\n\x00forbidden")}},
		"long method":               {"request line", []step{c(strings.Repeat("A", 129) + " / HTTP/1.1\r\nHost: bad.example\r\n\r\n")}},
		"method of 128 bytes":       {"host", []step{c(strings.Repeat("A", 128) + " / HTTP/1.1\r\nHost: bad.example\r\n\r\n")}},
		"very long method":          {"request line", []step{c(strings.Repeat("A", 60000) + " / HTTP/1.1\r\nHost: bad.example\r\n\r\n")}},
		"long word":                 {"", []step{c(strings.Repeat("A", 60000) + "\r\nforbidden")}},
		"lines end with CR":         {"request line", []step{c("GET /secret HTTP/1.1\rH")}},
		"later lines end with CR":   {"header line", []step{c("GET /secret HTTP/1.1\r\nHost: good.example\r\r")}},
		"spaces of Latin-1":         {"request line", []step{c("GET\x1c/secret\x1fHTTP/1.1\r\n")}},
		"no-break spaces":           {"request line", []step{c("\xa0GET\xa0/secret\x85HTTP/1.1\r\n")}},
		"no-break space behind":     {"request line", []step{c("GET /secret\xa0 HTTP/1.1\r\n")}},
		"UTF-8 with a byte of it":   {"", []step{ask("GET /voil\u00e0 HTTP/1.1"), ok}},
		"control in the address":    {"request line", []step{c("GET /secret\x01 HTTP/1.1\r\n")}},
		"control in a header":       {"header line", []step{c("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \x0bchunked\r\n\r\n")}},
		"no-break space in TE":      {"Transfer-Encoding", []step{c("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\u00a0\r\n\r\n")}},
		"next line in a length":     {"Content-Length", []step{c("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\u0085\r\n\r\n")}},
		"control in an answer":      {"header line", []step{c(get), s("HTTP/1.1 200 OK\r\nTransfer-Encoding: \fchunked\r\n\r\n")}},
		"strange space in a status": {"word", []step{c(get), s("HTTP/1.1\u00a0204 200 OK\r\n\r\nforbidden")}},
		"folded answer":             {"word", []step{c(get), s(answer("X: y\r\n z\r\nContent-Encoding:\r\n\tgzip\r\n", gzipped("forbidden")))}},
		"much folded answer":        {"folded", []step{c(get), s("HTTP/1.1 200 OK\r\nX: y\r\n" + strings.Repeat(" z\r\n", 101) + "\r\n")}},
		"long host":                 {"host of more", []step{c("GET / HTTP/1.1\r\nHost: " + strings.Repeat("ä", 600) + "\r\n\r\n")}},
		"long host, old":            {"host of more", []step{c("GET http://" + strings.Repeat("ä", 600) + "/\r\n")}},
		"long host, absolute":       {"host of more", []step{c("GET http://" + strings.Repeat("ä", 600) + " HTTP/1.1\r\n\r\n")}},
		"long host, CONNECT":        {"host of more", []step{c("CONNECT " + strings.Repeat("ä", 600) + ":80 HTTP/1.1\r\n\r\n")}},
		"many hosts":                {"hosts", []step{c("GET / HTTP/1.1\r\n" + strings.Repeat("Host: x\r\n", 9) + "\r\n")}},
		"tabs":                      {"host", []step{c("GET\t/\tHTTP/1.1\r\nHost: bad.example\r\n\r\n")}},
		"tabs, far apart":           {"host", []step{c("GET\t/" + strings.Repeat("x", 300) + "\tHTTP/1.1\r\nHost: bad.example\r\n\r\n")}},
		"space in the path":         {"request line", []step{c("GET /a /secret HTTP/1.1\r\n")}},
		"HTTP/0.9":                  {"path", []step{c("GET http://good.example/secret\r\n")}},
		"HTTP/0.9 answer":           {"word", []step{c("GET /old\r\n"), s("forbidden")}},
		"HTTP/1.0 without host":     {"", []step{c("GET /secret HTTP/1.0\r\n\r\n"), ok}},
		"path":                      {"path", []step{ask("GET /secret/x HTTP/1.1")}},
		"path in capitals":          {"path", []step{ask("GET /SeCret HTTP/1.1")}},
		"path escaped":              {"path", []step{ask("GET /%73ecret HTTP/1.1")}},
		"path escaped twice":        {"path", []step{ask("GET /%2573ecret HTTP/1.1")}},
		"dots":                      {"path", []step{ask("GET /a/../secret HTTP/1.1")}},
		"escaped dots":              {"path", []step{ask("GET /a/%2e%2e%2fsecret HTTP/1.1")}},
		"slashes":                   {"path", []step{ask("GET ///secret HTTP/1.1")}},
		"backslash":                 {"path", []step{ask(`GET /a\..\secret HTTP/1.1`)}},
		"parameters":                {"path", []step{ask("GET /x;y/../secret;a=b HTTP/1.1")}},
		"path's end":                {"path", []step{ask("GET /x/admin?y HTTP/1.1")}},
		"query":                     {"path", []step{ask("GET /q?x=1%32 HTTP/1.1")}},
		"other query":               {"", []step{ask("GET /q?x=2 HTTP/1.1"), ok}},
		"other host's path":         {"", []step{c("GET /secret HTTP/1.1\r\nHost: other\r\n\r\n"), ok}},
		"method":                    {"method", []step{ask("DELETE /x HTTP/1.1")}},
		"second request":            {"path", []step{c(get), ok, ask("GET /secret HTTP/1.1")}},
		"pipelined":                 {"path", []step{c(get + get + "GET /secret HTTP/1.1\r\nHost: good.example\r\n\r\n")}},
		"word in the path":          {"word", []step{ask("GET /FORbidden HTTP/1.1")}},
		"word in the query":         {"word", []step{ask("GET /?a=f%6frbidden HTTP/1.1")}},
		"word in the content":       {"word", []step{post("", "this is forbidden")}},
		"other case":                {"word", []step{post("", "this is STRASSE"), ok, post("", "STRAßE, straße")}},
		"word escaped":              {"word", []step{post("", "a=for%62idde%6E&b")}},
		"word with spaces":          {"", []step{post("", "for bidden"), ok}},
		"word in UTF-16":            {"word", []step{post("", wide("forbidden"))}},
		"word in chunks":            {"word", []step{ask("POST / HTTP/1.1", "Transfer-Encoding: chunked"), c("3\r\nfor\r\n"), c("5\r\nbidde\r\n"), c("1\r\nn\r\n")}},
		"word in gzip":              {"word", []step{post("Content-Encoding: gzip\r\n", gzipped("forbidden"))}},
		"answer's word":             {"word", []step{c(get), s(answer("", "it is forbidden"))}},
		"answer in chunks":          {"word", []step{c(get), s(chunked("it is for", "bidden"))}},
		"only in answers":           {"answer", []step{post("", "onlyhere"), s(answer("", "onlyhere"))}},
		"only in requests":          {"", []step{c(get), s(answer("", "askedfor"))}},
		"answer in gzip":            {"word", []step{c(get), s(answer("Content-Encoding: gzip\r\n", gzipped(strings.Repeat("x", 100000)+"forbidden")))}},
		"answer in zlib":            {"word", []step{c(get), s(answer("Content-Encoding: deflate\r\n", zlibbed("forbidden")))}},
		"answer in raw deflate":     {"word", []step{c(get), s(answer("Content-Encoding: deflate\r\n", deflated("forbidden")))}},
		"coded twice":               {"word", []step{c(get), s(answer("Content-Encoding: gzip, gzip\r\n", gzipped(gzipped("forbidden"))))}},
		"second member":             {"word", []step{c(get), s(answer("Content-Encoding: gzip\r\n", gzipped("x")+gzipped("forbidden")))}},
		"behind gzip":               {"word", []step{c(get), s(answer("Content-Encoding: gzip\r\n", gzipped("x")+"forbidden"))}},
		"gzip in transfer":          {"word", []step{c(get), s("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n" + chunk(gzipped("forbidden")))}},
		"brotli":                    {"coded", []step{c(get), s(answer("Content-Encoding: br\r\n", "xxxx"))}},
		"no gzip":                   {"not coded", []step{c(get), s(answer("Content-Encoding: gzip\r\n", "forbidden"))}},
		"up to the end":             {"word", []step{c(get), s("HTTP/1.0 200 OK\r\n\r\nit is forbidden")}},
		"HEAD":                      {"", []step{c("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"), s("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"), c(get), ok}},
		"not modified":              {"", []step{c(get), s("HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n"), c(get), ok}},
		"100 continue":              {"word", []step{ask("PUT / HTTP/1.1", "Content-Length: 9", "Expect: 100-continue"), s("HTTP/1.1 100 Continue\r\n\r\n"), c("forbidden")}},
		"unasked":                   {"", []step{s("HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")}},
		"no header":                 {"word", []step{c(get), s("it is " + strings.Repeat("x", 30) + "forbidden")}},
		"short answer, no header":   {"word", []step{c(get), s("it is\n"), s("forbidden")}},
		"status line in lower case": {"status line", []step{c(get), s("http/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzipped("forbidden"))}},
		"junk before the status":    {"status line", []step{c(get), s("xxHTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzipped("forbidden"))}},
		"two lengths":               {"Content-Length", []step{c("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n")}},
		"signed length":             {"Content-Length", []step{c("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\n")}},
		"length and chunks":         {"Transfer-Encoding", []step{c("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n")}},
		"strange chunks":            {"Transfer-Encoding", []step{c("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n")}},
		"chunks not last":           {"Transfer-Encoding", []step{c("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n")}},
		"chunk's length":            {"length of a chunk", []step{c(get), s("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\n")}},
		"bare LF in a chunk":        {"line of a chunk", []step{c(get), s("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello")}},
		"long chunk":                {"chunk longer", []step{c(get), s("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhellox\r\n")}},
		"websocket":                 {"", []step{ask("GET /w HTTP/1.1", "Upgrade: websocket", "Connection: upgrade"), s("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x09forbidden"), c("\x81\x09forbidden")}},
		"upgrade refused":           {"path", []step{ask("GET /w HTTP/1.1", "Upgrade: h2c", "Connection: upgrade"), ok, ask("GET /secret HTTP/1.1")}},
		"refused before it ends":    {"path", []step{ask("PUT /w HTTP/1.1", "Upgrade: h2c", "Content-Length: 4"), ok, c("body"), ask("GET /secret HTTP/1.1")}},
		"upgrade not awaited":       {"before the answer", []step{ask("GET /w HTTP/1.1", "Upgrade: x"), c("GET /secret HTTP/1.1\r\n\r\n")}},
		"upgrade not asked for":     {"nobody asked", []step{c(get), s("HTTP/1.1 101 x\r\nUpgrade: websocket\r\n\r\n")}},
		"CONNECT":                   {"host", []step{c("CONNECT bad.example:443 HTTP/1.1\r\n\r\n")}},
		"TLS by upgrade":            {"host", []step{ask("OPTIONS * HTTP/1.1", "Upgrade: TLS/1.0", "Connection: upgrade"), s("HTTP/1.1 101 Switching Protocols\r\nUpgrade: TLS/1.0, HTTP/1.1\r\n\r\n"), c(helloFor(t, "www.bad.example"))}},
		"in a tunnel":               {"host", []step{c("CONNECT good.example:80 HTTP/1.1\r\n\r\n"), s("HTTP/1.1 200 OK\r\n\r\n"), c("GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n")}},
		"CONNECT not awaited":       {"before the answer", []step{c("CONNECT good.example:80 HTTP/1.1\r\n\r\n"), c("G")}},
		"SSH":                       {"", []step{s("SSH-2.0-x\r\n"), c("SSH-2.0-forbidden GET\r\n")}},
		"SMTP":                      {"", []step{s("220 mail\r\n"), c("EHLO forbidden\r\n")}},
		"RTSP":                      {"", []step{c("OPTIONS rtsp://bad.example/ RTSP/1.0\r\n"), c("forbidden")}},
		"RTSP without address":      {"", []step{c("OPTIONS * RTSP/1.0\r\n"), c("forbidden")}},
		"SIP":                       {"", []step{c("REGISTER sip:bad.example SIP/2.0\r\n"), c("forbidden")}},
		"other version":             {"request line", []step{c("GET /forbidden FOO/1.0\r\n")}},
		"other version, POST":       {"request line", []step{c("post http://x/ RTSP/1.0\r\n")}},
		"other version, OPTIONS":    {"request line", []step{c("OPTIONS /forbidden FOO/1.0\r\n")}},
		"binary":                    {"", []step{c("\x00\x01\x02forbidden"), s("forbidden")}},
		"long header":               {"header of more", []step{c("GET / HTTP/1.1\r\n" + strings.Repeat("X: y\r\n", 20000))}},
		"endless method":            {"request line", []step{c(strings.Repeat("A", 70000))}},
		"endless binary line":       {"", []step{c("\x1c\x01" + strings.Repeat("A", 70000))}},
		"binary behind a word":      {"", []step{c("A \x00\x01" + strings.Repeat("A", 70000)), c("forbidden")}},
		"endless first line":        {"request line", []step{c("GET /secret?" + strings.Repeat("A", 70000) + " HTTP/1.1\r\nHost: good.example\r\n\r\n")}},
		"endless line of a method":  {"header of more", []step{c(get), ok, c("GET /" + strings.Repeat("A", 70000))}},
		"header's word":             {"", []step{ask("GET / HTTP/1.1", "X: forbidden"), s(answer("X: forbidden\r\n", ""))}},
		"long content unread":       {"path", []step{c("POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100000) + "GET /secret HTTP/1.1\r\nHost: good.example\r\n\r\n")}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, piece := range []int{1, 2, 3, 7, 64, 1448, 1 << 20} {
				check(t, policy(t, closed), x.want, piece, x.steps)
			}
		})
	}
}

func check(t *testing.T, p *Policy, want string, piece int, steps []step) {
	t.Helper()
	block, at := play(t, p, piece, steps...)
	switch {
	case want == "" && block != nil:
		t.Errorf("pieces of %d: blocked in step %d: %+v", piece, at, block)
	case want != "" && block == nil:
		t.Errorf("pieces of %d: passes", piece)
	case want != "" && (block.Rule != want && !strings.Contains(block.Why, want) || at != len(steps)-1):
		t.Errorf("pieces of %d: blocked in step %d by %+v; want %q in the last", piece, at, block, want)
	}
}

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(s), s) }

// TestPages: there is one where the client takes it for the answer.
func TestPages(t *testing.T) {
	ok := s(answer("", "fine"))
	bad := c("GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n")
	for name, x := range map[string]struct {
		page  bool
		steps []step
	}{
		"first request":           {true, []step{bad}},
		"second request":          {true, []step{c(get), ok, bad}},
		"content":                 {true, []step{post("", "askedfor")}},
		"an answer is on its way": {false, []step{c(get), bad}},
		"in an answer":            {false, []step{c(get), s("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nxx"), bad}},
		"in an answer unread":     {false, []step{c(get), s("HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"), bad}},
		"word in an answer":       {false, []step{c(get), s(answer("", "forbidden"))}},
		"rule says reset":         {false, []step{ask("DELETE / HTTP/1.1")}},
	} {
		block, _ := play(t, policy(t, closed), 1<<20, x.steps...)
		if block == nil || (block.Page != nil) != x.page {
			t.Errorf("%s: %+v, want page: %t", name, block, x.page)
		}
	}
	block, _ := play(t, policy(t, closed), 5, post("", "askedfor"))
	if got := string(block.Page); !strings.Contains(got, "text/html") || !strings.HasSuffix(got, "Content-Length: 9\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n<p>no</p>") {
		t.Errorf("%q", got)
	}
}

// frames of HTTP/2 from one side.
type frames struct {
	bytes.Buffer
	framer  *http2.Framer
	encoder *hpack.Encoder
	block   bytes.Buffer
}

func newFrames(first string) *frames {
	f := &frames{}
	f.WriteString(first)
	f.framer = http2.NewFramer(f, nil)
	f.encoder = hpack.NewEncoder(&f.block)
	_ = f.framer.WriteSettings()
	return f
}

func (f *frames) headers(id uint32, end bool, pairs ...string) *frames {
	f.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		_ = f.encoder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	b := f.block.Bytes()
	half := len(b) / 2
	_ = f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b[:half], EndStream: end, PadLength: 3, Priority: http2.PriorityParam{Weight: 1}})
	_ = f.framer.WriteContinuation(id, true, b[half:])
	return f
}

func (f *frames) data(id uint32, end bool, text string) *frames {
	_ = f.framer.WriteDataPadded(id, end, []byte(text), []byte{0, 0, 0})
	return f
}

// take what was written.
func (f *frames) take() string {
	text := f.String()
	f.Reset()
	return text
}

func TestHTTP2(t *testing.T) {
	get := []string{":method", "GET", ":scheme", "http", ":authority", "good.example", ":path", "/"}
	with := func(pairs ...string) []string {
		out := append([]string{}, get...)
		for i := 0; i < len(pairs); i += 2 {
			found := false
			for j := 0; j < len(out); j += 2 {
				if out[j] == pairs[i] {
					out[j+1], found = pairs[i+1], true
				}
			}
			if !found {
				out = append(out, pairs[i], pairs[i+1])
			}
		}
		return out
	}
	for name, x := range map[string]struct {
		want  string
		steps func(client, server *frames) []step
	}{
		"allowed": {"", func(cl, se *frames) []step {
			return []step{c(cl.headers(1, true, get...).take()), s(se.headers(1, false, ":status", "200").data(1, true, "fine").take()), c(cl.headers(3, true, get...).take())}
		}},
		"host": {"host", func(cl, se *frames) []step {
			return []step{c(cl.headers(1, true, with(":authority", "bad.example:80")...).take())}
		}},
		"path": {"path", func(cl, se *frames) []step {
			return []step{c(cl.headers(1, true, with(":path", "/%73ecret")...).take())}
		}},
		"host field": {"host", func(cl, se *frames) []step {
			return []step{c(cl.headers(1, true, with("host", "bad.example")...).take())}
		}},
		"second stream": {"path", func(cl, se *frames) []step {
			return []step{c(cl.headers(1, true, get...).take()), c(cl.headers(3, true, with(":path", "/secret")...).take())}
		}},
		"content": {"word", func(cl, se *frames) []step {
			return []step{c(cl.headers(1, false, with(":method", "POST")...).data(1, false, "for").take()), c(cl.headers(3, true, get...).data(1, true, "bidden").take())}
		}},
		"answer in gzip": {"word", func(cl, se *frames) []step {
			z := gzipped("it is forbidden")
			return []step{c(cl.headers(1, true, get...).take()), s(se.headers(1, false, ":status", "200", "content-encoding", "gzip").data(1, false, z[:9]).take()), s(se.data(1, true, z[9:]).take())}
		}},
		"interim answer": {"word", func(cl, se *frames) []step {
			return []step{c(cl.headers(1, true, get...).take()), s(se.headers(1, false, ":status", "103").headers(1, false, ":status", "200").data(1, true, "forbidden").take())}
		}},
		"server first": {"path", func(cl, se *frames) []step {
			return []step{s(se.take()), c(cl.headers(1, true, with(":path", "/secret")...).take())}
		}},
		"pushed": {"path", func(cl, se *frames) []step {
			se.block.Reset()
			for i, p := 0, with(":path", "/secret"); i < len(p); i += 2 {
				_ = se.encoder.WriteField(hpack.HeaderField{Name: p[i], Value: p[i+1]})
			}
			_ = se.framer.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: se.block.Bytes(), EndHeaders: true})
			return []step{c(cl.headers(1, true, get...).take()), s(se.take())}
		}},
		"tunnel": {"tunnel", func(cl, se *frames) []step {
			return []step{c(cl.headers(1, false, ":method", "CONNECT", ":authority", "good.example:80").take())}
		}},
		"websocket": {"", func(cl, se *frames) []step {
			return []step{c(cl.headers(1, false, with(":method", "CONNECT", ":protocol", "websocket")...).take())}
		}},
		"long host": {"host of more", func(cl, se *frames) []step {
			return []step{c(cl.headers(1, true, with("host", strings.Repeat("ä", 600))...).take())}
		}},
		"many hosts": {"hosts", func(cl, se *frames) []step {
			return []step{c(cl.headers(1, true, append(append([]string{}, get...), strings.Split(strings.Repeat("host,x,", 8)+"x,y", ",")...)...).take())}
		}},
		"long method": {"method of more", func(cl, se *frames) []step {
			return []step{c(cl.headers(1, true, with(":method", strings.Repeat("A", 129))...).take())}
		}},
		"path twice": {"twice", func(cl, se *frames) []step {
			return []step{c(cl.headers(1, true, append(append([]string{}, get...), ":path", "/x")...).take())}
		}},
		"not compressed right": {"HTTP/2 header", func(cl, se *frames) []step {
			_ = cl.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true})
			return []step{c(cl.take())}
		}},
		"header breaks off": {"breaks off", func(cl, se *frames) []step {
			_ = cl.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}})
			_ = cl.framer.WritePing(false, [8]byte{})
			return []step{c(cl.take())}
		}},
		"blank before the preface": {"preface", func(cl, se *frames) []step { return []step{c("\n"), s(se.take())} }},
		"blank, then the preface":  {"request line", func(cl, se *frames) []step { return []step{c("\n"), c("PRI * HTTP/2.0\r\n")} }},
		"larger table": {"path", func(cl, se *frames) []step {
			cl.encoder.SetMaxDynamicTableSizeLimit(64 << 10)
			cl.encoder.SetMaxDynamicTableSize(1000)
			cl.encoder.SetMaxDynamicTableSize(64 << 10)
			cl.headers(1, true, with("x", strings.Repeat("y", 8000))...)
			return []step{c(cl.take()), c(cl.headers(3, true, with("x", strings.Repeat("y", 8000), ":path", "/secret")...).take())}
		}},
		"table too large": {"HTTP/2 header", func(cl, se *frames) []step {
			cl.encoder.SetMaxDynamicTableSizeLimit(1 << 20)
			cl.encoder.SetMaxDynamicTableSize(64<<10 + 1)
			return []step{c(cl.headers(1, true, get...).take())}
		}},
		"many fields": {"fields", func(cl, se *frames) []step {
			_ = cl.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: bytes.Repeat([]byte{0x82}, 1001), EndHeaders: true})
			return []step{c(cl.take())}
		}},
		"no preface": {"preface", func(cl, se *frames) []step { return []step{s(se.take()), c("GET / HTTP/1.1\r\n")} }},
		"upgraded, answer": {"word", func(cl, se *frames) []step {
			return []step{c("GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n\r\n"), s("HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n"), c(cl.take()), s(se.headers(1, false, ":status", "200").data(1, true, "forbidden").take())}
		}},
		"upgraded, next": {"path", func(cl, se *frames) []step {
			return []step{c("GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n\r\n"), s("HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n"), c(cl.headers(3, true, with(":path", "/secret")...).take())}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, piece := range []int{1, 3, 17, 1 << 20} {
				check(t, policy(t, closed), x.want, piece, x.steps(newFrames(preface), newFrames("")))
			}
		})
	}
	// The page is what another implementation reads.
	cl := newFrames(preface)
	block, _ := play(t, policy(t, closed), 1<<20, c(cl.headers(1, true, with(":path", "/secret")...).take()))
	framer := http2.NewFramer(nil, bytes.NewReader(block.Page))
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var got []string
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			break
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			got = append(got, f.PseudoValue("status"), f.Fields[1].Value, f.Fields[2].Value)
		case *http2.DataFrame:
			got = append(got, string(f.Data()))
		default:
			got = append(got, f.Header().Type.String())
		}
	}
	if want := "SETTINGS|403|text/plain; charset=utf-8|53|" + defaultPage + "|GOAWAY"; strings.Join(got, "|") != want {
		t.Errorf("%q, want %q", strings.Join(got, "|"), want)
	}
}

// helloFor is what a client sends first.
func helloFor(t testing.TB, name string) string {
	t.Helper()
	a, b := net.Pipe()
	go func() {
		_ = a.SetDeadline(time.Now().Add(time.Second))
		_ = tls.Client(a, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
		a.Close()
	}()
	defer b.Close()
	buf := make([]byte, 1<<16)
	n, err := io.ReadAtLeast(b, buf, recordHeader)
	must(t, err)
	length := recordHeader + int(buf[3])<<8 + int(buf[4])
	if n < length {
		_, err = io.ReadFull(b, buf[n:length])
		must(t, err)
	}
	return string(buf[:length])
}

// records cuts a handshake message into records of some length.
func records(hello string, size int) string {
	var out strings.Builder
	for msg := hello[recordHeader:]; msg != ""; {
		n := min(size, len(msg))
		out.WriteString("\x16\x03\x01" + string([]byte{byte(n >> 8), byte(n)}) + msg[:n])
		msg = msg[n:]
	}
	return out.String()
}

func TestTLS(t *testing.T) {
	bad, good, none := helloFor(t, "www.bad.example"), helloFor(t, "good.example"), helloFor(t, "")
	long, early := longer(extended(bad, 21, 5000), 65000), withExtension(good, 42)
	change, encrypted := "\x14\x03\x03\x00\x01\x01", "\x17\x03\x03\x00\x09forbidden"
	for name, x := range map[string]struct {
		want  string
		o     Options
		steps []step
	}{
		"allowed":                    {"", closed, []step{c(good), s("forbidden"), c(change + encrypted + "forbidden")}},
		"name":                       {"host", closed, []step{c(bad)}},
		"word in the name":           {"word", closed, []step{c(helloFor(t, "www.forbidden.example"))}},
		"many records":               {"host", closed, []step{c(records(bad, 3))}},
		"second hello":               {"host", closed, []step{c(good), s("retry"), c(change + bad)}},
		"long second hello":          {"host", closed, []step{c(good), s("retry"), c(change), c(records(long, 1<<14))}},
		"long second hello, no CCS":  {"host", closed, []step{c(good), s("retry"), c(records(long, 1<<14))}},
		"long first hello":           {"host", closed, []step{c(records(longer(extended(bad, 21, 60000), 65000), 1<<14))}},
		"many small records":         {"host", closed, []step{c(records(long, 1))}},
		"unreadable second hello":    {"cannot be read", closed, []step{c(good), c(change + "\x16\x03\x03\x00\x06\x01\x00\x00\x02\x03\x03")}},
		"ciphertext like a hello":    {"", closed, []step{c(good), c(change + "\x16\x03\x03\x00\x08\x01\xbb\xcc\xdd\xee\xff\x00\x01"), c(encrypted + "forbidden")}},
		"early data":                 {"host", closed, []step{c(early), c(change + encrypted), s("retry"), c(records(bad, 100))}},
		"early data, allowed":        {"", closed, []step{c(early), c(change + encrypted), s("yes"), c(encrypted)}},
		"heartbeat, second hello":    {"host", closed, []step{c(good), c("\x18\x03\x03\x00\x02xx"), c(bad)}},
		"data in the hello":          {"of type 23", closed, []step{c("\x16\x03\x01\x00\x01\x01" + encrypted[:recordHeader])}},
		"unknown type in the hello":  {"of type 99", closed, []step{c("\x16\x03\x01\x00\x01\x01" + "\x63\x03\x03\x00\x00")}},
		"heartbeat before the hello": {"of type 24", closed, []step{c("\x16\x03\x01\x00\x00" + "\x18\x03\x03\x00\x00")}},
		"alert first":                {"host", closed, []step{c("\x15\x03\x01\x00\x02\x01\x5a" + bad)}},
		"cipher change first":        {"host", closed, []step{c("\x14\x03\x01\x00\x01\x01" + bad)}},
		"data first":                 {"of type 23", closed, []step{c("\x17\x03\x03\x00\x01x")}},
		"long name":                  {"cannot be read", closed, []step{c(records(helloWith(good, strings.Repeat("a", 256)), 1<<14))}},
		"third hello":                {"", closed, []step{c(good), s("retry"), c(change + good + "forbidden, but nobody reads it" + bad)}},
		"many names":                 {"cannot be read", closed, []step{c(helloWith(good, strings.Split("a,b,c,d,e,f,g,h,i", ",")...))}},
		"strange version":            {"TLS record", closed, []step{c("\x16\x04" + bad[2:])}},
		"strange version, alert":     {"TLS record", closed, []step{c("\x15\x00\x01\x00\x02\x01\x5a" + bad)}},
		"like a hello":               {"", closed, []step{c("\x16\x00\x00\x00\x00\x00"), c("forbidden")}},
		"like an alert":              {"", closed, []step{c("\x15\x00\x00\x00\x00\x00"), c("forbidden")}},
		"alert before the hello":     {"host", closed, []step{c("\x16\x03\x01\x00\x00\x15\x03\x01\x00\x02\x01\x00" + bad)}},
		"no name":                    {"without a server name", closed, []step{c(none)}},
		"no name, allowed":           {"", Options{}, []step{c(none + change + encrypted)}},
		"old hello":                  {"without a server name", closed, []step{c("\x80\x2e\x01\x03\x01aaaaaaaa")}},
		"no hello":                   {"without a hello", closed, []step{c("\x16\x03\x01\x00\x04\x10\x00\x00\x00")}},
		"endless hello":              {"of more than", closed, []step{c("\x16\x03\x01\x00\x04\x01\xff\xff\xff")}},
		"broken hello":               {"cannot be read", closed, []step{c("\x16\x03\x01\x00\x06\x01\x00\x00\x02\x03\x03")}},
		"encrypted name":             {"encrypted", Options{Encrypted: Reset}, []step{c(withExtension(good, 0xfe0d))}},
		"outer name":                 {"host", Options{}, []step{c(withExtension(bad, 0xfe0d))}},
		"finished":                   {"", closed, []step{c(good), c("\x16\x03\x03\x00\x04\x10\x00\x00\x00" + change + "\x16\x03\x03\x00\x08\xaa\xbb\xcc\xdd\xee\xff\x00\x01")}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, piece := range []int{1, 3, 100, 1 << 20} {
				check(t, policy(t, x.o), x.want, piece, x.steps)
			}
		})
	}
}

// withExtension adds an empty extension to a hello.
func withExtension(hello string, kind uint16) string { return extended(hello, kind, 0) }

// longer makes it a hello with n bytes more of cipher suites, in one record whose length is of no use: records cuts it.
func longer(hello string, n int) string {
	at := recordHeader + 4 + 34
	at += 1 + int(hello[at])
	b := []byte(hello)
	grow(b, at, n, 2)
	grow(b, recordHeader+1, n, 3)
	return string(b[:at+2]) + strings.Repeat("\x00", n) + string(b[at+2:])
}

// extended adds an extension of n zero bytes to a hello.
func extended(hello string, kind uint16, n int) string {
	b := []byte(hello)
	at := recordHeader + 4 + 34
	at += 1 + int(b[at])
	at += 2 + int(b[at])<<8 + int(b[at+1])
	at += 1 + int(b[at])
	grow(b, at, 4+n, 2)
	grow(b, recordHeader+1, 4+n, 3)
	grow(b, 3, 4+n, 2)
	return string(b) + string([]byte{byte(kind >> 8), byte(kind), byte(n >> 8), byte(n)}) + strings.Repeat("\x00", n)
}

// helloWith adds server names to a hello, in an extension of their own.
func helloWith(hello string, names ...string) string {
	var list string
	for _, n := range names {
		list += string([]byte{0, byte(len(n) >> 8), byte(len(n))}) + n
	}
	list = string([]byte{byte(len(list) >> 8), byte(len(list))}) + list
	out := extended(hello, 0, len(list))
	return out[:len(out)-len(list)] + list
}

// grow a length of size bytes by n.
func grow(b []byte, at, n, size int) {
	for i := at + size - 1; i >= at; i-- {
		n += int(b[i])
		b[i], n = byte(n), n>>8
	}
}

func TestRulesAreChecked(t *testing.T) {
	for want, r := range map[string]Rule{
		"name: want":    {Hosts: []string{"x"}},
		"at least one":  {Name: "x"},
		"want a name":   {Name: "x", Hosts: []string{"a b"}},
		"stands only":   {Name: "x", Hosts: []string{"*.*.x"}},
		"at the begin":  {Name: "x", Paths: []string{"x"}},
		"direction":     {Name: "x", Paths: []string{"/"}, Direction: "up"},
		"action":        {Name: "x", Paths: []string{"/"}, Action: "drop"},
		"page":          {Name: "x", Paths: []string{"/"}, Page: strings.Repeat("x", 901)},
		"want 1 to 256": {Name: "x", Words: []string{""}},
		"a second rule": {Name: "double", Words: []string{"x"}},
		"words: ":       {Name: "x", Words: strings.Split(strings.Repeat("wordwordwordwordword,", 999)+"x", ",")},
	} {
		_, err := NewPolicy([]Rule{{Name: "double", Hosts: []string{"x"}}, r}, Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
}

// TestMemoryIsBounded: what fills it is refused, and a bomb ends early.
func TestMemoryIsBounded(t *testing.T) {
	p := policy(t, closed)
	conn := p.NewConn(&Budget{Limit: 4096}, netip.MustParseAddr("10.0.0.2"))
	var block *Block
	if err := conn.Feed(Client, []byte("GET / HTTP/1.1\r\nX: "+strings.Repeat("x", 10000))); !errors.As(err, &block) || !block.Full {
		t.Errorf("%v", err)
	}
	check(t, p, "too long", 1448, []step{c(get), s(answer("Content-Encoding: gzip\r\n", gzipped(strings.Repeat("x", 20<<20))))})
	bomb := gzipped(strings.Repeat("x", 30<<20))
	begin := time.Now()
	check(t, p, "too long", 1448, []step{c(get), s(answer("Content-Encoding: gzip, gzip\r\n", gzipped(bomb)))})
	t.Logf("a bomb of 30 MB: %v", time.Since(begin))
}

// TestBlanksAreNotKept: each new one would be looked at together with those before.
func TestBlanksAreNotKept(t *testing.T) {
	budget := &Budget{Limit: 1 << 20}
	conn := policy(t, closed).NewConn(budget, netip.MustParseAddr("10.0.0.2"))
	must(t, conn.Feed(Client, []byte(strings.Repeat("\r\n", 32768))))
	if budget.Used != 0 {
		t.Errorf("%d bytes are kept of blank lines", budget.Used)
	}
}

// TestHTTP2MemoryIsCounted: what connections hold after headers with many fields is at most what they took of the budget.
func TestHTTP2MemoryIsCounted(t *testing.T) {
	const conns = 20
	heap := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	text := "\x3f\xe1\xff\x03" // the table's size: 64 KB
	for i := range 900 {
		text += fmt.Sprintf("\x40\x02%c%c\x00", 'a'+i/26%26, 'a'+i%26) // each remembered
	}
	header := func(f *frames) string {
		_ = f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(text), EndHeaders: true})
		_ = f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte(strings.ToUpper(text[4:])), EndHeaders: true})
		_ = f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 5, BlockFragment: bytes.Repeat([]byte{0x90}, maxFields), EndHeaders: true})
		return f.take()
	}
	client, server := []byte(header(newFrames(preface))), []byte(header(newFrames("")))
	p, budget := policy(t, closed), &Budget{Limit: 1 << 30}
	before := heap()
	var all []*Conn
	for range conns {
		conn := p.NewConn(budget, netip.MustParseAddr("10.0.0.2"))
		must(t, conn.Feed(Client, client))
		must(t, conn.Feed(Server, server))
		all = append(all, conn)
	}
	if held := heap() - before; held > budget.Used {
		t.Errorf("a connection holds %d bytes, but counts %d", held/conns, budget.Used/conns)
	} else {
		t.Logf("a connection holds %d bytes, and counts %d", held/conns, budget.Used/conns)
	}
	runtime.KeepAlive(all)
}

func TestAlerts(t *testing.T) {
	var got []string
	p, err := NewPolicy([]Rule{{Name: "see", Words: []string{"look"}, Action: Alert}, {Name: "host", Hosts: []string{"x"}, Action: Alert}},
		Options{Alert: func(h Hit) { got = append(got, h.Rule+": "+h.Why) }})
	must(t, err)
	check(t, p, "", 3, []step{c("GET /look HTTP/1.1\r\nHost: x\r\n\r\n"), s(answer("", "look look"))})
	if want := "host: request|see: word in the address|see: word in the response's content"; strings.Join(got, "|") != want {
		t.Errorf("%q", got)
	}
}

// TestInflateIsImmediate: each byte comes out as soon as the standard library's decoder could know it, with the same result.
func TestInflate(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		text := make([]byte, random.IntN(200_000))
		for j := range text {
			text[j] = "abcdefgh        \n"[random.IntN(2+random.IntN(15))]
			if i%3 == 0 {
				text[j] = byte(random.Uint32())
			}
		}
		var b bytes.Buffer
		w, _ := flate.NewWriter(&b, i%11-1)
		for rest := text; len(rest) > 0; {
			n := min(len(rest), 1+random.IntN(50_000))
			_, _ = w.Write(rest[:n])
			rest = rest[n:]
			if i%2 == 0 {
				_ = w.Flush()
			}
		}
		_ = w.Close()
		got, err := inflated(b.Bytes(), false, func() int { return 1 + random.IntN(2000) })
		if err != nil || !bytes.Equal(got, text) {
			t.Fatalf("%d: %d of %d bytes, %v", i, len(got), len(text), err)
		}
	}
	z := gzipped("forbidden" + strings.Repeat("x", 1000))
	if got, err := inflated([]byte(z[:30]), true, func() int { return 1 }); err != nil || !strings.HasPrefix(string(got), "forbidden") {
		t.Errorf("of the first 30 bytes come %q, %v", got, err)
	}
}

type collected []byte

func (c *collected) write(p []byte) error { *c = append(*c, p...); return nil }

func inflated(b []byte, gzip bool, piece func() int) ([]byte, error) {
	var out collected
	left := 4 << 20
	work := 0
	z := &inflater{to: &out, gzip: gzip, left: &left, work: &work}
	for len(b) > 0 {
		n := min(len(b), piece())
		if err := z.write(b[:n]); err != nil {
			return out, err
		}
		b = b[n:]
	}
	return out, nil
}

// FuzzInflate compares with the standard library: what that decodes, we decode.
func FuzzInflate(f *testing.F) {
	f.Add([]byte(gzipped("hello hello hello")))
	f.Add([]byte(gzipped(strings.Repeat("abc", 1000)))[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := inflated(b, true, func() int { return 3 })
		again, err2 := inflated(b, true, func() int { return 1 << 20 })
		if (err == nil) != (err2 == nil) || err == nil && !bytes.Equal(got, again) {
			t.Errorf("pieces give %d bytes, %v; the whole %d, %v", len(got), err, len(again), err2)
		}
		r, bad := gzip.NewReader(bytes.NewReader(b))
		if bad != nil {
			return
		}
		want, bad := io.ReadAll(io.LimitReader(r, 1<<20))
		if len(want) < 1<<20 && (bad == nil || errors.Is(bad, io.ErrUnexpectedEOF)) && !bytes.HasPrefix(got, want) {
			t.Errorf("%d bytes, %v; want %d, %v", len(got), err, len(want), bad)
		}
	})
}

// FuzzConn: no input panics, leaks from the budget, or takes more than it has; and the pieces in which it comes change nothing.
func FuzzConn(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n"), []byte(answer("Content-Encoding: gzip\r\n", gzipped("forbidden"))))
	f.Add([]byte("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"), []byte(chunked("it is for", "bidden")))
	cl := newFrames(preface)
	f.Add([]byte(cl.headers(1, false, ":method", "GET", ":path", "/secret", ":authority", "x").data(1, true, "x").take()), []byte(newFrames("").headers(1, true, ":status", "200").take()))
	f.Add([]byte(helloFor(f, "x.example")), []byte("x"))
	f.Add([]byte("CONNECT x:80 HTTP/1.1\r\n\r\n"), []byte("HTTP/1.1 200 OK\r\n\r\n"))
	f.Fuzz(func(t *testing.T, client, server []byte) {
		p := policy(t, closed)
		one, _ := play(t, p, 1, c(string(client)), s(string(server)))
		all, _ := play(t, p, 1<<20, c(string(client)), s(string(server)))
		if (one == nil) != (all == nil) {
			t.Errorf("byte by byte %+v, at once %+v", one, all)
		}
	})
}

// FuzzRequests compares with another reader of HTTP: what net/http takes for a forbidden request does not pass.
func FuzzRequests(f *testing.F) {
	for _, text := range []string{get, "GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n", "\r\nGET /secret HTTP/1.1\nHost: good.example\n\n", "GET http://bad.example/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nfor\r\n6\r\nbidden\r\n0\r\n\r\n", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nforbidden" + get,
		strings.Repeat("A", 129) + " / HTTP/1.1\r\nHost: bad.example\r\n\r\n", strings.Repeat("\n", 129) + "GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n", "GET /secret HTTP/1.1\r\nHost:\n good.example\r\n\r\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if block, _ := play(t, policy(t, closed), 7, c(string(b))); block != nil {
			return
		}
		for r := bufio.NewReader(bytes.NewReader(b)); ; {
			q, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			body, err := io.ReadAll(q.Body)
			host := strings.ToLower(q.Host)
			if host == "bad.example" || host == "good.example" && strings.HasPrefix(q.URL.Path, "/secret") || strings.Contains(string(body), "forbidden") {
				t.Errorf("passes: %s %s %s %q", q.Method, host, q.URL, body)
			}
			if err != nil || q.Method == "CONNECT" || q.Header.Get("Upgrade") != "" {
				return
			}
		}
	})
}

// FuzzHello compares with another reader of TLS: the name that a server of crypto/tls reads is not forbidden where the bytes pass.
func FuzzHello(f *testing.F) {
	bad := helloFor(f, "www.bad.example")
	for _, text := range []string{bad, helloFor(f, "good.example"), records(bad, 100), "\x16\x04\x01" + bad[3:], "\x16\x00\x00" + bad[3:], "\x15\x03\x01\x00\x02\x01\x5a" + bad,
		"\x15\x02\x01\x00\x02\x01\x5a" + bad, "\x14\x03\x01\x00\x01\x01" + bad, "\x17\x03\x01\x00\x01\x01" + bad, "\x16\x03\x01\x00\x00" + bad, "\r\n" + bad} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if block, _ := play(t, policy(t, closed), 7, c(string(b))); block != nil {
			return
		}
		_ = tls.Server(&said{Reader: bytes.NewReader(b)}, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			if name := strings.ToLower(h.ServerName); name == "bad.example" || strings.HasSuffix(name, ".bad.example") || name == "" {
				t.Errorf("passes: %q", h.ServerName)
			}
			return nil, errors.New("enough")
		}}).Handshake()
	})
}

// said is a connection on which all was said already.
type said struct {
	net.Conn
	io.Reader
}

func (s *said) Read(b []byte) (int, error)       { return s.Reader.Read(b) }
func (s *said) Write(b []byte) (int, error)      { return len(b), nil }
func (s *said) Close() error                     { return nil }
func (s *said) SetWriteDeadline(time.Time) error { return nil }
func (s *said) SetReadDeadline(time.Time) error  { return nil }
func (s *said) SetDeadline(time.Time) error      { return nil }
func (s *said) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (s *said) RemoteAddr() net.Addr             { return &net.TCPAddr{} }

// FuzzAnswers: the same of answers.
func FuzzAnswers(f *testing.F) {
	for _, text := range []string{answer("", "it is forbidden"), answer("Content-Encoding: gzip\r\n", gzipped("forbidden")), chunked("it is for", "bidden"), "HTTP/1.0 200 OK\r\n\r\nforbidden", "HTTP/1.1 100 Continue\r\n\r\n" + answer("", "forbidden")} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if block, _ := play(t, policy(t, closed), 7, c(get), s(string(b))); block != nil {
			return
		}
		r := bufio.NewReader(bytes.NewReader(b))
		for {
			a, err := http.ReadResponse(r, nil)
			if err != nil {
				return
			}
			var body []byte
			if a.Header.Get("Content-Encoding") == "gzip" {
				if z, err := gzip.NewReader(a.Body); err == nil {
					body, _ = io.ReadAll(io.LimitReader(z, 1<<20))
				}
			} else {
				body, _ = io.ReadAll(a.Body)
			}
			if strings.Contains(string(body), "forbidden") {
				t.Errorf("passes: %q", body)
			}
			if a.StatusCode >= 200 || a.StatusCode == 101 {
				return
			}
		}
	})
}

// A path that isPlain takes for one that all servers read as it is has no other view.
func TestPlainPaths(t *testing.T) {
	plain := 0
	rapid.Check(t, func(t *rapid.T) {
		p := "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"/", "a", "b9", "-", "_", "~", ".", "..", "%2e", "%", "+", ";", "\\", "A", "\x00", "#", "é"}), 0, 8).Draw(t, "path"), "")
		if !isPlain(p) {
			return
		}
		plain++
		var r request
		r.readPath(p)
		if !slices.Equal(r.views, []string{p}) {
			t.Fatalf("%q: %q", p, r.views)
		}
	})
	if plain == 0 {
		t.Error("no path was plain")
	}
	for _, p := range []string{"/", "/a", "/a/", "/a/b.html", "/a-b_c~d/9"} {
		if !isPlain(p) {
			t.Errorf("%s: not plain", p)
		}
	}
}
