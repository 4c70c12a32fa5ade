package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) imageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "image",
		Short:   "Look at the images that functions are made of",
		Example: "  weir image list",
		Args:    cobra.ArbitraryArgs,
		RunE:    group,
	}
	cmd.AddCommand(&cobra.Command{
		Use:     "list",
		Short:   "List the images of this instance",
		Example: "  weir image list\n  weir image list -o json",
		Args:    noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.Images == nil {
				return missingHook("an image store")
			}
			i, err := a.instance()
			if err != nil {
				return err
			}
			images, err := a.Images(cmd.Context(), i)
			if err != nil {
				return err
			}
			if a.structured() {
				return a.encode(map[string]any{"items": append([]Image{}, images...)})
			}
			return a.printTable(imageTable(images))
		},
	})
	return cmd
}

func imageTable(images []Image) table {
	t := table{head: []string{"IMAGE", "PORTS", "SIZE", "DIGEST", "DESCRIPTION"}}
	for _, i := range images {
		t.add(i.Ref, strings.Join(i.Ports, ","), size(i.Bytes), shortDigest(i.Digest), i.Description)
	}
	return t
}
