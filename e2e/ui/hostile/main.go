// A function that says HTML and scripts wherever a function can say something: in its log, its events, its description.
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

const markup = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	fmt.Println(markup + " \x1b[31mred\x1b[0m \x1b]0;title\x07 end of the line")
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", "/run/weir/events.sock")
	}}}
	body := `{"severity": "warning", "reason": "Markup", "message": "<img src=x onerror=\"window.hacked=1\"> javascript:alert(1)"}`
	resp, err := client.Post("http://weir/", "application/json", strings.NewReader(body))
	if err != nil {
		fmt.Println("event:", err)
	} else {
		resp.Body.Close()
		fmt.Println("event:", resp.Status)
	}
	<-ctx.Done()
}
