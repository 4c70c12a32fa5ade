// Package image keeps OCI images in a layout on disk and mounts their layers for containers.
package image

import (
	"encoding/json"
	"errors"
)

var (
	ErrNotFound = errors.New("image not found")
	ErrCorrupt  = errors.New("image corrupt")
	ErrArchive  = errors.New("unusable archive") // of images, or a layout
	ErrRecipe   = errors.New("unusable recipe")  // or files that it names
)

// Labels of the NF contract, in the OCI image config.
const (
	LabelPorts        = "weir.ports"         // "in,out" or "tap"
	LabelForwarder    = "weir.forwarder"     // a program of the switch that forwards for the function, such as "wire"; empty: the function does
	LabelProbe        = "weir.probe"         // "true": frames of the probe ethertype pass through unchanged
	LabelRewrites     = "weir.rewrites"      // comma-separated header fields it changes; empty none
	LabelUpdate       = "weir.update"        // "recreate": no two instances at once, a change ends the former one first; default "beside"
	LabelSettles      = "weir.settles"       // "true": it may settle flows, which then pass it by
	LabelOffloads     = "weir.offloads"      // "none": frames come to it finished, as on a wire: nothing is left to hardware; default "any"
	LabelXDP          = "weir.xdp"           // "true": it takes the frames of its ports by AF_XDP sockets, into which the host leads them
	LabelIPFIX        = "weir.ipfix"         // "true": it exports flows, which the host's agent hands on to a collector
	LabelReload       = "weir.reload"        // command that has the function take a changed config while it runs; its input is the config
	LabelExport       = "weir.export"        // command that prints the function's state
	LabelImport       = "weir.import"        // command that gives a new instance the state that another one exported, as its input
	LabelSpeaks       = "weir.speaks"        // "true": frames that its own interfaces originate may leave
	LabelCapabilities = "weir.capabilities"  // comma-separated, e.g. CAP_NET_ADMIN
	LabelConfigSchema = "weir.config-schema" // JSON Schema of the function's config
	LabelDescription  = "org.opencontainers.image.description"
	// LabelExample has a document with a function of the image, its chain and a policy, for people. It asks for nothing, so it is none of weir.*: a version that does
	// not know it takes the image all the same.
	LabelExample = "dev.weir.example"
)

// maxExample bounds an example, in bytes.
const maxExample = 16 << 10

// Contract is what an NF image declares of itself in its labels.
type Contract struct {
	Foreign      bool // there is no label of Weir's: it was made without knowledge of Weir
	Tap          bool
	Forwarder    string
	Probe        bool
	Rewrites     []string
	Recreate     bool // no two instances at once
	Settles      bool
	Finished     bool     // frames come to it as on a wire: cut to its ports' MTU, with checksums
	XDP          bool     // takes frames by AF_XDP sockets, to which they come finished
	IPFIX        bool     // exports flows
	Reload       []string // program and arguments; so are the next two
	Export       []string
	Import       []string
	Speaks       bool
	Capabilities []string
	ConfigSchema json.RawMessage
	Description  string
	Example      string // YAML, see LabelExample
}

// Image is one resolved image.
type Image struct {
	Ref      string // as the user wrote it, e.g. "firewall" or "firewall:1"
	Digest   string // sha256:... of the manifest
	Args     []string
	Env      []string
	Dir      string
	User     string
	Layers   []string // diff IDs, lowest first
	Size     int64    // bytes of the layers, compressed
	Contract Contract
}
