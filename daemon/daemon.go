// Package daemon is one instance's process: store, manager and agent wired together (`weir up`), and its complete
// removal (`weir down`). It owns the instance's lock and directories. Which drivers there are, main says.
package daemon

import (
	"context"
	"io"
	"net/http"

	"weir.dev/weir/agent"
	"weir.dev/weir/container"
	"weir.dev/weir/datapath"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
)

// Images is an image store as the daemon needs it.
type Images interface {
	agent.Images
	// Verify is Resolve that reads also what is not unpacked yet.
	Verify(ctx context.Context, ref string) (image.Image, error)
	// Peek is Resolve that fetches nothing; of an image that is being fetched it tells what is known.
	Peek(ref string) (image.Image, error)
	// From makes a manager elsewhere the first place where missing images are fetched; KeepOffers asks what it has, until ctx ends.
	From(p image.Peer)
	KeepOffers(ctx context.Context)
	// Fetch pulls an image from any registry; ImportFrom takes those of an archive. Free is how many bytes there is room for.
	Fetch(ctx context.Context, ref string, o image.RemoteOptions) (image.Image, error)
	ImportFrom(ctx context.Context, archive io.Reader, as string) ([]image.Image, error)
	Free() (int64, error)
	// Own are the names of those that Delete takes out: others came with the program.
	Own() ([]string, error)
	Delete(ctx context.Context, names ...string) error
	// Collect removes what no image uses.
	Collect(ctx context.Context, o image.CollectOptions) (image.Collected, error)
	// Handler serves all images as a registry, to read only.
	Handler(token string) http.Handler
	// Destroy unmounts whatever the instance mounted.
	Destroy(ctx context.Context) error
}

// Drivers make the parts that differ between machines.
type Drivers struct {
	Switch        func(ctx context.Context, i instance.Instance) (datapath.Switch, error)
	DestroySwitch func(ctx context.Context, i instance.Instance) error // works without a usable kernel or state
	// Runtime may be several: then it is an agent.Runtimes, too.
	Runtime func(ctx context.Context, i instance.Instance) (container.Runtime, error)
	// DestroyRuntime removes all containers, also where the runtime's program is missing. With keepLogs, what they printed stays.
	DestroyRuntime func(ctx context.Context, i instance.Instance, keepLogs bool) error
	Images         func(i instance.Instance) Images
	Catalogue      func(digest string) bool // whether an image is one that comes with this program
	Features       func() []datapath.Feature
	Kernel         func() agent.Kernel // of hosts that are not this machine; nil: this machine's
}
