package cli

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/instance"
)

func (a *app) switchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "switch",
		Short: "Make, list and revoke certificates of OpenFlow switches",
		Long: `Switches of an OpenFlow fabric connect with TLS: the manager knows a switch by a certificate that names its datapath id, and
the switch knows the manager by the authority's certificate. A switch that claims another datapath id is refused.`,
		Example: `  weir switch cert 1 --out s1
  weir switch list
  weir switch revoke 1`,
		Args: cobra.ArbitraryArgs,
		RunE: command.Group,
	}
	cmd.AddCommand(a.switchCertCommand(), a.switchListCommand(), a.switchRevokeCommand())
	return cmd
}

// Files of weir switch cert.
const (
	switchKeyFile  = "key.pem"
	switchCertFile = "cert.pem"
	switchCAFile   = "ca.pem"
)

func (a *app) switchCertCommand() *cobra.Command {
	var out, request string
	var life time.Duration
	var replace bool
	cmd := &cobra.Command{
		Use:   "cert DATAPATH-ID...",
		Short: "Make a key and a certificate for a switch",
		Long: `Make a key and a certificate for the switch, or the Open vSwitch process, that has these datapath ids (hexadecimal). Three
files are written: key.pem, which never leaves this machine, cert.pem, and ca.pem, by which the switch knows the manager. With
--request the key stays in the switch: the file is the certificate request that the switch made (PKCS #10, PEM, ECDSA P-256).
Made again, a certificate replaces none: the former one works until it expires or is revoked (--replace revokes it).`,
		Example: `  weir switch cert 1 --out s1
  weir switch cert 1 2 3 --out ovs --life 720h
  weir switch cert 1 --request s1.csr --out s1`,
		Args: command.WantArgs(1, -1, "at least one datapath id (ovs-vsctl get bridge NAME datapath_id)"),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			// The request is made here with a new key, or was made by the switch.
			ids, err := datapathIDs(args)
			if err != nil {
				return err
			}
			req := api.SwitchCertificateRequest{DatapathIDs: ids, Life: life.String(), Replace: replace}
			var key []byte
			if request != "" {
				text, err := os.ReadFile(request)
				if err != nil {
					return command.WithCode(command.ExitInvalid, fmt.Errorf("--request: %w", err))
				}
				req.Request = string(text)
			} else if key, req.Request, err = switchKey(); err != nil {
				return err
			}
			// The directory comes first: no certificate is issued that cannot be written.
			if err := os.MkdirAll(out, 0o700); err != nil {
				return fmt.Errorf("make directory: %w", err)
			}
			answer, err := c.NewSwitchCertificate(ctx, req)
			if err != nil {
				return err
			}
			// Write the files.
			files := []struct {
				name string
				text []byte
			}{{switchKeyFile, key}, {switchCertFile, []byte(answer.Certificate)}, {switchCAFile, []byte(answer.Authority)}}
			for _, f := range files {
				if len(f.text) == 0 {
					continue
				}
				if err := instance.WriteFile(filepath.Join(out, f.name), f.text); err != nil {
					return fmt.Errorf("write %s: %w", f.name, err)
				}
			}
			// Say where they are, and how Open vSwitch takes them.
			if a.Structured() {
				answer.Certificate, answer.Authority = "", ""
				return a.Encode(answer)
			}
			fmt.Fprintf(a.Stdout, "certificate %s for %s, valid until %s, is in %s\n", answer.ID, strings.Join(answer.DatapathIDs, ", "), answer.Expires.Local().Format(time.DateTime), out)
			if key != nil {
				fmt.Fprintf(a.Stdout, "Open vSwitch: ovs-vsctl set-ssl %s %s %s\n", absolute(out, switchKeyFile), absolute(out, switchCertFile), absolute(out, switchCAFile))
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&out, "out", ".", "directory for key.pem, cert.pem and ca.pem (mode 0600)")
	cmd.Flags().StringVar(&request, "request", "", "file with a certificate request that the switch made; no key is made then")
	cmd.Flags().DurationVar(&life, "life", 365*24*time.Hour, "how long the certificate is valid")
	cmd.Flags().BoolVar(&replace, "replace", false, "revoke all other certificates that name one of these datapath ids")
	return cmd
}

func absolute(dir, name string) string {
	path := filepath.Join(dir, name)
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// datapathIDs checks ids and writes them with 16 digits.
func datapathIDs(args []string) ([]string, error) {
	var out []string
	for _, text := range args {
		id, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimPrefix(text, "0x"), "of-"), 16, 64)
		if err != nil || id == 0 {
			return nil, command.Usage("datapath id %q: want 1 to 16 hexadecimal digits, as 1 or 00000000000000a1", text)
		}
		out = append(out, fmt.Sprintf("%016x", id))
	}
	return out, nil
}

// switchKey makes a key and a certificate request for it.
func switchKey() (key []byte, request string, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, "", fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, "", fmt.Errorf("make a key: %w", err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, k)
	if err != nil {
		return nil, "", fmt.Errorf("make a certificate request: %w", err)
	}
	key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})), nil
}

func (a *app) switchListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the switches' certificates",
		Example: "  weir switch list",
		Args:    command.NoArgs(),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, _ []string) error {
			list, err := c.SwitchCertificates(ctx)
			if err != nil {
				return err
			}
			return command.PrintList(a.App, list, []string{"ID", "STATE", "CREATED", "EXPIRES", "DATAPATHS"}, func(x api.SwitchCertificate) []string {
				state := "valid"
				if time.Now().After(x.Expires) {
					state = "expired"
				}
				return []string{x.ID, state, x.Created.Local().Format(time.DateTime), x.Expires.Local().Format(time.DateTime), strings.Join(x.DatapathIDs, ",")}
			})
		}),
	}
}

func (a *app) switchRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke DATAPATH-ID|CERTIFICATE-ID",
		Short: "Refuse a switch's certificates from now on",
		Long: `Refuse all certificates that name a datapath id, or the one with an ID (weir switch list). A connection that uses one ends
within seconds; what the switch has installed stays there.`,
		Example: "  weir switch revoke 1\n  weir switch revoke 5d1f0c7e9b3a4c21",
		Args:    command.WantArgs(1, 1, "a datapath id, or the ID of a certificate (see weir switch list)"),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			list, err := c.SwitchCertificates(ctx)
			if err != nil {
				return err
			}
			dpid := ""
			if ids, err := datapathIDs(args); err == nil {
				dpid = ids[0]
			}
			var revoked []string
			var failed []error
			for _, x := range list {
				if x.ID != args[0] && !slices.Contains(x.DatapathIDs, dpid) {
					continue
				}
				if err := c.RevokeSwitchCertificate(ctx, x.ID); err != nil {
					failed = append(failed, err)
					continue
				}
				revoked = append(revoked, x.ID)
			}
			if len(revoked) == 0 && len(failed) == 0 {
				return command.WithCode(command.ExitNotFound, fmt.Errorf("no certificate is called %s or names that datapath id (see weir switch list)", args[0]))
			}
			if a.Structured() {
				return errors.Join(append(failed, a.Encode(map[string]any{"revoked": revoked}))...)
			}
			for _, id := range revoked {
				fmt.Fprintf(a.Stdout, "certificate %s revoked\n", id)
			}
			return errors.Join(failed...)
		}),
	}
}
