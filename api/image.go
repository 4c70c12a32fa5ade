package api

import (
	"context"
	"encoding/json"
	"net/http"
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
	Hosts        []string        `json:"hosts,omitempty"`         // that have it
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
)

// Images lists the images that hosts have, by name.
func (c *Client) Images(ctx context.Context) (ImageList, error) {
	var out ImageList
	_, err := c.call(ctx, http.MethodGet, "/v1/images", nil, &out)
	return out, err
}
