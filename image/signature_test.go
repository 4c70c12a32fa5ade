package image

import (
	"archive/tar"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"

	"weir.dev/weir/sbom"
)

// openssl runs a command of it, and gives what it prints.
func openssl(t *testing.T, args ...string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "openssl", args...).Output()
	if err != nil {
		t.Fatalf("openssl %v: %v%s", args, err, said(err))
	}
	return out
}

// keyPair makes keys as the documentation says.
func keyPair(t *testing.T) (private, public string) {
	t.Helper()
	dir := t.TempDir()
	private, public = filepath.Join(dir, "key"), filepath.Join(dir, "pub")
	openssl(t, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", private)
	openssl(t, "pkey", "-in", private, "-pubout", "-out", public)
	return private, public
}

func noPassword() ([]byte, error) { return nil, errors.New("no password") }

// signWith signs an image under its own name.
func signWith(t *testing.T, s *Store, ref, private string) string {
	t.Helper()
	k, err := ReadPrivateKey(private, noPassword)
	must(t, err)
	digest, err := s.Sign(t.Context(), ref, "", k)
	must(t, err)
	return digest
}

func publicKey(t *testing.T, file string) *ecdsa.PublicKey {
	t.Helper()
	k, err := ReadPublicKey(file)
	must(t, err)
	return k
}

// A signature is one of cosign's: openssl, which knows nothing of us, finds it good, and the payload is as cosign's specification has it. Signing twice adds none.
func TestSignaturesAreCosigns(t *testing.T) {
	private, public := keyPair(t)
	img := bigImage(t, 1, 1000)
	s := with(t, "nf:1", img)
	digest, err := img.Digest()
	must(t, err)
	for range 2 {
		if got := signWith(t, s, "nf:1", private); got != digest.String() {
			t.Errorf("signed %s, want %s", got, digest)
		}
	}
	about, err := s.About("nf:1")
	must(t, err)
	if len(about.Signatures) != 1 || about.Signatures[0].Name != "nf" || about.Signatures[0].Digest != digest.String() {
		t.Fatalf("%+v", about.Signatures)
	}
	raw, _, err := s.tagged("nf", "sha256-"+digest.Hex+".sig") // where cosign looks
	must(t, err)
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	must(t, err)
	if l := m.Layers[0]; m.Subject.Digest != digest || m.Config.MediaType != types.OCIConfigJSON || l.MediaType != "application/vnd.dev.cosign.simplesigning.v1+json" {
		t.Errorf("%s", raw)
	}
	body, err := readBlob(s.own, m.Layers[0].Digest)
	must(t, err)
	want := fmt.Sprintf(`{"critical":{"identity":{"docker-reference":"nf"},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, digest)
	if string(body) != want {
		t.Errorf("payload %s\nwant    %s", body, want)
	}
	sig, err := base64.StdEncoding.DecodeString(m.Layers[0].Annotations["dev.cosignproject.cosign/signature"])
	must(t, err)
	if out := openssl(t, "dgst", "-sha256", "-verify", public, "-signature", file(t, sig), file(t, body)); !strings.Contains(string(out), "Verified OK") {
		t.Errorf("openssl: %s", out)
	}
}

// cosignSigns puts a signature into a registry as cosign does: by its own tag, without a subject. openssl makes it.
func cosignSigns(t *testing.T, repo, as string, digest v1.Hash, private string, times int) {
	t.Helper()
	sigs := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for n := range times {
		body := fmt.Sprintf(`{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":{"n":%d}}`, as, digest, n)
		sig := openssl(t, "dgst", "-sha256", "-sign", private, file(t, []byte(body)))
		var err error
		sigs, err = mutate.Append(sigs, mutate.Addendum{Layer: static.NewLayer([]byte(body), simpleSigning), MediaType: simpleSigning,
			Annotations: map[string]string{signatureAnnotation: base64.StdEncoding.EncodeToString(sig)}})
		must(t, err)
	}
	tag, err := name.NewTag(repo + ":sha256-" + digest.Hex + ".sig")
	must(t, err)
	must(t, remote.Write(tag, sigs))
}

// Signatures and bills of materials go with an image to Debian's registry, which knows no referrers, and to ours, into an archive and back; others' signatures stay.
func TestWhatIsAboutAnImageGoesWithIt(t *testing.T) {
	private, public := keyPair(t)
	theirKey, theirPublic := keyPair(t)
	from := newStore(t)
	digest, err := v1.NewHash(built(t, from.own, recipe(t, "fw", "1", "hello")))
	must(t, err)
	bill, _, err := from.SBOM("fw")
	must(t, err)
	theirs := debianRegistry(t)
	ref := theirs + "/nf/fw:1"
	_, err = from.Push(t.Context(), "fw", ref, RemoteOptions{})
	must(t, err)
	cosignSigns(t, theirs+"/nf/fw", theirs+"/nf/fw", digest, theirKey, 1)
	k, err := ReadPrivateKey(private, noPassword)
	must(t, err)
	_, err = from.Sign(t.Context(), "fw", theirs+"/nf/fw", k)
	must(t, err)
	_, err = from.Push(t.Context(), "fw", ref, RemoteOptions{})
	must(t, err)
	check := func(where string, s *Store, ref string) {
		t.Helper()
		for _, key := range []string{public, theirPublic} {
			if _, err := s.CheckSignature(ref, theirs+"/nf/fw", publicKey(t, key)); err != nil {
				t.Errorf("%s: %v", where, err)
			}
		}
		if got, kind, err := s.SBOM(ref); err != nil || kind != sbom.MediaType || !bytes.Equal(got, bill) {
			t.Errorf("%s: SBOM of %d bytes, %s: %v", where, len(got), kind, err)
		}
	}
	pulled := newStore(t)
	_, err = pulled.Pull(t.Context(), ref, RemoteOptions{Warn: func(text string) { t.Error(text) }})
	must(t, err)
	check("pulled from Debian's", pulled, ref)
	must(t, writable(pulled.own).remove(t.Context(), "nothing")) // which collects
	check("after a collection", pulled, ref)

	ours := registryOf(t, pulled, "")
	again := newStore(t)
	_, err = again.PullFrom(t.Context(), ref, Peer{URL: ours.URL, Name: "the manager", Client: ours.Client()}, RemoteOptions{})
	must(t, err)
	check("pulled from ours", again, ref)

	archive := filepath.Join(t.TempDir(), "fw.tar")
	f, err := os.Create(archive)
	must(t, err)
	must(t, again.Export(t.Context(), ref, f))
	must(t, f.Close())
	var second bytes.Buffer
	must(t, pulled.Export(t.Context(), ref, &second))
	if first, err := os.ReadFile(archive); err != nil || !bytes.Equal(first, second.Bytes()) {
		t.Errorf("two exports differ: %v", err)
	}
	imported := newStore(t)
	_, err = imported.Import(t.Context(), archive, "mine:1")
	must(t, err)
	check("imported", imported, "mine:1")
	if out, err := exec.Command("skopeo", "inspect", "--raw", "oci-archive:"+archive).CombinedOutput(); err != nil { // without a name
		t.Errorf("skopeo: %v: %s", err, out)
	}
	resp, err := fetched(ours.URL + "/v2/x/referrers/" + digest.String() + "?artifactType=" + sbom.MediaType)
	must(t, err)
	var index v1.IndexManifest
	must(t, json.Unmarshal(resp, &index))
	if len(index.Manifests) != 1 || index.Manifests[0].ArtifactType != sbom.MediaType {
		t.Errorf("%s", resp)
	}
	// What is deleted takes with it what is about it.
	must(t, again.Delete(t.Context(), ref))
	if blobs, _ := filepath.Glob(filepath.Join(again.own, "blobs", "sha256", "*")); len(blobs) > 0 {
		t.Errorf("left: %v", blobs)
	}
}

// Only a signature by the key, over the image and its name, counts; what is no signature, too large or too much is refused, and the host uses no such image.
func TestSignaturesThatDoNotCount(t *testing.T) {
	private, public := keyPair(t)
	other, _ := keyPair(t)
	theirs := debianRegistry(t)
	img := bigImage(t, 1, 1000)
	digest, err := img.Digest()
	must(t, err)
	foreign := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("1", 64)}
	for what, c := range map[string]struct {
		sign func(repo string)
		want string
	}{
		"none":           {func(string) {}, "it has no signature"},
		"another key":    {func(repo string) { cosignSigns(t, repo, repo, digest, other, 1) }, "none of its 1 signatures is by the key"},
		"another digest": {func(repo string) { signAs(t, repo, repo, digest, foreign, private, 1) }, "the key's signature is over \"sha256:111"},
		"another name":   {func(repo string) { cosignSigns(t, repo, theirs+"/evil", digest, private, 1) }, "is for the name"},
		"a thousand":     {func(repo string) { many(t, repo, digest, 1000, 1) }, "it has no signature"},
		"huge":           {func(repo string) { many(t, repo, digest, 1, maxSigned+1) }, "it has no signature"},
		"garbage":        {func(repo string) { many(t, repo, digest, 3, 100) }, "it has no signature"},
		"its own":        {func(repo string) { cosignSigns(t, repo, repo, digest, private, 1) }, ""},
		"one of some":    {func(repo string) { cosignSigns(t, repo, repo, digest, private, 3) }, ""},
	} {
		t.Run(what, func(t *testing.T) {
			repo := theirs + "/nf/" + strings.ReplaceAll(what, " ", "-")
			tag, err := name.NewTag(repo + ":1")
			must(t, err)
			must(t, remote.Write(tag, img))
			c.sign(repo)
			s := newStore(t)
			policy, err := ParsePolicy([]string{theirs + "/*=" + public, theirs + "/free=none"})
			must(t, err)
			_, err = s.Pull(t.Context(), repo+":1", RemoteOptions{})
			must(t, err)
			must(t, writable(s.own).put(t.Context(), "local:1", bigImage(t, 1, 10)))
			s.Require(policy)
			_, checked := s.CheckSignature(repo+":1", "", publicKey(t, public))
			_, resolved := s.Resolve(repo + ":1")
			_, verified := s.Verify(t.Context(), repo+":1")
			_, mounted := s.Mount(t.Context(), repo+":1")
			_, byDigest := s.Resolve(digest.String())
			_, byAlias := s.Resolve("local@" + digest.String())
			for how, err := range map[string]error{"check": checked, "resolve": resolved, "verify": verified, "mount": mounted, "by digest": byDigest, "by alias": byAlias} {
				switch {
				case c.want == "" && err != nil:
					t.Errorf("%s: %v", how, err)
				case c.want != "" && (!errors.Is(err, ErrUnsigned) || !strings.Contains(err.Error(), c.want)):
					t.Errorf("%s: %v, want %q", how, err, c.want)
				}
			}
			if _, err := s.Resolve("local:1"); err != nil {
				t.Errorf("a name without a rule: %v", err)
			}
		})
	}
}

// signAs is cosignSigns of an image with the signature of another digest.
func signAs(t *testing.T, repo, as string, at, over v1.Hash, private string, times int) {
	t.Helper()
	cosignSigns(t, repo, as, over, private, times)
	from, err := name.NewTag(repo + ":sha256-" + over.Hex + ".sig")
	must(t, err)
	img, err := remote.Image(from)
	must(t, err)
	to, err := name.NewTag(repo + ":sha256-" + at.Hex + ".sig")
	must(t, err)
	must(t, remote.Write(to, img))
}

// many puts layers of random bytes where signatures are.
func many(t *testing.T, repo string, digest v1.Hash, n, size int) {
	t.Helper()
	sigs := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	body := make([]byte, size)
	_, err := rand.Read(body)
	must(t, err)
	var add []mutate.Addendum
	for i := range n {
		add = append(add, mutate.Addendum{Layer: static.NewLayer(body, simpleSigning), MediaType: simpleSigning, Annotations: map[string]string{signatureAnnotation: base64.StdEncoding.EncodeToString(fmt.Append(nil, i))}})
	}
	sigs, err = mutate.Append(sigs, add...)
	must(t, err)
	tag, err := name.NewTag(repo + ":sha256-" + digest.Hex + ".sig")
	must(t, err)
	must(t, remote.Write(tag, sigs))
}

// Rules are about names, however these are written; the longest pattern counts.
func TestRulesForSignatures(t *testing.T) {
	_, a := keyPair(t)
	_, b := keyPair(t)
	p, err := ParsePolicy([]string{"*=" + a, "docker.io/*=" + b, "docker.io/library/debian=none", "registry.example.org/nf/*=" + a, "registry.example.org/nf/*=" + b, "registry.example.org/nf/x=none",
		"registry.example.org/f*=none", "registry.example.org/f=" + a, "registry.example.org:5000/*=" + b, "docker.io/library/redis*=none", "Local*=none", "local=" + a})
	must(t, err)
	for ref, want := range map[string]int{
		"firewall": 1, "firewall:1": 1, "docker.io/nginx": 1, "docker.io/debian:13": 0, "docker.io/library/debian": 0, "index.docker.io/library/debian": 0,
		"registry.example.org/nf/y:2": 2, "REGISTRY.example.org/nf/y:2": 2, "registry.example.org/nf/x:7": 0, "registry.example.org/nfx": 1,
		"registry.example.org/f:1": 1, "registry.example.org/fw": 0, "registry.example.org:5000/x:2": 1, "docker.io/redis": 0, "docker.io/redis/x": 1, "local:1": 1, "locals": 0,
	} {
		if got := p.keys(repository(ref)); len(got) != want {
			t.Errorf("%s: %d keys, want %d", ref, len(got), want)
		}
	}
	for rule, want := range map[string]string{
		"x": "want PATTERN=KEYFILE", "=k": "want PATTERN=KEYFILE", "x=": "want PATTERN=KEYFILE", "a*b=" + a: "only at the end", "x:1=" + a: "without a tag", "x=/nowhere": "no such file",
		// No name could ever fit these.
		"registry.example.org/nf/x:*=" + a: "without a tag", "x:*=" + a: "without a tag", "registry.example.org:5*=" + a: "registry.example.org:5000/*",
		"registry.example.org/nf/x@sha256:*=" + a: "digest", "registry.example.org/nf/x@*=" + a: "digest", "@*=" + a: "digest",
		"https://Registry.example.org/nf/*=" + a: "no scheme: want Registry.example.org/nf/*", "http://x=" + a: "no scheme: want x",
		"docker.io*=" + a: "want docker.io/*", "dock*=" + a: "want docker.io/*", "DOCKER.IO/debian*=" + a: "want docker.io/library/debian* ", "index.docker.io/debian*=" + a: "docker.io/debian/*",
		"ghcr.io=" + a: "want ghcr.io/*", "localhost=" + a: "want localhost/*", "ghcr.io/nf/=" + a: "no image could", "ghcr.io//nf/*=" + a: "no image could", "/nf/*=" + a: "no image could",
		"ghcr.io/../nf*=" + a: "no image could", "ghcr.io/n f/*=" + a: "no image could", "my fw=" + a: "white space", "ghcr.io/n%66/*=" + a: "no image could",
		// Rules that contradict each other.
		"nf/*=" + a + "\nNF/*=none": "not both", "docker.io/debian=none\nindex.docker.io/library/debian=" + b: "not both",
	} {
		if _, err := ParsePolicy(strings.Split(rule, "\n")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", rule, err, want)
		}
	}
	if _, err := ParsePolicy(make([]string, maxRules+1)); err == nil {
		t.Error("too many rules")
	}
}

// Keys of openssl and cosign are read; others are refused with what would be right.
func TestKeys(t *testing.T) {
	private, public := keyPair(t)
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(k)
	must(t, err)
	secret, err := encrypted.Encrypt(der, []byte("open"))
	must(t, err)
	cosign := file(t, pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED SIGSTORE PRIVATE KEY", Bytes: secret}))
	got, err := ReadPrivateKey(cosign, func() ([]byte, error) { return []byte("open"), nil })
	if err != nil || !got.Equal(k) {
		t.Errorf("cosign's: %v", err)
	}
	sec1 := file(t, openssl(t, "ecparam", "-name", "prime256v1", "-genkey"))
	if _, err := ReadPrivateKey(sec1, noPassword); err != nil {
		t.Errorf("SEC 1: %v", err)
	}
	for what, c := range map[string]struct{ file, want string }{
		"the public one":   {public, "want a private key"},
		"no key":           {file(t, []byte("hello")), "it has 0 keys"},
		"two":              {file(t, append(openssl(t, "pkey", "-in", private), openssl(t, "pkey", "-in", private)...)), "it has 2 keys"},
		"RSA":              {file(t, openssl(t, "genpkey", "-algorithm", "RSA")), "want an ECDSA key over P-256"},
		"P-384":            {file(t, openssl(t, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384")), "want an ECDSA key over P-256"},
		"openssl's secret": {file(t, openssl(t, "pkey", "-in", private, "-aes256", "-passout", "pass:x")), "decrypt it first"},
		"no password":      {cosign, "no password"},
	} {
		if _, err := ReadPrivateKey(c.file, noPassword); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
	if _, err := ReadPrivateKey(cosign, func() ([]byte, error) { return []byte("shut"), nil }); err == nil || !strings.Contains(err.Error(), "wrong password") {
		t.Errorf("wrong password: %v", err)
	}
	if _, err := ReadPublicKey(private); err == nil || !strings.Contains(err.Error(), "want the public key") {
		t.Errorf("a private key: %v", err)
	}
}

// The bill of a built image names what is in it, is the same each time, and changes nothing of the image.
func TestBillOfMaterials(t *testing.T) {
	var bills [2][]byte
	for i := range bills {
		s := newStore(t)
		built(t, s.own, recipe(t, "fw", "1", "hello"))
		var err error
		bills[i], _, err = s.SBOM("fw:1")
		must(t, err)
	}
	if !bytes.Equal(bills[0], bills[1]) {
		t.Error("two builds give two bills")
	}
	var bom cyclonedx.BOM
	must(t, cyclonedx.NewBOMDecoder(bytes.NewReader(bills[0]), cyclonedx.BOMFileFormatJSON).Decode(&bom))
	have := map[string]cyclonedx.Component{}
	for _, c := range *bom.Components {
		have[c.Name] = c
	}
	sum := sha256.Sum256([]byte("hello"))
	if h := *have["/file"].Hashes; h[0].Value != fmt.Sprintf("%x", sum) {
		t.Errorf("%+v", have["/file"])
	}
	if b := have["busybox"]; b.Version == "" || !strings.HasPrefix(b.PackageURL, "pkg:deb/") {
		t.Errorf("%+v", b)
	}
	if self := bom.Metadata.Component; self.Name != "fw" || !strings.Contains(self.PackageURL, "@sha256%3A") {
		t.Errorf("%+v", self)
	}
}

// Of Debian packages the bill has those that dpkg has installed, in the highest layer with its list.
func TestBillOfDebianPackages(t *testing.T) {
	layer := func(status string) builtLayer {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "./var/lib/dpkg/status", Size: int64(len(status)), Mode: 0o644}))
		_, err := w.Write([]byte(status))
		must(t, errors.Join(err, w.Close()))
		l, err := pack(b.Bytes(), "test")
		must(t, err)
		return l
	}
	d := sbom.New(cyclonedx.Component{BOMRef: "self"})
	must(t, addPackages(d, []builtLayer{
		layer("Package: old\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n"),
		layer("Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.41-12\nDescription: a\n Package: fake\n\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 1\n\n" +
			"Package: libstdc++6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:14.2.0-19\n"),
	}))
	var text bytes.Buffer
	must(t, d.Write(&text))
	for _, want := range []string{`"pkg:deb/debian/libc6@2.41-12?arch=amd64"`, `"pkg:deb/debian/libstdc%2B%2B6@1%3A14.2.0-19?arch=amd64"`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %s in %s", want, text.String())
		}
	}
	for _, not := range []string{"old", "gone", "fake"} {
		if strings.Contains(text.String(), not) {
			t.Errorf("%s in %s", not, text.String())
		}
	}
}

// fetched is the body of a good answer.
func fetched(url string) ([]byte, error) {
	resp, err := http.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	return io.ReadAll(resp.Body)
}
