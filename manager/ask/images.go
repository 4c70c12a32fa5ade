package ask

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/strict"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/store"
)

// Bounds of GET /v1/images.
const (
	imagesTimeout  = 3 * time.Second // for all hosts
	imagesAtOnce   = 16              // hosts
	maxImageAsks   = 8               // requests
	maxImageList   = 5_000           // images of all hosts
	maxImageWord   = 512             // bytes of a name, a digest, a word of a list
	maxImageWords  = 100             // of a list
	maxImagesWarns = 20
)

// images answers with the images of all hosts. A host that does not answer in time is a warning.
func (a *Asker) images(w http.ResponseWriter, r *http.Request) error {
	release, err := a.asks.Take("questions about images")
	if err != nil {
		return err
	}
	defer release()
	items, _, err := a.Store.List(r.Context(), store.Prefix(api.KindHost), store.ListOptions{KeysOnly: true})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), imagesTimeout)
	defer cancel()
	answers, errs := make([][]api.Image, len(items)), make([]error, len(items))
	var all sync.WaitGroup
	turns := make(chan struct{}, imagesAtOnce)
	for i, item := range items {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			var n Node
			if n, errs[i] = a.node(ctx, store.NameOf(item.Key)); errs[i] == nil {
				answers[i], errs[i] = n.ImageList(ctx)
			}
		})
	}
	all.Wait()
	out := api.ImageList{Items: []api.Image{}}
	if a.Own != nil {
		own, err := a.Own()
		if err != nil {
			out.Warnings = append(out.Warnings, strict.Clip(fmt.Sprintf("manager: %v", err), strict.MaxText))
		}
		out.Items = merge(out.Items, "", own)
	}
	for i, item := range items {
		host := store.NameOf(item.Key)
		if errs[i] != nil && len(out.Warnings) < maxImagesWarns {
			out.Warnings = append(out.Warnings, strict.Clip(fmt.Sprintf("host %s: %v", host, live(errs[i])), strict.MaxText))
		}
		out.Items = merge(out.Items, host, answers[i])
	}
	slices.SortStableFunc(out.Items, func(x, y api.Image) int { return strings.Compare(x.Name, y.Name) })
	return web.Answer(w, http.StatusOK, out)
}

// merge adds a host's images, or with "" the manager's, in bounds. Images of one name and digest are one; another digest of a name is another image.
func merge(all []api.Image, host string, of []api.Image) []api.Image {
	for _, i := range of[:min(len(of), api.MaxImages)] {
		i.Name, i.Digest = strict.Clip(i.Name, maxImageWord), strict.Clip(i.Digest, maxImageWord)
		at := slices.IndexFunc(all, func(x api.Image) bool { return x.Name == i.Name && x.Digest == i.Digest })
		if at >= 0 {
			if host != "" && !slices.Contains(all[at].Hosts, host) {
				all[at].Hosts = append(all[at].Hosts, host)
			}
			continue
		}
		if len(all) >= maxImageList {
			break
		}
		if i.Hosts, i.Manager = []string{host}, false; host != "" { // which knows of itself alone
			i.Removable = false
		} else {
			i.Hosts, i.Manager = nil, true
		}
		i.Description, i.Forwarder, i.User = strict.Clip(i.Description, api.MaxImageText), strict.Clip(i.Forwarder, maxImageWord), strict.Clip(i.User, maxImageWord)
		i.Rewrites, i.Capabilities, i.Command = clipWords(i.Rewrites), clipWords(i.Capabilities), clipWords(i.Command)
		if len(i.ConfigSchema) > api.MaxImageSchema {
			i.ConfigSchema = nil
		}
		if len(i.Example) > api.MaxImageSample {
			i.Example = ""
		}
		all = append(all, i)
	}
	return all
}

func clipWords(words []string) []string {
	words = slices.Clone(words[:min(len(words), maxImageWords)])
	for i := range words {
		words[i] = strict.Clip(words[i], maxImageWord)
	}
	return words
}
