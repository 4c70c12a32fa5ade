// Watch prints how functions change until Ctrl-C: a client of the API in Go.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"

	"weir.dev/weir/api"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	client, err := api.Dial(api.Options{Socket: "/run/weir/0/api.sock"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	// The watch resumes by itself when the connection breaks; it ends with ctx.
	for d := range client.Functions().Watch(ctx, 0, api.ListOptions{}) {
		switch d.Type {
		case api.DeltaReset: // all there is
			for _, f := range d.Items {
				fmt.Println(f.Name, f.Status.State, f.Status.Healthy)
			}
		case api.DeltaPut:
			fmt.Println(d.Object.Name, d.Object.Status.State, d.Object.Status.Healthy)
		case api.DeltaDelete:
			fmt.Println(d.Object.Name, "is gone")
		case api.DeltaError:
			log.Print(d.Err)
		}
	}
}
