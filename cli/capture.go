package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gopacket/gopacket/pcapgo"
	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

func (a *app) captureCommand() *cobra.Command {
	var o api.CaptureOptions
	var write, filter string
	var most int
	cmd := &cobra.Command{
		Use:   "capture NAME[/in|/out|/tap]",
		Short: "Capture the frames of a function's port, or of an endpoint",
		Long: `Capture the frames that a function's port, or an endpoint, receives and sends, as pcapng: to a file, or by a pipe to Wireshark, tshark or tcpdump. The function
may be on any host. Without a port it is a tap's one, else in. NAME may be function/NAME or endpoint/NAME where both have the name.

It ends with Ctrl-C, --count, --duration or --bytes. --filter has tcpdump's syntax; tcpdump has to be installed here, and the kernel where the function is carries it
out, so that only what is wanted is sent. Frames that come faster than they are taken away (50,000 a second, 40 MB a second) are dropped from the capture, never from the
traffic; how many is said at the end and stands in the file. It takes the role operator.`,
		Example: `  weir capture fw/in -w fw.pcapng --duration 30s
  weir capture fw/out --filter icmp | wireshark -k -i -
  weir capture endpoint/alice --count 10 --snaplen 96 | tcpdump -nr -`,
		Args:              command.WantArgs(1, 1, "a function or an endpoint"),
		ValidArgsFunction: a.completeFunctions(false),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) (err error) {
			kind, name, port, err := captured(ctx, c, args[0])
			if err != nil {
				return err
			}
			o.Port, o.Bytes = port, int64(most)
			if _, err := api.ParseCapture(o.Query()); err != nil {
				return command.Usage("%w", err)
			}
			if filter != "" {
				if o.Filter, err = compileFilter(ctx, filter); err != nil {
					return err
				}
			}
			if write == "-" {
				if _, tty := command.Terminal(a.Stdout); tty {
					return command.Usage("a capture is no text: want -w FILE, or a pipe, for example weir capture %s | tcpdump -nr -", args[0])
				}
			}
			frames, err := c.Capture(ctx, kind, name, o)
			if err != nil {
				return err
			}
			defer frames.Close()
			to := a.Stdout
			if write != "-" {
				f, err := os.OpenFile(write, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600) // what is in frames is not for everybody
				if err != nil {
					return fmt.Errorf("capture: %w", err)
				}
				defer func() { err = errors.Join(err, f.Close()) }()
				to = f
			}
			n, dropped, err := follow(frames, to)
			if ctx.Err() != nil { // Ctrl-C is how most of them end
				err = nil
			}
			fmt.Fprintf(a.Stderr, "%d frames, %d dropped from the capture\n", n, dropped)
			return err
		}),
	}
	f := cmd.Flags()
	f.StringVarP(&write, "write", "w", "-", "file to write, pcapng; - is standard output")
	f.StringVar(&filter, "filter", "", "only frames that match, in tcpdump's syntax, for example 'host 10.0.0.1 and tcp port 80'")
	f.IntVar(&o.Count, "count", 0, "end after so many frames; 0 is without end")
	f.DurationVar(&o.Duration, "duration", api.CaptureDefaults.Duration, "end after this time, at most 24h")
	f.IntVar(&most, "bytes", int(api.CaptureDefaults.Bytes), "end after so many bytes of frames")
	f.IntVar(&o.Snaplen, "snaplen", api.CaptureDefaults.Snaplen, "bytes of each frame")
	return cmd
}

// captured finds what an argument means.
func captured(ctx context.Context, c *api.Client, arg string) (kind api.Kind, name, port string, err error) {
	parts := strings.Split(arg, "/")
	if len(parts) > 1 && (parts[0] == string(api.KindFunction) || parts[0] == string(api.KindEndpoint)) {
		kind, parts = api.Kind(parts[0]), parts[1:]
	}
	if name = parts[0]; len(parts) == 2 {
		port = parts[1]
	}
	if name == "" || len(parts) > 2 || len(parts) == 2 && port != "in" && port != "out" && port != "tap" {
		return "", "", "", command.Usage("%q: want a function, FUNCTION/in, FUNCTION/out, FUNCTION/tap, or an endpoint", arg)
	}
	if kind != "" || port != "" {
		if kind == "" {
			kind = api.KindFunction
		}
		return kind, name, port, nil
	}
	_, err = c.Functions().Get(ctx, name)
	if err == nil || !errors.Is(err, api.ErrNotFound) {
		return api.KindFunction, name, "", err
	}
	if _, err := c.Endpoints().Get(ctx, name); err == nil {
		return api.KindEndpoint, name, "", nil
	}
	return "", "", "", command.WithCode(command.ExitNotFound, fmt.Errorf("there is no function and no endpoint %q", name))
}

// compileFor bounds what tcpdump takes to compile a filter.
const compileFor = 10 * time.Second

// compileFilter has tcpdump compile a filter: its language is libpcap's.
func compileFilter(ctx context.Context, text string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, compileFor)
	defer cancel()
	if strings.HasPrefix(strings.TrimSpace(text), "-") {
		return "", command.Usage("--filter %q: want an expression", text)
	}
	empty, err := emptyCapture()
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(filepath.Dir(empty))
	var says bytes.Buffer
	cmd := exec.CommandContext(ctx, "tcpdump", "-r", empty, "-ddd", text)
	cmd.Stderr = &says
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", command.WithCode(command.ExitForbidden, errors.New("--filter: tcpdump, which compiles it, is not installed here (apt-get install tcpdump)"))
	}
	if err != nil {
		lines := strings.Split(strings.TrimSpace(says.String()), "\n")
		return "", command.Usage("--filter %q: %s", text, strings.TrimPrefix(lines[len(lines)-1], "tcpdump: "))
	}
	compiled := strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", ",")
	if _, err := api.ParseFilter(compiled); err != nil {
		return "", command.Usage("--filter %q: %w", text, err)
	}
	return compiled, nil
}

// emptyCapture is a file without frames, of Ethernet: tcpdump compiles for the link type of what it reads.
func emptyCapture() (string, error) {
	dir, err := os.MkdirTemp("", "weir-filter-")
	if err != nil {
		return "", err
	}
	header := []byte{0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0}
	path := filepath.Join(dir, "empty.pcap")
	return path, os.WriteFile(path, header, 0o600)
}

// follow copies a capture and counts what is in it.
func follow(from io.Reader, to io.Writer) (frames int, dropped uint64, err error) {
	copied := &copying{r: from, w: to}
	options := pcapgo.DefaultNgReaderOptions
	options.StatisticsCallback = func(_ int, s pcapgo.NgInterfaceStatistics) {
		if s.PacketsDropped != ^uint64(0) {
			dropped = s.PacketsDropped
		}
	}
	r, err := pcapgo.NewNgReader(bufio.NewReader(copied), options)
	for err == nil {
		if _, _, err = r.ZeroCopyReadPacketData(); err == nil {
			frames++
		}
	}
	switch {
	case copied.err != nil: // whoever read it has what it wanted
		return frames, dropped, copied.err
	case errors.Is(err, io.EOF):
		return frames, dropped, nil
	}
	return frames, dropped, fmt.Errorf("capture: %w", err)
}

// copying is a reader that writes what it reads.
type copying struct {
	r   io.Reader
	w   io.Writer
	err error // of w
}

func (c *copying) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if n > 0 {
		if _, c.err = c.w.Write(p[:n]); c.err != nil {
			return 0, c.err
		}
	}
	return n, err
}
