// Package images has the commands of `weir image`. What they do is in the package image at the root.
package images

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/image"
)

// Options are what the commands need of the program.
type Options struct {
	Version string
	Layouts func(dir string) []string // image layouts to search; dir is a further one
}

// images is the commands of one run of the program.
type images struct {
	*command.App
	Options
	layout string // further
}

// Item is an image as the commands show it.
type Item struct {
	Ref         string   `json:"ref"`
	Digest      string   `json:"digest"`
	Ports       []string `json:"ports"`
	Bytes       int64    `json:"size_bytes"`
	Description string   `json:"description,omitempty"`
}

// Command is the command `weir image`.
func Command(app *command.App, o Options) *cobra.Command {
	a := &images{App: app, Options: o}
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Manage the images that functions are made of",
		Long: `Manage the images that functions are made of. An image is found in the layouts that come with the program, then in the instance's own, which these
commands change: they work on this host's files, so they want its root, and no daemon.`,
		Example: "  weir image list\n  weir image pull registry.example.org/nf/filter:2\n  weir image build my-function",
		Args:    cobra.ArbitraryArgs,
		RunE:    command.Group,
	}
	cmd.AddCommand(a.list(), a.inspect(), a.build(), a.pull(), a.push(), a.take(), a.export(), a.serve(), a.sign(), a.verify(), a.bill(), a.remove(), a.collect())
	return cmd
}

// store of the instance.
func (a *images) store() (*image.Store, error) {
	i, err := a.Instance()
	if err != nil {
		return nil, err
	}
	var layouts []string
	if a.Layouts != nil {
		layouts = a.Layouts(a.layout)
	}
	return image.Open(i, layouts...), nil
}

// coded gives an error the exit code of its kind.
func coded(err error) error {
	switch {
	case errors.Is(err, image.ErrNotFound):
		return command.WithCode(command.ExitNotFound, err)
	case errors.Is(err, image.ErrCorrupt), errors.Is(err, image.ErrArchive), errors.Is(err, image.ErrRecipe):
		return command.WithCode(command.ExitInvalid, err)
	case errors.Is(err, image.ErrUnsigned):
		return command.WithCode(command.ExitForbidden, err)
	case errors.Is(err, fs.ErrPermission):
		return command.WithCode(command.ExitForbidden, fmt.Errorf("%w: run as root", err))
	}
	return err
}

func itemOf(x image.Image) Item {
	ports := []string{"in", "out"}
	if x.Contract.Tap {
		ports = []string{"tap"}
	}
	return Item{x.Ref, x.Digest, ports, x.Size, x.Contract.Description}
}

// show images.
func (a *images) show(all []image.Image) error {
	items := []Item{}
	t := command.Table{Head: []string{"IMAGE", "PORTS", "SIZE", "DIGEST", "DESCRIPTION"}}
	for _, x := range all {
		i := itemOf(x)
		items = append(items, i)
		t.Add(i.Ref, strings.Join(i.Ports, ","), command.Size(i.Bytes), command.ShortDigest(i.Digest), i.Description)
	}
	if a.Structured() {
		return a.Encode(map[string]any{"items": items})
	}
	return a.PrintTable(t)
}

func (a *images) list() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the images that functions can be made of",
		Long:    "List the images that functions can be made of. A daemon that was started with --images needs the same here; the variable serves both.",
		Example: "  weir image list\n  weir image list -o json\n  weir image list --images bin/images",
		Args:    command.NoArgs(),
		RunE: func(*cobra.Command, []string) error {
			s, err := a.store()
			if err != nil {
				return err
			}
			all, err := s.List()
			if serr := a.show(all); err == nil {
				err = serr
			}
			return coded(err)
		},
	}
	command.ImagesFlag(cmd.Flags(), &a.layout)
	return cmd
}

func (a *images) inspect() *cobra.Command {
	cmd := &cobra.Command{
		Use: "inspect IMAGE", Short: "Show an image: its contract, its process, its layers, its signatures",
		Example: "  weir image inspect firewall\n  weir image inspect firewall -o yaml",
		Args:    command.WantArgs(1, 1, "an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.store()
			if err != nil {
				return err
			}
			x, err := s.Verify(cmd.Context(), args[0])
			if err != nil {
				return coded(err)
			}
			with, err := about(s, args[0])
			if err != nil {
				return coded(err)
			}
			return a.tell(x, with)
		},
	}
	command.ImagesFlag(cmd.Flags(), &a.layout)
	return cmd
}

// tell everything of an image.
func (a *images) tell(x image.Image, with image.About) error {
	i, c := itemOf(x), x.Contract
	offloads := map[bool]string{true: "none", false: "any"}[c.Finished]
	signatures := []signatureItem{}
	for _, sig := range with.Signatures {
		signatures = append(signatures, signatureItem{sig.Name, sig.Digest})
	}
	if a.Structured() {
		return a.Encode(map[string]any{
			"ref": i.Ref, "digest": i.Digest, "ports": i.Ports, "size_bytes": i.Bytes, "description": i.Description,
			"args": x.Args, "env": x.Env, "working_dir": x.Dir, "user": x.User, "layers": x.Layers, "signatures": signatures, "sboms": with.SBOMs,
			"contract": map[string]any{
				"forwarder": c.Forwarder, "probe": c.Probe, "rewrites": c.Rewrites, "recreate": c.Recreate, "reload": c.Reload, "export": c.Export, "import": c.Import, "settles": c.Settles, "ipfix": c.IPFIX, "xdp": c.XDP, "offloads": offloads, "speaks": c.Speaks, "capabilities": c.Capabilities, "config_schema": c.ConfigSchema,
			},
			"example": c.Example,
		})
	}
	t := command.Table{}
	yes := map[bool]string{true: "yes", false: "no"}
	t.Add("image", i.Ref)
	t.Add("digest", i.Digest)
	t.Add("description", i.Description)
	t.Add("ports", strings.Join(i.Ports, ","))
	t.Add("size", command.Size(i.Bytes))
	t.Add("process", strings.Join(x.Args, " "))
	t.Add("capabilities", strings.Join(c.Capabilities, ","))
	t.Add("forwarder", c.Forwarder)
	t.Add("probes pass", yes[c.Probe])
	t.Add("may speak", yes[c.Speaks])
	t.Add("rewrites", strings.Join(c.Rewrites, ","))
	t.Add("settles flows", yes[c.Settles])
	t.Add("exports flows", yes[c.IPFIX])
	t.Add("AF_XDP sockets", yes[c.XDP])
	t.Add("offloads", offloads)
	t.Add("two at once", yes[!c.Recreate])
	t.Add("takes a config as it runs", yes[c.Reload != nil])
	t.Add("hands its state over", yes[c.Export != nil])
	t.Add("config", map[bool]string{true: "none", false: "by a schema (-o yaml shows it)"}[len(c.ConfigSchema) == 0])
	if c.Example != "" {
		t.Add("example", "a policy with it; weir image inspect "+command.Printable(i.Ref)+" -o json | jq -r .example prints it")
	}
	for _, sig := range signatures {
		t.Add("signature", command.Printable(fmt.Sprintf("of %s, over %s; weir image verify checks it", sig.Name, command.ShortDigest(sig.Digest))))
	}
	for _, kind := range with.SBOMs {
		t.Add("sbom", kind+"; weir image sbom prints it")
	}
	for n, l := range x.Layers {
		t.Add(fmt.Sprintf("layer %d", n+1), l)
	}
	return a.PrintTable(t)
}

func (a *images) build() *cobra.Command {
	var into string
	var update bool
	cmd := &cobra.Command{
		Use: "build DIR", Short: "Build the image of a recipe",
		Long: `Build the image of the recipe DIR/image.yaml, and put it into the instance's layout. The same sources give the same digest. See docs/write-an-nf.md.

A recipe with "base: debian" is built of Debian packages. mmdebstrap fetches them from the Debian archive that this machine's apt uses. What was built is kept
in $WEIR_BUILD_CACHE, or else ~/.cache/weir/build (at most 2 GiB), and taken from there the next time; --update fetches newer packages.`,
		Example: "  weir image build examples/blocker\n  weir image build examples/blocker --into bin/images\n  weir image build catalogue/ids --update",
		Args:    command.WantArgs(1, 1, "a directory with an image.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := image.LoadRecipe(args[0])
			if err != nil {
				return coded(err)
			}
			r.Anew = update
			r.Say = func(what string) { fmt.Fprintln(a.Stderr, what) }
			build := func(ctx context.Context) (string, error) { return r.Build(ctx, into) }
			if into == "" {
				s, err := a.store()
				if err != nil {
					return err
				}
				build = func(ctx context.Context) (string, error) { return s.Build(ctx, r) }
			}
			digest, err := build(cmd.Context())
			if err != nil {
				return coded(err)
			}
			fmt.Fprintf(a.Stdout, "%s:%s %s\n", r.Name, r.Tag, digest)
			return nil
		},
	}
	cmd.Flags().StringVar(&into, "into", "", "OCI image layout to write (default the instance's own)")
	cmd.Flags().BoolVar(&update, "update", false, "fetch Debian packages anew, in the versions that the archive has now")
	return cmd
}

// remote are the flags of what speaks to a registry.
func (a *images) remote(f *pflag.FlagSet) *image.RemoteOptions {
	o := &image.RemoteOptions{Version: a.Version}
	f.BoolVar(&o.PlainHTTP, "plain-http", false, "speak HTTP without TLS to the registry; one on this machine (localhost, 127.0.0.1) is spoken to so anyway")
	return o
}

// shown gives options that show how far it is.
func (a *images) shown(o image.RemoteOptions, what string) (image.RemoteOptions, func()) {
	p := a.Progress()
	var mu sync.Mutex
	var last time.Time
	o.Progress = func(done, all int64) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) < command.ShowEvery {
			return
		}
		last = time.Now()
		p.Show("%s  %s of %s", what, command.Size(done), command.Size(all))
	}
	return o, func() { mu.Lock(); defer mu.Unlock(); p.Clear() }
}

func (a *images) pull() *cobra.Command {
	var o *image.RemoteOptions
	cmd := &cobra.Command{
		Use: "pull REFERENCE...", Short: "Fetch images from a registry",
		Long: `Fetch images from registries into the instance's layout. A function's image is then the same reference. Credentials are those that "docker login" or
"podman login" has stored. Layers that are there are not fetched again, and a pull that was cut goes on where it was. What comes is checked against its digest.`,
		Example: "  weir image pull registry.example.org/nf/filter:2\n  weir image pull docker.io/library/debian@sha256:DIGEST\n  weir image pull --plain-http 10.0.0.5:5000/filter:2",
		Args:    command.WantArgs(1, 100, "a reference such as registry.example.org/nf/filter:2"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.store()
			if err != nil {
				return err
			}
			for _, ref := range args { // before anything is fetched
				if _, err := image.ParseRemote(ref, *o); err != nil {
					return command.Usage("%w", err)
				}
			}
			var got []image.Image
			for _, ref := range args {
				with, clear := a.shown(*o, ref)
				with.Warn = func(text string) { fmt.Fprintf(a.Stderr, "warning: %s\n", command.Printable(text)) }
				x, err := s.Pull(cmd.Context(), ref, with)
				clear()
				if err != nil {
					return coded(err)
				}
				got = append(got, x)
			}
			return a.show(got)
		},
	}
	o = a.remote(cmd.Flags())
	return cmd
}

func (a *images) push() *cobra.Command {
	var o *image.RemoteOptions
	cmd := &cobra.Command{
		Use: "push IMAGE REFERENCE", Short: "Send an image to a registry",
		Long:    "Send an image to a registry, under a reference there. What the registry has is not sent again.",
		Example: "  weir image push firewall registry.example.org/nf/firewall:1",
		Args:    command.WantArgs(2, 2, "an image and a reference such as registry.example.org/nf/firewall:1"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.store()
			if err != nil {
				return err
			}
			if _, err := image.ParseRemote(args[1], *o); err != nil {
				return command.Usage("%w", err)
			}
			with, clear := a.shown(*o, args[1])
			digest, err := s.Push(cmd.Context(), args[0], args[1], with)
			clear()
			if err != nil {
				return coded(err)
			}
			fmt.Fprintf(a.Stdout, "%s %s\n", args[1], digest)
			return nil
		},
	}
	o = a.remote(cmd.Flags())
	command.ImagesFlag(cmd.Flags(), &a.layout)
	return cmd
}

// engineScheme marks an image of a Docker engine; defaultEngine is where one is.
const (
	engineScheme  = "docker:"
	defaultEngine = "unix:///var/run/docker.sock"
)

func (a *images) take() *cobra.Command {
	var as, socket string
	cmd := &cobra.Command{
		Use: "import FILE|DIR|-|docker:IMAGE", Short: "Take images from an archive, a layout, or a Docker engine",
		Long: `Take images into the instance's layout: from an archive ("docker save", "podman save", "skopeo copy ... oci-archive:FILE", "weir image export"), from a directory
with an OCI layout, with - from an archive at standard input, or with docker:IMAGE from a Docker engine on this machine.`,
		Example: "  weir image import filter.tar\n  weir image import docker:filter:2\n  weir image import layout --as filter:2\n  weir image import -",
		Args:    command.WantArgs(1, 1, "a file, a directory, or docker:IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.store()
			if err != nil {
				return err
			}
			var got []image.Image
			if name, ok := strings.CutPrefix(args[0], engineScheme); ok {
				if host := os.Getenv("DOCKER_HOST"); host != "" && !cmd.Flags().Changed("docker-host") {
					socket = host
				}
				at := strings.TrimPrefix(socket, "unix://")
				if name == "" || !filepath.IsAbs(at) {
					return command.Usage("want %sIMAGE, and an engine at unix:///PATH (--docker-host)", engineScheme)
				}
				got, err = s.ImportFromEngine(cmd.Context(), at, name, as)
			} else if args[0] == "-" {
				got, err = s.ImportFrom(cmd.Context(), a.Stdin, as)
			} else {
				got, err = s.Import(cmd.Context(), args[0], as)
			}
			if err != nil {
				return coded(err)
			}
			return a.show(got)
		},
	}
	cmd.Flags().StringVar(&as, "as", "", "name of the image here, NAME:TAG (default what it is called there)")
	cmd.Flags().StringVar(&socket, "docker-host", defaultEngine, "the Docker engine's socket [$DOCKER_HOST]")
	return cmd
}

func (a *images) export() *cobra.Command {
	cmd := &cobra.Command{
		Use: "export IMAGE FILE", Short: "Write an image as an archive",
		Long:    "Write an image as an OCI archive, a tar file. \"weir image import\", skopeo and podman read it. FILE may be -, for standard output.",
		Example: "  weir image export firewall firewall.tar\n  weir image export firewall -",
		Args:    command.WantArgs(2, 2, "an image and a file"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			s, err := a.store()
			if err != nil {
				return err
			}
			if args[1] == "-" {
				return coded(s.Export(cmd.Context(), args[0], a.Stdout))
			}
			half, err := os.CreateTemp(filepath.Dir(args[1]), "."+filepath.Base(args[1])+"-")
			if err != nil {
				return err
			}
			defer func() {
				if err != nil {
					err = errors.Join(err, os.Remove(half.Name()))
				}
			}()
			if err := errors.Join(s.Export(cmd.Context(), args[0], half), half.Chmod(0o644), half.Close()); err != nil {
				return coded(err)
			}
			return os.Rename(half.Name(), args[1])
		},
	}
	command.ImagesFlag(cmd.Flags(), &a.layout)
	return cmd
}

func (a *images) remove() *cobra.Command {
	return &cobra.Command{
		Use: "delete IMAGE...", Short: "Delete images of the instance's layout",
		Long:    "Delete images of the instance's layout, by the names that \"weir image list\" shows. Functions that run go on; one of a deleted image cannot be started anew.",
		Example: "  weir image delete registry.example.org/nf/filter:2",
		Args:    command.WantArgs(1, 1000, "an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.store()
			if err != nil {
				return err
			}
			return coded(s.Delete(cmd.Context(), args...))
		},
	}
}

func (a *images) collect() *cobra.Command {
	var dry bool
	cmd := &cobra.Command{
		Use: "gc", Short: "Remove what no image uses",
		Long: `Remove from the instance's layout what no image uses: what interrupted pulls and imports left. With --url or --socket it asks that Weir to do so with the
images of its manager, which needs the role admin; without them it works on this host's files. While images are being pulled or imported, it waits on this
host's files; a Weir that is asked, and --dry-run, refuse then.`,
		Example: "  weir image gc\n  weir image gc --dry-run\n  weir image gc --url https://weir.example.org:7411 --token-file token",
		Args:    command.NoArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			got, err := a.garbage(cmd.Context(), dry)
			if err != nil {
				return coded(err)
			}
			return a.showGarbage(got)
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "remove nothing: list what would go, and why the rest stays")
	return cmd
}

// garbage removes what no image uses: a Weir does, if one is named, or else this process.
func (a *images) garbage(ctx context.Context, dry bool) (api.ImageGC, error) {
	if a.URL != "" || a.Socket != "" {
		c, err := a.Client()
		if err != nil {
			return api.ImageGC{}, err
		}
		defer c.Close()
		return c.CollectImages(ctx, api.ImageGCRequest{Plan: dry})
	}
	s, err := a.store()
	if err != nil {
		return api.ImageGC{}, err
	}
	got, err := s.Collect(ctx, image.CollectOptions{Plan: dry, Now: dry})
	items := func(all []image.Collectable) []api.ImageGCItem {
		out := []api.ImageGCItem{}
		for _, x := range all {
			out = append(out, api.ImageGCItem(x))
		}
		return out
	}
	return api.ImageGC{Plan: dry, Removed: items(got.Removed), Kept: items(got.Kept), Freed: got.Freed}, err
}

// showGarbage shows what was removed, or with a plan all that would be and what stays.
func (a *images) showGarbage(got api.ImageGC) error {
	if a.Structured() {
		return a.Encode(got)
	}
	if !got.Plan {
		fmt.Fprintf(a.Stdout, "%s freed\n", command.Size(got.Freed))
		return nil
	}
	t := command.Table{Head: []string{"ACTION", "NAME", "SIZE", "WHY"}}
	add := func(action string, items []api.ImageGCItem, more int) {
		for _, i := range items {
			t.Add(action, i.Name, command.Size(i.Size), i.Why)
		}
		if more > 0 {
			t.Add(action, fmt.Sprintf("and %d more", more), "", "")
		}
	}
	add("remove", got.Removed, got.RemovedMore)
	add("keep", got.Kept, got.KeptMore)
	if err := a.PrintTable(t); err != nil {
		return err
	}
	fmt.Fprintf(a.Stdout, "%s would be freed\n", command.Size(got.Freed))
	return nil
}

func (a *images) serve() *cobra.Command {
	var listen, tokenFile, cert, key string
	cmd := &cobra.Command{
		Use: "serve", Short: "Serve the images as a registry, to read only",
		Long: `Serve all images of this host as a registry (OCI Distribution), to read only, until it is interrupted. Other hosts, Docker, podman and skopeo pull from it. With
--token-file they need what is in that file, as the password of any user. On another address than this machine's own loopback it is needed, and so is TLS.`,
		Example: "  weir image serve\n  weir image serve --listen 10.0.0.5:5000 --token-file token --tls-cert cert.pem --tls-key key.pem",
		Args:    command.NoArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.store()
			if err != nil {
				return err
			}
			token := ""
			if tokenFile != "" {
				b, err := os.ReadFile(tokenFile)
				if err != nil {
					return command.WithCode(command.ExitInvalid, err)
				}
				if token = strings.TrimSpace(string(b)); len(token) < minToken {
					return command.WithCode(command.ExitInvalid, fmt.Errorf("%s: want a token of %d characters or more", tokenFile, minToken))
				}
			}
			return a.listen(cmd.Context(), s, listen, token, cert, key)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:5000", "address and port")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "file with the token that clients need")
	cmd.Flags().StringVar(&cert, "tls-cert", "", "certificate, PEM; with --tls-key it speaks TLS")
	cmd.Flags().StringVar(&key, "tls-key", "", "the certificate's key, PEM")
	command.ImagesFlag(cmd.Flags(), &a.layout)
	return cmd
}

// minToken is how long a token has to be.
const minToken = 16

// listen until ctx ends.
func (a *images) listen(ctx context.Context, s *image.Store, address, token, cert, key string) error {
	if (cert == "") != (key == "") {
		return command.Usage("want both --tls-cert and --tls-key, or neither")
	}
	var own *tls.Config
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return command.WithCode(command.ExitInvalid, fmt.Errorf("--tls-cert, --tls-key: %w", err))
		}
		own = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return command.Usage("--listen %q: want an address and a port, such as 127.0.0.1:5000", address)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return command.WithCode(command.ExitConflict, err)
	case err != nil:
		return err
	}
	defer l.Close()
	if at := l.Addr().(*net.TCPAddr); !at.IP.IsLoopback() && (token == "" || cert == "") {
		return command.Usage("%s is no loopback address: want --token-file, --tls-cert and --tls-key, so that not everybody reads the images, nor the token", at)
	}
	server := &http.Server{Handler: s.Handler(token), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	fmt.Fprintf(a.Stderr, "serving at %s\n", l.Addr())
	if server.TLSConfig = own; own != nil {
		err = server.ServeTLS(l, "", "")
	} else {
		err = server.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
