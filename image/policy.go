package image

import (
	"crypto/ecdsa"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Policy says which images need a signature before they are used, by their names. Of several rules that fit a name, those with the longest pattern count, and
// a whole name before the same beginning of one: one of their keys will do.
type Policy []rule

type rule struct {
	pattern string           // a name without a tag, or what one begins with, and *
	key     *ecdsa.PublicKey // nil: no signature is needed
}

const (
	maxRules     = 100
	maxAdmitted  = 1000
	noKey        = "none"
	policySyntax = "want PATTERN=KEYFILE, for example 'registry.example.org/nf/*=nf.pub', or PATTERN=" + noKey
)

// ParsePolicy reads rules PATTERN=KEYFILE, and the keys.
func ParsePolicy(rules []string) (Policy, error) {
	if len(rules) > maxRules {
		return nil, fmt.Errorf("%d rules for signatures, at most %d", len(rules), maxRules)
	}
	var p Policy
	for _, text := range rules {
		pattern, file, ok := strings.Cut(text, "=")
		if !ok || pattern == "" || file == "" {
			return nil, fmt.Errorf("rule %q: %s", text, policySyntax)
		}
		pattern, err := checkPattern(pattern)
		if err != nil {
			return nil, fmt.Errorf("rule %q: %w", text, err)
		}
		r := rule{pattern: pattern}
		if file != noKey {
			if r.key, err = ReadPublicKey(file); err != nil {
				return nil, fmt.Errorf("rule %q: %w", text, err)
			}
		}
		if slices.ContainsFunc(p, func(x rule) bool { return x.pattern == r.pattern && (x.key == nil) != (r.key == nil) }) {
			return nil, fmt.Errorf("rule %q: other rules for %s say otherwise: want keys or %s, not both", text, r.pattern, noKey)
		}
		p = append(p, r)
	}
	return p, nil
}

// dockerIO is how names of docker.io are written, and how they begin as repository gives them.
const dockerIO, dockerIOName = "docker.io/", "index.docker.io/"

// checkPattern gives a pattern as it is compared with what repository gives. One that no name could fit is refused: what it is for would be used without a signature.
func checkPattern(pattern string) (string, error) {
	prefix, star := strings.CutSuffix(strings.ToLower(pattern), "*")
	host, path, slash := strings.Cut(prefix, "/")
	remote := slash && (host == "localhost" || strings.ContainsAny(host, ".:"))
	last := prefix[strings.LastIndex(prefix, "/")+1:]
	switch {
	case strings.Contains(prefix, "*"):
		return "", errors.New("* stands only at the end of a pattern")
	case strings.Contains(prefix, "://"):
		return "", fmt.Errorf("a pattern has no scheme: want %s", pattern[strings.Index(pattern, "://")+3:])
	case strings.ContainsAny(last, ":@"):
		return "", errors.New("a pattern is a name without a tag or digest, or the beginning of one and *: for all tags want registry.example.org/nf/x, for a registry with a port registry.example.org:5000/*")
	case !star && !slash && (last == "localhost" || strings.Contains(last, ".")):
		return "", fmt.Errorf("a pattern without / is the name of an image that is in no registry: want %s/* for a registry, %s* for names that begin so", last, last)
	case star && prefix != "" && !slash && strings.HasPrefix(dockerIO, prefix):
		return "", fmt.Errorf("names of docker.io begin with %s: want %s* for all of them", dockerIOName, dockerIO)
	}
	if strings.HasPrefix(prefix, dockerIO) { // as repository says it
		prefix = "index." + prefix
	}
	if star && strings.HasPrefix(prefix, dockerIOName) && path != "" && !strings.Contains(path, "/") {
		return "", fmt.Errorf("names of docker.io have a namespace: want %slibrary/%s* for Docker's own images, %s%s/* for those of %s", dockerIO, path, dockerIO, path, path)
	}
	full := prefix
	if star {
		full += "x"
	}
	err := checkPath(full)
	if err == nil && remote {
		_, err = ParseRemote(full, RemoteOptions{})
	}
	if err == nil && strings.ContainsFunc(full, unicode.IsSpace) {
		err = errors.New("a name has no white space")
	}
	if err != nil {
		return "", fmt.Errorf("no image could have such a name: %w", err)
	}
	if star {
		return prefix + "*", nil
	}
	return repository(prefix), nil
}

// keys that may have signed an image of a name; nil: it needs no signature.
func (p Policy) keys(name string) (keys []*ecdsa.PublicKey) {
	longest := -1
	free := false
	for _, r := range p {
		prefix, star := strings.CutSuffix(r.pattern, "*")
		length := 2 * len(prefix)
		if !star {
			length++ // a whole name is more than the same beginning of one
		}
		if !(star && strings.HasPrefix(name, prefix) || r.pattern == name) || length < longest {
			continue
		}
		if length > longest {
			longest, keys, free = length, nil, false
		}
		if r.key == nil {
			free = true
		} else {
			keys = append(keys, r.key)
		}
	}
	if free {
		return nil
	}
	return keys
}

// Require signatures from now on, of what is resolved, verified and mounted.
func (s *Store) Require(p Policy) { s.policy = p }

// signedNames are images whose signatures were good. A signature stays good: it is over a digest.
type signedNames struct {
	mu    sync.Mutex
	known map[string]bool // name and digest
}

func (a *signedNames) has(key string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.known[key]
}

func (a *signedNames) add(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil || len(a.known) >= maxAdmitted {
		a.known = map[string]bool{}
	}
	a.known[key] = true
}

// usable is an image that may be used: it has the signatures that the policy wants.
func (s *Store) usable(ref string) (*entry, error) {
	e, err := s.resolve(ref)
	if err == nil {
		err = s.allowed(ref, e)
	}
	return e, err
}

// allowed tells whether an image has the signatures that the policy wants of the names that a reference means.
func (s *Store) allowed(ref string, e *entry) error {
	if len(s.policy) == 0 {
		return nil
	}
	names, err := s.namesOf(ref, e)
	if err != nil {
		return err
	}
	for _, name := range names {
		keys := s.policy.keys(name)
		known := name + "@" + e.top.Digest.String()
		if len(keys) == 0 || s.admitted.has(known) {
			continue
		}
		if _, err := s.check(e, name, keys); err != nil {
			return fmt.Errorf("the host's rules for signatures (--verify) want one for %s: %w", name, err)
		}
		s.admitted.add(known)
	}
	return nil
}

// namesOf an image are those that rules are for. A reference by digest goes by all names that the image has here, since it would pass the rules for them by.
func (s *Store) namesOf(ref string, e *entry) ([]string, error) {
	name, _, digest, err := splitRef(ref)
	if err != nil {
		return nil, err
	}
	if digest == "" {
		return []string{repository(ref)}, nil
	}
	var names []string
	if name != "" {
		names = append(names, repository(ref))
	}
	for _, dir := range s.dirs {
		refs, err := readIndex(dir)
		if err != nil {
			return nil, err
		}
		for _, r := range refs {
			if slices.ContainsFunc(e.subjects(), func(h v1.Hash) bool { return h == r.desc.Digest }) {
				if n := repository(r.name); n != "" {
					names = append(names, n)
				}
			}
		}
	}
	if len(names) == 0 {
		names = []string{""}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
