package images

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"weir.dev/weir/cli/command"
	"weir.dev/weir/image"
)

// passwordVariable is where cosign, too, takes the password of a key from.
const passwordVariable = "COSIGN_PASSWORD"

// password of a key of cosign: of the environment, or asked for.
func (a *images) password() ([]byte, error) {
	if p, ok := os.LookupEnv(passwordVariable); ok {
		return []byte(p), nil
	}
	in := int(os.Stdin.Fd())
	if !term.IsTerminal(in) {
		return nil, fmt.Errorf("the key is encrypted: give its password in $%s", passwordVariable)
	}
	fmt.Fprint(a.Stderr, "password of the key: ")
	p, err := term.ReadPassword(in)
	fmt.Fprintln(a.Stderr)
	return p, err
}

func (a *images) sign() *cobra.Command {
	var key, as string
	cmd := &cobra.Command{
		Use: "sign IMAGE", Short: "Sign an image with a key",
		Long: `Sign an image of this host with an ECDSA P-256 key in PEM, as cosign does. The signature is over the image's digest and its name without the tag; it is kept in
the instance's layout, and goes with the image through push, pull, export, import and serve. A name for another place (where the image will be pushed) is given
with --as. The password of a key that cosign made is taken from $COSIGN_PASSWORD, or asked for.`,
		Example: "  weir image sign firewall:1 --key weir.key\n  weir image sign filter:2 --key cosign.key --as registry.example.org/nf/filter\n  openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out weir.key",
		Args:    command.WantArgs(1, 1, "an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.store()
			if err != nil {
				return err
			}
			if key == "" {
				return command.Usage("want a private key: --key FILE")
			}
			k, err := image.ReadPrivateKey(key, a.password)
			if err != nil {
				return command.WithCode(command.ExitInvalid, err)
			}
			digest, err := s.Sign(cmd.Context(), args[0], as, k)
			if err != nil {
				return coded(err)
			}
			fmt.Fprintf(a.Stdout, "%s %s signed\n", args[0], digest)
			return nil
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "private key, PEM: of openssl (PKCS #8, SEC 1) or cosign (encrypted)")
	cmd.Flags().StringVar(&as, "as", "", "name that is signed (default the image's own)")
	command.ImagesFlag(cmd.Flags(), &a.layout)
	return cmd
}

func (a *images) verify() *cobra.Command {
	var key, as string
	cmd := &cobra.Command{
		Use: "verify IMAGE", Short: "Check an image's signature",
		Long: `Check that an image of this host has a signature by a key, over its digest and its name without the tag. weir up --verify makes the host check that by itself,
before it uses an image. The exit code is 7 if there is no such signature.`,
		Example: "  weir image verify firewall:1 --key weir.pub\n  weir image verify filter:2 --key cosign.pub --as registry.example.org/nf/filter\n  openssl pkey -in weir.key -pubout -out weir.pub",
		Args:    command.WantArgs(1, 1, "an image"),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := a.store()
			if err != nil {
				return err
			}
			if key == "" {
				return command.Usage("want a public key: --key FILE")
			}
			k, err := image.ReadPublicKey(key)
			if err != nil {
				return command.WithCode(command.ExitInvalid, err)
			}
			sig, err := s.CheckSignature(args[0], as, k)
			if err != nil {
				return coded(err)
			}
			if a.Structured() {
				return a.Encode(signatureItem{sig.Name, sig.Digest})
			}
			fmt.Fprintf(a.Stdout, "%s %s is signed, as %s\n", args[0], sig.Digest, command.Printable(sig.Name))
			return nil
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "public key, PEM")
	cmd.Flags().StringVar(&as, "as", "", "name that has to be signed (default the image's own)")
	command.ImagesFlag(cmd.Flags(), &a.layout)
	return cmd
}

// signatureItem is a signature as the commands show it.
type signatureItem struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
}

func (a *images) bill() *cobra.Command {
	cmd := &cobra.Command{
		Use: "sbom IMAGE", Short: "Print an image's bill of materials",
		Long: `Print the bill of materials (SBOM) that came with an image: of one that weir image build made a CycloneDX 1.6 document in JSON, with its Debian packages, its
files, and the Go modules of its programs. An image from elsewhere has the document that its registry keeps for it, in SPDX or CycloneDX.`,
		Example: "  weir image sbom firewall\n  weir image sbom ids | jq -r '.components[].purl'",
		Args:    command.WantArgs(1, 1, "an image"),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := a.store()
			if err != nil {
				return err
			}
			text, _, err := s.SBOM(args[0])
			if err != nil {
				return coded(err)
			}
			_, err = a.Stdout.Write(text)
			return err
		},
	}
	command.ImagesFlag(cmd.Flags(), &a.layout)
	return cmd
}

// about an image, for inspect.
func about(s *image.Store, ref string) (image.About, error) {
	x, err := s.About(ref)
	if errors.Is(err, image.ErrCorrupt) {
		err = fmt.Errorf("its signatures and bill of materials: %w", err)
	}
	return x, err
}
