// Command hello is the web server of the first pod: it says who it is and logs a line for each request.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(log.LstdFlags | log.LUTC)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	name, ip, addr := os.Getenv("POD_NAME"), os.Getenv("POD_IP"), cmp.Or(os.Getenv("ADDR"), ":8080")
	srv := &http.Server{Addr: addr, ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		log.Printf("%s %s from %s", r.Method, r.URL.Path, r.RemoteAddr)
		fmt.Fprintf(w, "Hello from pod %s at %s.\n", name, ip)
	})}
	go func() {
		<-ctx.Done()
		log.Print("asked to end")
		// A program that is process 1 of its container gets SIGTERM only if it asks for it.
		_ = srv.Shutdown(context.Background())
	}()
	log.Printf("pod %s serves on %s", name, addr)
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
	log.Print("ended")
}
