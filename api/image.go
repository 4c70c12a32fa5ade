package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Image is an image that hosts have: what its functions are like, by its labels.
type Image struct {
	Name         string          `json:"name"`   // as functions name it: firewall:1
	Digest       string          `json:"digest"` // sha256:... of the manifest
	Description  string          `json:"description,omitempty"`
	Size         int64           `json:"size_bytes,omitempty"` // of its layers, compressed
	Tap          bool            `json:"tap,omitempty"`        // one port, tap; else the two ports in and out
	Probe        bool            `json:"probe,omitempty"`      // its health is known by frames that go through it
	Forwarder    string          `json:"forwarder,omitempty"`  // the switch's own program that forwards in its place
	Rewrites     []string        `json:"rewrites,omitempty"`   // header fields that it may change
	Speaks       bool            `json:"speaks,omitempty"`     // it sends frames of its own
	Recreate     bool            `json:"recreate,omitempty"`   // a changed one takes the place of the former: never two at once
	Reload       bool            `json:"reload,omitempty"`     // a changed config is taken while it runs
	HandsOver    bool            `json:"hands_over,omitempty"` // a new instance takes the state of the former one over
	Capabilities []string        `json:"capabilities,omitempty"`
	Command      []string        `json:"command,omitempty"` // its entrypoint and arguments
	User         string          `json:"user,omitempty"`
	ConfigSchema json.RawMessage `json:"config_schema,omitempty"` // JSON Schema of functions' config; none: any config will do
	Example      string          `json:"example,omitempty"`       // a document with a function of it, its chain and a policy between alice and bob, as YAML
	Hosts        []string        `json:"hosts,omitempty"`         // that have it
	Manager      bool            `json:"manager,omitempty"`       // the manager has it: hosts that lack it fetch it from there
	Removable    bool            `json:"removable,omitempty"`     // it can be deleted from the manager: it did not come with Weir
}

// ImageList is the answer of GET /v1/images.
type ImageList struct {
	Items    []Image  `json:"items"`
	Warnings []string `json:"warnings,omitempty"` // of hosts that did not answer
}

// Bounds of what a host says of its images: the agent of a host is not trusted with more.
const (
	MaxImages      = 1_000
	MaxImageText   = 4 << 10  // bytes of a description
	MaxImageSchema = 64 << 10 // bytes of a config schema; a longer one is left out
	MaxImageSample = 16 << 10 // bytes of an example; a longer one is left out
)

// MaxImageArchive is how large an archive may be that is imported over the API, in bytes.
const MaxImageArchive = 1 << 30

// ImagePullState is how a pull stands.
type ImagePullState string

const (
	ImagePulling   ImagePullState = "pulling"
	ImagePulled    ImagePullState = "pulled"
	ImageFailed    ImagePullState = "failed"    // Message says why
	ImageCancelled ImagePullState = "cancelled" // another pull of the image goes on where it was
)

// States are all of them.
func (ImagePullState) States() []string {
	return texts(ImagePulling, ImagePulled, ImageFailed, ImageCancelled)
}

// ImagePullRequest asks the manager to fetch an image from a registry.
type ImagePullRequest struct {
	Reference string `json:"reference"`            // REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:DIGEST
	PlainHTTP bool   `json:"plain_http,omitempty"` // no TLS
}

// ImagePull is a fetch of an image from a registry to the manager, one that goes on or one of the last that ended.
type ImagePull struct {
	Name      string         `json:"name"`
	Reference string         `json:"reference"`
	PlainHTTP bool           `json:"plain_http,omitempty"`
	State     ImagePullState `json:"state"`
	Message   string         `json:"message,omitempty"`
	Warnings  []string       `json:"warnings,omitempty"` // what is left out of what the registry has about the image
	Done      int64          `json:"done_bytes"`
	Size      int64          `json:"size_bytes"` // of what has to be there in the end; 0: not known yet
	Digest    string         `json:"digest,omitempty"`
	Began     time.Time      `json:"began"`
	Ended     time.Time      `json:"ended,omitzero"`
}

// ImagePulls is the answer of GET /v1/images/pulls: the newest first.
type ImagePulls struct {
	Items []ImagePull `json:"items"`
}

// ImageImport is the answer of POST /v1/images/import: what the archive had.
type ImageImport struct {
	Items []Image `json:"items"`
}

// ImageGCRequest asks the manager to remove from its store what no image uses.
type ImageGCRequest struct {
	Plan bool `json:"plan,omitempty"` // remove nothing, only say what would go and what stays
}

// ImageGC is the answer: what was removed, or with a plan would be, and what stays.
type ImageGC struct {
	Plan        bool          `json:"plan,omitempty"`
	Removed     []ImageGCItem `json:"removed"`
	RemovedMore int           `json:"removed_more,omitempty"` // beside the first MaxImages that are listed
	Kept        []ImageGCItem `json:"kept"`
	KeptMore    int           `json:"kept_more,omitempty"`
	Freed       int64         `json:"freed_bytes"` // of all that was removed, or would be
}

// ImageGCItem is a part of a store: a blob, what is left of a pull or an import, or an image.
type ImageGCItem struct {
	Name string `json:"name"` // of an image; sha256:... of a blob; else of a file
	Size int64  `json:"size_bytes"`
	Why  string `json:"why"` // it goes, or stays
}

// Images lists the images that hosts have, by name.
func (c *Client) Images(ctx context.Context) (ImageList, error) {
	var out ImageList
	_, err := c.call(ctx, http.MethodGet, "/v1/images", nil, &out)
	return out, err
}

// PullImage has the manager fetch an image from a registry. It does not wait until it is there: ImagePulls tells.
func (c *Client) PullImage(ctx context.Context, r ImagePullRequest) (ImagePull, error) {
	var out ImagePull
	_, err := c.call(ctx, http.MethodPost, "/v1/images/pulls", r, &out)
	return out, err
}

// ImagePulls lists pulls that go on, and those that ended lately.
func (c *Client) ImagePulls(ctx context.Context) (ImagePulls, error) {
	var out ImagePulls
	_, err := c.call(ctx, http.MethodGet, "/v1/images/pulls", nil, &out)
	return out, err
}

// EndImagePull ends a pull that goes on, or forgets one that has ended.
func (c *Client) EndImagePull(ctx context.Context, name string) error {
	_, err := c.call(ctx, http.MethodDelete, "/v1/images/pulls/"+url.PathEscape(name), nil, nil)
	return err
}

// DeleteImage takes an image from the manager, by its name. Hosts that have it keep it, and functions that run go on.
func (c *Client) DeleteImage(ctx context.Context, name string) error {
	_, err := c.call(ctx, http.MethodDelete, "/v1/images?"+url.Values{"image": {name}}.Encode(), nil, nil)
	return err
}

// CollectImages removes from the manager's store what no image uses: what interrupted pulls and imports left.
func (c *Client) CollectImages(ctx context.Context, r ImageGCRequest) (ImageGC, error) {
	var out ImageGC
	_, err := c.call(ctx, http.MethodPost, "/v1/images/gc", r, &out)
	return out, err
}

// ImportImage gives the manager the images of an archive of size bytes, as `docker save` and `weir image export` write one. as is the name of the only image; empty:
// they keep those that they have.
func (c *Client) ImportImage(ctx context.Context, archive io.Reader, size int64, as string) (ImageImport, error) {
	path := "/v1/images/import"
	if as != "" {
		path += "?" + url.Values{"as": {as}}.Encode()
	}
	var out ImageImport
	resp, err := c.send(ctx, http.MethodPost, path, http.Header{"Content-Type": {ImageArchiveType}}, archive, size)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswerBytes)).Decode(&out); err != nil {
		return out, fmt.Errorf("POST %s: answer of %s: %w", path, c.where, err)
	}
	return out, nil
}

// ImageArchiveType is the content type of an archive of images.
const ImageArchiveType = "application/x-tar"
