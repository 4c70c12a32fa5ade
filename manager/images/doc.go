// Package images has the manager's images: it fetches them from registries and takes them from archives, where hosts that lack them find them. It owns the pulls
// that go on and their bounds; how an image is kept is a Store's matter.
package images
