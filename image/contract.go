package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

const labelPrefix = "weir."

var knownLabels = []string{
	LabelCapabilities, LabelConfigSchema, LabelExport, LabelForwarder, LabelImport, LabelIPFIX, LabelOffloads, LabelPorts, LabelProbe, LabelReload, LabelRewrites, LabelSettles, LabelSpeaks, LabelUpdate,
	LabelXDP,
}

// fields that weir.rewrites may name.
var rewriteFields = []string{"dst-ip", "dst-mac", "dst-port", "payload", "src-ip", "src-mac", "src-port", "ttl", "vlan"}

// forwarderName is the form of a forwarder's name. Which ones there are, switches say.
var forwarderName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// ParseContract reads an image's labels. An image without any weir.* label is an ordinary function between two ports that
// needs no capability. A weir.* label that this version does not know is refused: the image asks for something it would not get.
func ParseContract(labels map[string]string) (Contract, error) {
	c := Contract{Foreign: true, Description: labels[LabelDescription]}
	if text := labels[LabelExample]; len(text) <= maxExample && utf8.ValidString(text) {
		c.Example = text
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		c.Foreign = c.Foreign && !strings.HasPrefix(key, labelPrefix)
		if strings.HasPrefix(key, labelPrefix) && !slices.Contains(knownLabels, key) {
			return Contract{}, fmt.Errorf("label %s is not known to this version of Weir (known: %s)", key, strings.Join(knownLabels, ", "))
		}
	}
	switch ports := strings.ReplaceAll(labels[LabelPorts], " ", ""); ports {
	case "", "in,out":
	case "tap":
		c.Tap = true
	default:
		return Contract{}, fmt.Errorf("label %s=%q: want \"in,out\" or \"tap\"", LabelPorts, ports)
	}
	if c.Forwarder = labels[LabelForwarder]; c.Forwarder != "" && !forwarderName.MatchString(c.Forwarder) {
		return Contract{}, fmt.Errorf("label %s=%q: want a word such as \"wire\", or nothing", LabelForwarder, c.Forwarder)
	}
	if c.Tap && c.Forwarder != "" {
		return Contract{}, fmt.Errorf("label %s=%q: a tap forwards nothing", LabelForwarder, c.Forwarder)
	}
	var err error
	if c.Probe, err = boolLabel(labels, LabelProbe); err != nil {
		return Contract{}, err
	}
	if c.Speaks, err = boolLabel(labels, LabelSpeaks); err != nil {
		return Contract{}, err
	}
	switch u := labels[LabelUpdate]; u {
	case "", "beside":
	case "recreate":
		c.Recreate = true
	default:
		return Contract{}, fmt.Errorf("label %s: want beside or recreate, not %q", LabelUpdate, u)
	}
	// Lists name only what Weir can do or grant.
	c.Rewrites = listLabel(labels, LabelRewrites)
	for _, f := range c.Rewrites {
		if !slices.Contains(rewriteFields, f) {
			return Contract{}, fmt.Errorf("label %s: unknown field %q, want some of %s", LabelRewrites, f, strings.Join(rewriteFields, ", "))
		}
	}
	if c.Settles, err = boolLabel(labels, LabelSettles); err != nil {
		return Contract{}, err
	}
	if c.IPFIX, err = boolLabel(labels, LabelIPFIX); err != nil {
		return Contract{}, err
	}
	if c.Settles && c.Forwarder != "" {
		return Contract{}, fmt.Errorf("label %s=true: the forwarder %s of the switch hands everything on (label %s); there is nothing to settle",
			LabelSettles, c.Forwarder, LabelForwarder)
	}
	if c.XDP, err = boolLabel(labels, LabelXDP); err != nil {
		return Contract{}, err
	}
	if c.XDP && c.Forwarder != "" {
		return Contract{}, fmt.Errorf("label %s=true: the forwarder %s of the switch takes all frames (label %s); none comes to a socket", LabelXDP, c.Forwarder, LabelForwarder)
	}
	switch o := labels[LabelOffloads]; {
	case o == "any" && c.XDP:
		return Contract{}, fmt.Errorf("label %s=any: to AF_XDP sockets (label %s) frames come finished: leave it out", LabelOffloads, LabelXDP)
	case o == "none" && c.Forwarder != "":
		return Contract{}, fmt.Errorf("label %s=none: the forwarder %s of the switch takes all frames (label %s), and hands them on as they are", LabelOffloads, c.Forwarder, LabelForwarder)
	case o == "", o == "any", o == "none":
		c.Finished = o == "none" || c.XDP
	default:
		return Contract{}, fmt.Errorf("label %s: want any or none, not %q", LabelOffloads, o)
	}
	for key, command := range map[string]*[]string{LabelReload: &c.Reload, LabelExport: &c.Export, LabelImport: &c.Import} {
		if *command, err = commandLabel(labels, key); err != nil {
			return Contract{}, err
		}
	}
	if (c.Export == nil) != (c.Import == nil) {
		return Contract{}, fmt.Errorf("labels %s and %s: want both, since a new instance imports what the former one exports, or neither", LabelExport, LabelImport)
	}
	c.Capabilities = listLabel(labels, LabelCapabilities)
	for _, name := range c.Capabilities {
		if !slices.Contains(grantable, name) {
			return Contract{}, fmt.Errorf("label %s: %q cannot be granted, want some of %s", LabelCapabilities, name, strings.Join(grantable, ", "))
		}
	}
	if c.XDP && !slices.Contains(c.Capabilities, socketCapability) {
		return Contract{}, fmt.Errorf("label %s=true: its sockets want %s: name it in the label %s", LabelXDP, socketCapability, LabelCapabilities)
	}
	if s := labels[LabelConfigSchema]; s != "" {
		c.ConfigSchema = json.RawMessage(s)
		if _, err := c.schema(); err != nil {
			return Contract{}, fmt.Errorf("label %s: %w", LabelConfigSchema, err)
		}
	}
	return c, nil
}

// Needs are the capabilities of a function of the image: those that the image asks for. One that does not know Weir cannot ask, and gets those that the
// operator allows, of those that can be granted at all.
func (c Contract) Needs(allow []string) []string {
	if !c.Foreign {
		return c.Capabilities
	}
	return slices.DeleteFunc(slices.Clone(allow), func(name string) bool { return !slices.Contains(grantable, name) })
}

// Refused are the capabilities that the image asks for and its function may not have: those that the operator's allow does not name. Bounded: the function has a user
// namespace of its own; then it may have those that count in its own network namespace alone.
func (c Contract) Refused(allow []string, bounded bool) (refused []string) {
	for _, name := range c.Capabilities {
		if !slices.Contains(allow, name) && !(bounded && slices.Contains(own, name)) {
			refused = append(refused, name)
		}
	}
	return refused
}

// own are the capabilities that an image may ask for where a user namespace bounds them: they count in the function's network namespace alone. All others count only
// by the operator's word, and so do these without user namespaces.
var own = []string{"CAP_NET_ADMIN", "CAP_NET_RAW"}

// socketCapability is what the kernel wants of who makes an AF_XDP socket, in the network namespace where that is.
const socketCapability = "CAP_NET_RAW"

// grantable are the capabilities that an image may ask for. What would let a function out of its container is not among them.
var grantable = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_IPC_LOCK", "CAP_KILL", "CAP_NET_ADMIN",
	"CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID",
	"CAP_SYS_CHROOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
}

func boolLabel(labels map[string]string, key string) (bool, error) {
	switch v := labels[key]; v {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, fmt.Errorf("label %s=%q: want \"true\" or \"false\"", key, v)
	}
}

// maxCommand bounds a command in a label, in bytes.
const maxCommand = 1024

// commandLabel is a program of the image and its arguments, separated by blanks; there are no quotes.
func commandLabel(labels map[string]string, key string) ([]string, error) {
	text := labels[key]
	words := strings.Fields(text)
	switch {
	case len(words) == 0:
		return nil, nil
	case len(text) > maxCommand:
		return nil, fmt.Errorf("label %s: the command has %d bytes, want at most %d", key, len(text), maxCommand)
	case !strings.HasPrefix(words[0], "/") || strings.ContainsFunc(text, unicode.IsControl):
		return nil, fmt.Errorf("label %s=%q: want the path of a program in the image, such as /usr/bin/filter, and its arguments, in one line and without quotes", key, text)
	}
	return words, nil
}

func listLabel(labels map[string]string, key string) []string {
	var out []string
	for item := range strings.SplitSeq(labels[key], ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}

// schemaURL is what a config schema is called within its compiler.
const schemaURL = "weir:config"

func (c Contract) schema() (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(c.ConfigSchema))
	if err != nil {
		return nil, fmt.Errorf("no JSON: %w", err)
	}
	if err := checkWork(doc); err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(noLoader{})
	if err := compiler.AddResource(schemaURL, doc); err != nil {
		return nil, err
	}
	return compiler.Compile(schemaURL)
}

// noLoader keeps an image's schema from reaching files or the network by $ref.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("reference to %s: a config schema stands alone", url)
}

// ConfigProblem is one thing that is wrong in a config.
type ConfigProblem struct {
	Path    string // allow[0]; empty for the whole
	Message string
	Hint    string
}

func (p ConfigProblem) String() string {
	text := strings.TrimPrefix(p.Path+": "+p.Message, ": ")
	if p.Hint != "" {
		text += " (" + p.Hint + ")"
	}
	return text
}

// CheckConfig checks a function's config against the image's schema. Without a schema only an empty config passes, so that a
// misplaced key is never ignored in silence.
func (c Contract) CheckConfig(config map[string]any) []ConfigProblem {
	if len(c.ConfigSchema) == 0 {
		if len(config) > 0 {
			return []ConfigProblem{{Message: fmt.Sprintf("this image takes none (found %s)", strings.Join(slices.Sorted(maps.Keys(config)), ", "))}}
		}
		return nil
	}
	schema, err := c.schema()
	if err != nil {
		return []ConfigProblem{{Message: fmt.Sprintf("the image's schema: %s", err)}}
	}
	if config == nil {
		config = map[string]any{}
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return []ConfigProblem{{Message: err.Error()}}
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return []ConfigProblem{{Message: err.Error()}}
	}
	err = schema.Validate(doc)
	var invalid *jsonschema.ValidationError
	if errors.As(err, &invalid) {
		return c.causes(invalid, nil)
	}
	if err != nil {
		return []ConfigProblem{{Message: err.Error()}}
	}
	return nil
}

// causes reduces a validation error to what is wrong in the end.
func (c Contract) causes(e *jsonschema.ValidationError, out []ConfigProblem) []ConfigProblem {
	_, names := e.ErrorKind.(*kind.PropertyNames) // its causes stand nowhere
	for _, cause := range e.Causes {
		if names {
			cause.InstanceLocation = e.InstanceLocation
		}
		out = c.causes(cause, out)
	}
	if len(e.Causes) > 0 {
		return out
	}
	at := ""
	for _, step := range e.InstanceLocation {
		if _, err := strconv.Atoi(step); err == nil {
			at += "[" + step + "]"
		} else {
			at += "." + step
		}
	}
	at = strings.TrimPrefix(at, ".")
	if extra, ok := e.ErrorKind.(*kind.AdditionalProperties); ok {
		hint := ""
		if known := c.keys(e.SchemaURL); len(known) > 0 {
			hint = "known are " + strings.Join(known, ", ")
		}
		for _, name := range slices.Sorted(slices.Values(extra.Properties)) {
			out = append(out, ConfigProblem{Path: strings.TrimPrefix(at+"."+name, "."), Message: "unknown key", Hint: hint})
		}
		return out
	}
	if p, ok := e.ErrorKind.(*kind.Pattern); ok { // few can read those
		if text := c.description(e.SchemaURL); text != "" {
			return append(out, ConfigProblem{Path: at, Message: fmt.Sprintf("is %q", p.Got), Hint: "want " + text})
		}
	}
	text := e.Error() // "... at '/allow/0': 'x' does not match pattern 'y'"
	if _, after, ok := strings.Cut(text, "at '/"+strings.Join(e.InstanceLocation, "/")+"': "); ok {
		text = after
	} else if _, after, ok := strings.Cut(text, "at '': "); ok {
		text = after
	}
	hint := ""
	if _, ok := e.ErrorKind.(*kind.Type); ok {
		hint = c.description(e.SchemaURL)
	}
	return append(out, ConfigProblem{Path: at, Message: strings.TrimSpace(text), Hint: hint})
}

// description is what the schema says for people at a place, such as "weir:config#/$defs/services/items".
func (c Contract) description(url string) string {
	text, _ := c.at(url)["description"].(string)
	return text
}

// keys are the properties that the schema has at a place, sorted.
func (c Contract) keys(url string) []string {
	properties, _ := c.at(url)["properties"].(map[string]any)
	return slices.Sorted(maps.Keys(properties))
}

// at is the part of the schema at a place; nil: there is none.
func (c Contract) at(url string) map[string]any {
	var w weigher
	if json.Unmarshal(c.ConfigSchema, &w.root) != nil {
		return nil
	}
	at, _ := w.find(strings.TrimPrefix(url, schemaURL))
	object, _ := at.(map[string]any)
	return object
}
