package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"text/template"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/nf"
)

const (
	program     = "/usr/sbin/nginx"
	startsIn    = 20 * time.Second
	answersIn   = 2 * time.Second
	fullBelow   = 12 << 20 // bytes that must be free where answers are kept, or no more are
	lookEvery   = 100 * time.Millisecond
	askEvery    = 10 // looks
	maxFailures = 3
)

// engine is a running nginx.
type engine struct {
	*nf.Running
	run, tmp string // directories
	client   *http.Client
}

func (e *engine) room() string   { return filepath.Join(e.run, "room") }
func (e *engine) health() string { return filepath.Join(e.run, "health.sock") }

// startEngine writes nginx's configuration, starts it and waits until it answers.
func startEngine(ctx context.Context, log *slog.Logger, cfg config, run, tmp string) (*engine, error) {
	e := &engine{run: run, tmp: tmp}
	e.client = &http.Client{Timeout: answersIn, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", e.health())
	}}}
	if err := e.mark(); err != nil {
		return nil, err
	}
	file := filepath.Join(run, "nginx.conf")
	if err := os.WriteFile(file, cfg.render(e), 0o600); err != nil {
		return nil, err
	}
	var err error
	e.Running, err = nf.Child{Name: "nginx", Args: []string{program, "-e", "stderr", "-c", file}, Log: log, Problem: problem}.Start(ctx)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(startsIn); ; {
		_, err := e.ask(ctx)
		if err == nil {
			return e, nil
		}
		if time.Now().After(deadline) {
			e.Stop()
			return nil, fmt.Errorf("nginx does not answer within %s: %w", startsIn, err)
		}
		select {
		case <-e.Ended:
			return nil, fmt.Errorf("nginx does not start: %w", e.Err())
		case <-ctx.Done():
			e.Stop()
			return nil, ctx.Err()
		case <-time.After(lookEvery / 4):
		}
	}
}

// problem is an error that a line tells. nginx wants to give up groups that a container's root has not; no harm in that.
func problem(line string) (text string, found bool) {
	for _, level := range []string{"[emerg] ", "[alert] ", "[crit] "} {
		if _, text, found = strings.Cut(line, level); found {
			return text, !strings.Contains(text, "initgroups(root, 0) failed")
		}
	}
	return "", false
}

// ask nginx whether it lives, for what it says of its connections.
func (e *engine) ask(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://nginx/", nil)
	if err != nil {
		return "", err
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("answer %s", resp.Status)
	}
	return strings.Join(strings.Fields(string(text)), " "), err
}

// watch nginx until ctx ends: what is wrong with it. It keeps no more answers while there is no room.
func (e *engine) watch(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for n, failures := 0, 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-e.Ended:
			return fmt.Errorf("nginx has ended: %w", e.Err())
		case <-tick.C:
		}
		if err := e.mark(); err != nil {
			return err
		}
		if n%askEvery != 0 {
			continue
		}
		if _, err := e.ask(ctx); err == nil || ctx.Err() != nil {
			failures = 0
		} else if failures++; failures == maxFailures {
			return fmt.Errorf("nginx does not answer: %w", err)
		}
	}
}

// mark that there is room for more answers, by a file that nginx looks for with each request: one that exists is found faster than one that does not.
func (e *engine) mark() error {
	var s unix.Statfs_t
	if err := unix.Statfs(e.tmp, &s); err != nil {
		return fmt.Errorf("room in %s: %w", e.tmp, err)
	}
	if s.Bavail*uint64(s.Bsize) >= fullBelow {
		f, err := os.OpenFile(e.room(), os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		return f.Close()
	}
	if err := os.Remove(e.room()); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// mostWorkers bounds processes of nginx, of which there is one for each processor that the function may use: each takes 8 MiB before it has a connection.
const mostWorkers = 4

// render nginx's configuration. Nothing in it is a text that somebody else wrote.
func (c config) render(e *engine) []byte {
	type listen struct{ From, Port int }
	var listens []listen
	for i, p := range c.Ports {
		listens = append(listens, listen{listenFrom + i, int(p)})
	}
	var text bytes.Buffer
	err := nginxConf.Execute(&text, map[string]any{
		"Run": e.run, "Tmp": e.tmp, "Room": e.room(), "Health": e.health(), "Results": filepath.Join(e.run, resultsPipe), "Listens": listens, "SizeMB": c.SizeMB,
		"MaxObject": c.MaxObjectKB << 10, "TTL": c.DefaultTTLS, "Short": atMost(c.MaxObjectKB << 10), "AsClient": asClient, "AsServer": asServer, "Bound": bound, "Dialled": dialled, "Connections": 2*maxConnections + 64, "Workers": min(runtime.GOMAXPROCS(0), mostWorkers),
	})
	if err != nil {
		panic(err) // the template is ours
	}
	return text.Bytes()
}

// nginxConf keeps only what says that it may be kept by all, and whose length is known and bounded. The key has the server that the client has meant: who lies in
// the header Host finds and poisons nothing of another server.
var nginxConf = template.Must(template.New("nginx.conf").Parse(`daemon off;
user root;
worker_processes {{.Workers}};
pcre_jit on;
worker_rlimit_nofile {{.Connections}};
pid {{.Run}}/nginx.pid;
error_log stderr warn;
events { worker_connections {{.Connections}}; }
http {
	log_format result '$upstream_cache_status $body_bytes_sent';
	access_log off;
	default_type application/octet-stream;
	server_tokens off;
	sendfile on;
	tcp_nopush on; # head and body in one segment: else the body waits for the client to acknowledge the head
	tcp_nodelay on;
	keepalive_timeout 75s;
	keepalive_requests 1000000;
	client_header_timeout 30s;
	client_body_timeout 60s;
	send_timeout 60s;
	reset_timedout_connection on;
	large_client_header_buffers 4 32k;
	client_max_body_size 0;
	client_body_temp_path {{.Tmp}}/body;
	proxy_temp_path {{.Tmp}}/proxy;
	fastcgi_temp_path {{.Tmp}}/fastcgi;
	uwsgi_temp_path {{.Tmp}}/uwsgi;
	scgi_temp_path {{.Tmp}}/scgi;
	map $server_addr $the_server { ~^{{.AsServer}}(?<s>\..+)$ {{.Dialled}}$s; }
	map $remote_addr $the_client { ~^{{.AsClient}}(?<c>\..+)$ {{.Bound}}$c; }
	map $http_upgrade $the_connection { default upgrade; '' close; }
	map $http_cache_control $reload { default 0; ~*no-cache 1; ~*no-store 1; ~*max-age=0+(,|$) 1; }
	map $http_pragma $reload_pragma { default 0; ~*no-cache 1; }
{{- if .TTL}}
	# What does not say how long it may be kept may be one person's.
	map $http_cookie$http_x_api_key$http_proxy_authorization $personal { default 1; '' 0; }
	map $upstream_http_cache_control $lasts { default 0; "~*(^|[ ,;])(s-maxage|max-age)=" 1; }
	map $lasts$upstream_http_expires $silent { default 0; '0' 1; } # neither a length of time nor Expires
	map $silent$personal $unasked { default 0; 11 1; }
{{- end}}
	map $upstream_http_content_length $too_long { default 1; {{.Short}} 0; }
	proxy_cache_path {{.Tmp}}/answers levels=1:2 keys_zone=answers:2m max_size={{.SizeMB}}m inactive=1d use_temp_path=off manager_files=1000 manager_sleep=50ms manager_threshold=200ms;
	server {
		listen unix:{{.Health}};
		location / { stub_status; }
	}
{{- range .Listens}}
	server {
		listen {{.From}} backlog=1024 so_keepalive=60s:10s:3;
		http2 on;
		http2_max_concurrent_streams 8; # of one connection, each of which may need one to the server
		set $port {{.Port}};
		access_log {{$.Results}} result buffer=32k flush=100ms;
		set $full 1;
		if (-f {{$.Room}}) { set $full 0; }
		location / {
			proxy_pass http://$the_server:{{.Port}}$request_uri;
			proxy_bind $the_client;
			proxy_http_version 1.1;
			proxy_set_header Host $http_host;
			proxy_set_header Connection $the_connection;
			proxy_set_header Upgrade $http_upgrade;
			proxy_redirect off;
			proxy_pass_header Server;
			proxy_pass_header Date;
			proxy_ignore_headers X-Accel-Redirect X-Accel-Expires X-Accel-Limit-Rate X-Accel-Buffering X-Accel-Charset;
			proxy_pass_header X-Accel-Redirect;
			proxy_pass_header X-Accel-Expires;
			proxy_pass_header X-Accel-Limit-Rate;
			proxy_pass_header X-Accel-Buffering;
			proxy_pass_header X-Accel-Charset;
			proxy_request_buffering off;
			proxy_buffers 8 16k;
			proxy_buffer_size 16k;
			proxy_busy_buffers_size 32k;
			proxy_max_temp_file_size 0;
			proxy_connect_timeout 10s;
			proxy_read_timeout 10m;
			proxy_send_timeout 60s;
			proxy_next_upstream off;
			proxy_cache answers;
			proxy_cache_key "$request_method $the_server:{{.Port}} $http_host $request_uri";
			proxy_cache_convert_head off;
			proxy_cache_lock on;
			proxy_cache_revalidate on;
			proxy_cache_max_range_offset {{$.MaxObject}};
			proxy_cache_bypass $reload $reload_pragma $http_authorization $http_upgrade{{if $.TTL}} $personal{{end}};
			proxy_no_cache $full $too_long $http_authorization $http_upgrade{{if $.TTL}} $unasked{{end}};
{{- if $.TTL}}
			proxy_cache_valid 200 301 302 {{$.TTL}}s;
{{- end}}
			add_header X-Cache $upstream_cache_status always;
		}
	}
{{- end}}
}
`))

// atMost is a regular expression of nginx for decimal numbers up to one.
func atMost(n int) string {
	digits := strconv.Itoa(n)
	parts := []string{digits}
	for i, d := range digits { // the same up to here, then less
		least := '0'
		if i == 0 && len(digits) > 1 {
			least = '1'
		}
		if d > least {
			parts = append(parts, fmt.Sprintf("%s[%c-%c][0-9]{%d}", digits[:i], least, d-1, len(digits)-i-1))
		}
	}
	if len(digits) > 1 {
		parts = append(parts, fmt.Sprintf("[0-9]{1,%d}", len(digits)-1))
	}
	return `"~^0*(` + strings.Join(parts, "|") + `)$"`
}
