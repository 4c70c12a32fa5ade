package image

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

// Signatures are those of cosign: a "simple signing" payload that names an image and the digest of its manifest, an ECDSA P-256 signature over it, and both as a
// layer of a manifest about the image. See https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md.
const (
	simpleSigning       = "application/vnd.dev.cosign.simplesigning.v1+json"
	signatureAnnotation = "dev.cosignproject.cosign/signature" // base64
	signatureType       = "cosign container image signature"
)

// ErrUnsigned is about an image that has no signature that counts.
var ErrUnsigned = errors.New("image not signed as it has to be")

// Signature is what one says; whether it is true only Check tells.
type Signature struct {
	Name   string // of the image, without a tag: docker-reference
	Digest string // of the manifest
	raw    []byte // ASN.1
	body   []byte
}

// payload of a signature.
type payload struct {
	Critical struct {
		Identity struct {
			Reference string `json:"docker-reference"`
		} `json:"identity"`
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
	Optional map[string]any `json:"optional"`
}

// signaturesOf artifacts. What is no signature is left out.
func signaturesOf(all []artifact) (out []Signature) {
	for _, a := range all {
		for _, l := range a.parsed.Layers {
			raw, err := base64.StdEncoding.DecodeString(l.Annotations[signatureAnnotation])
			var p payload
			body := a.blobs[l.Digest]
			if l.MediaType != simpleSigning || err != nil || len(raw) == 0 || json.Unmarshal(body, &p) != nil {
				continue
			}
			out = append(out, Signature{Name: p.Critical.Identity.Reference, Digest: p.Critical.Image.Digest, raw: raw, body: body})
		}
	}
	return out
}

// mergeSignatures makes one manifest of all signatures of an image, as cosign has it.
func mergeSignatures(subject v1.Descriptor, all []artifact) (artifact, error) {
	blobs := map[v1.Hash][]byte{}
	var layers []v1.Descriptor
	for _, a := range all {
		for _, l := range a.parsed.Layers {
			same := func(x v1.Descriptor) bool {
				return x.Digest == l.Digest && x.Annotations[signatureAnnotation] == l.Annotations[signatureAnnotation]
			}
			if l.MediaType == simpleSigning && !slices.ContainsFunc(layers, same) {
				layers = append(layers, l)
				blobs[l.Digest] = a.blobs[l.Digest]
			}
		}
	}
	if n := len(layers); n == 0 || n > maxSignatures {
		return artifact{}, fmt.Errorf("%w: it has %d signatures, want 1 to %d", errArtifact, n, maxSignatures)
	}
	slices.SortFunc(layers, func(a, b v1.Descriptor) int {
		return cmp.Or(strings.Compare(a.Digest.Hex, b.Digest.Hex), strings.Compare(a.Annotations[signatureAnnotation], b.Annotations[signatureAnnotation]))
	})
	config, err := json.Marshal(v1.ConfigFile{RootFS: v1.RootFS{Type: "layers", DiffIDs: digests(layers)}})
	if err != nil {
		return artifact{}, err
	}
	return newArtifact(subject, signatureArtifact, config, types.OCIConfigJSON, layers, blobs)
}

// Sign an image with a key, under a name; empty: its own. The signature is kept in the instance's own layout, beside others' of the image. Of an image for
// several platforms the index is signed, and this machine's manifest. It gives the digest that its name stands for.
func (s *Store) Sign(ctx context.Context, ref, name string, key *ecdsa.PrivateKey) (digest string, err error) {
	e, err := s.resolve(ref)
	if err != nil {
		return "", fmt.Errorf("image %s: %w", ref, err)
	}
	if name == "" {
		if name, _, _, err = splitRef(ref); err != nil {
			return "", fmt.Errorf("image %s: %w", ref, err)
		}
	}
	if name = repository(name); name == "" {
		return "", fmt.Errorf("image %s: a digest is no name: want the name under which the image is used, such as registry.example.org/nf/filter (--as)", ref)
	}
	subjects, err := e.descriptors()
	if err != nil {
		return "", fmt.Errorf("image %s: %w", ref, err)
	}
	var all []artifact
	for _, d := range subjects {
		a, err := signed(d, name, key)
		if err != nil {
			return "", fmt.Errorf("sign image %s: %w", ref, err)
		}
		all = append(all, a)
	}
	own := writable(s.own)
	if _, err := own.first(ctx); err != nil {
		return "", err
	}
	if err := own.attach(ctx, e.layout != s.own, all...); err != nil {
		return "", fmt.Errorf("sign image %s: %w", ref, err)
	}
	return e.top.Digest.String(), nil
}

// signed is one signature over a manifest. The same key and name give the same bytes (RFC 6979).
func signed(d v1.Descriptor, name string, key *ecdsa.PrivateKey) (artifact, error) {
	var p payload
	p.Critical.Identity.Reference, p.Critical.Image.Digest, p.Critical.Type = name, d.Digest.String(), signatureType
	body, err := json.Marshal(p)
	if err != nil {
		return artifact{}, err
	}
	sum := sha256.Sum256(body)
	raw, err := key.Sign(nil, sum[:], crypto.SHA256)
	if err != nil {
		return artifact{}, err
	}
	h, size, err := v1.SHA256(bytes.NewReader(body))
	if err != nil {
		return artifact{}, err
	}
	layer := v1.Descriptor{MediaType: simpleSigning, Digest: h, Size: size, Annotations: map[string]string{signatureAnnotation: base64.StdEncoding.EncodeToString(raw)}}
	return newArtifact(d, signatureArtifact, []byte("{}"), types.OCIConfigJSON, []v1.Descriptor{layer}, map[v1.Hash][]byte{h: body})
}

// descriptors of what is signed of an image.
func (e *entry) descriptors() ([]v1.Descriptor, error) {
	out := []v1.Descriptor{{MediaType: e.top.MediaType, Digest: e.top.Digest, Size: e.top.Size}}
	for _, h := range e.subjects()[1:] {
		raw, err := readBlob(e.layout, h)
		if err != nil {
			return nil, err
		}
		m, err := v1.ParseManifest(bytes.NewReader(raw))
		if err != nil {
			return nil, err
		}
		out = append(out, v1.Descriptor{MediaType: m.MediaType, Digest: h, Size: int64(len(raw))})
	}
	return out, nil
}

// CheckSignature tells whether an image has a signature by one of some keys, over its manifest and under a name; empty: its own.
func (s *Store) CheckSignature(ref, name string, keys ...*ecdsa.PublicKey) (Signature, error) {
	e, err := s.resolve(ref)
	if err != nil {
		return Signature{}, fmt.Errorf("image %s: %w", ref, err)
	}
	if name == "" {
		if name, _, _, err = splitRef(ref); err != nil {
			return Signature{}, fmt.Errorf("image %s: %w", ref, err)
		}
	}
	sig, err := s.check(e, repository(name), keys)
	if err != nil {
		return sig, fmt.Errorf("image %s: %w", ref, err)
	}
	return sig, nil
}

// check an image's signatures. With an empty name any will do.
func (s *Store) check(e *entry, name string, keys []*ecdsa.PublicKey) (Signature, error) {
	all, err := s.artifacts(e.subjects()...)
	if err != nil {
		return Signature{}, fmt.Errorf("%w: its signatures cannot be read: %w", ErrUnsigned, err)
	}
	sigs := signaturesOf(all)
	if len(sigs) == 0 {
		return Signature{}, fmt.Errorf("%w: it has no signature: `weir image sign` or cosign makes one", ErrUnsigned)
	}
	why := fmt.Errorf("%w: none of its %d signatures is by the key", ErrUnsigned, len(sigs))
	for _, sig := range sigs[:min(len(sigs), 2*maxSignatures)] {
		sum := sha256.Sum256(sig.body)
		if !slices.ContainsFunc(keys, func(k *ecdsa.PublicKey) bool { return ecdsa.VerifyASN1(k, sum[:], sig.raw) }) {
			continue
		}
		var p payload
		if err := json.Unmarshal(sig.body, &p); err != nil || p.Critical.Type != signatureType {
			why = fmt.Errorf("%w: the key has signed something that is no image", ErrUnsigned)
			continue
		}
		if !slices.ContainsFunc(e.subjects(), func(h v1.Hash) bool { return h.String() == sig.Digest }) {
			why = fmt.Errorf("%w: the key's signature is over %s, the image is %s", ErrUnsigned, clipped(sig.Digest), e.top.Digest)
			continue
		}
		if name != "" && repository(sig.Name) != name {
			why = fmt.Errorf("%w: the key's signature is for the name %s, not %s", ErrUnsigned, clipped(sig.Name), name)
			continue
		}
		return sig, nil
	}
	return Signature{}, why
}

// clipped is a stranger's word in a message.
func clipped(s string) string { return fmt.Sprintf("%.200q", s) }

// repository of a reference, as signatures name it: without tag and digest. However one is written, it is the same here.
func repository(ref string) string {
	if r, err := ParseRemote(ref, RemoteOptions{}); err == nil {
		return strings.ToLower(r.Context().Name())
	}
	name, _, _, err := splitRef(ref)
	if err != nil {
		return ""
	}
	return strings.ToLower(name)
}

// maxKeyFile bounds a key's file in bytes.
const maxKeyFile = 64 << 10

func readKey(file string) ([]*pem.Block, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", file, err)
	}
	var out []*pem.Block
	for {
		var b *pem.Block
		if b, text = pem.Decode(text); b == nil {
			break
		}
		if b.Type != "EC PARAMETERS" { // which openssl writes before its keys
			out = append(out, b)
		}
	}
	if len(out) != 1 {
		return nil, fmt.Errorf("key %s: it has %d keys in PEM, want one", file, len(out))
	}
	return out, nil
}

const wantKey = "want an ECDSA key over P-256, as `cosign generate-key-pair` or `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256` makes it"

// ReadPublicKey reads a key to check signatures with: "PUBLIC KEY" in PEM, ECDSA over P-256.
func ReadPublicKey(file string) (*ecdsa.PublicKey, error) {
	b, err := readKey(file)
	if err != nil {
		return nil, err
	}
	if b[0].Type != "PUBLIC KEY" {
		return nil, fmt.Errorf("key %s: it is a %q, want the public key, such as cosign.pub or what `openssl pkey -in FILE -pubout` prints", file, b[0].Type)
	}
	k, err := x509.ParsePKIXPublicKey(b[0].Bytes)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", file, err)
	}
	if e, ok := k.(*ecdsa.PublicKey); ok && e.Curve == elliptic.P256() {
		return e, nil
	}
	return nil, fmt.Errorf("key %s: it is of another kind: %s", file, wantKey)
}

// ReadPrivateKey reads a key to sign with: PKCS #8 or SEC 1 in PEM, or one of cosign, for which password is asked.
func ReadPrivateKey(file string, password func() ([]byte, error)) (*ecdsa.PrivateKey, error) {
	blocks, err := readKey(file)
	if err != nil {
		return nil, err
	}
	b := blocks[0]
	der := b.Bytes
	var k any
	switch b.Type {
	case "ENCRYPTED COSIGN PRIVATE KEY", "ENCRYPTED SIGSTORE PRIVATE KEY":
		secret, perr := password()
		if perr != nil {
			return nil, perr
		}
		if der, err = encrypted.Decrypt(der, secret); err != nil {
			return nil, fmt.Errorf("key %s: wrong password, or a damaged file: %w", file, err)
		}
		k, err = x509.ParsePKCS8PrivateKey(der)
	case "PRIVATE KEY":
		k, err = x509.ParsePKCS8PrivateKey(der)
	case "EC PRIVATE KEY":
		k, err = x509.ParseECPrivateKey(der)
	case "ENCRYPTED PRIVATE KEY":
		return nil, fmt.Errorf("key %s: it is encrypted by openssl: decrypt it first (openssl pkey -in %s), or use a key of cosign", file, file)
	default:
		return nil, fmt.Errorf("key %s: it is a %q, want a private key", file, b.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", file, err)
	}
	if e, ok := k.(*ecdsa.PrivateKey); ok && e.Curve == elliptic.P256() {
		return e, nil
	}
	return nil, fmt.Errorf("key %s: it is of another kind: %s", file, wantKey)
}
