package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
)

// patience is how long one answer is waited for.
const patience = 10 * time.Second

// plainGets is gets by clients that take next to nothing of the processors that they share with the server: a
// connection each, of HTTP/1.1, whose answers they read over.
func plainGets(ctx context.Context, _ config, p *plane) ([]figure, error) {
	settings, err := rest.TLSConfigFor(p.config)
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(p.config.Host)
	if err != nil {
		return nil, err
	}
	var credentials string
	if p.config.BearerToken != "" {
		credentials = "Authorization: Bearer " + p.config.BearerToken + "\r\n"
	}
	settings.NextProtos = []string{"http/1.1"}
	settings.ServerName = at.Hostname()
	before, err := p.processes.cpu()
	if err != nil {
		return nil, err
	}
	group, ctx := errgroup.WithContext(ctx)
	var counts [clients]int
	began := time.Now()
	for n := range clients {
		group.Go(func() error {
			c, err := (&tls.Dialer{Config: settings.Clone()}).DialContext(ctx, "tcp", at.Host)
			if err != nil {
				return err
			}
			defer c.Close()
			r := bufio.NewReader(c)
			for ; time.Since(began) < burst; counts[n]++ {
				if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
					return err
				}
				if _, err := fmt.Fprintf(c, "GET /api/v1/namespaces/%s/configmaps/m-%d HTTP/1.1\r\nHost: %s\r\n"+
					"User-Agent: bench-%d\r\nAccept: application/json\r\n%s\r\n",
					namespace, (counts[n]*clients+n)%1000, at.Host, n, credentials); err != nil {
					return err
				}
				if err := readOver(r); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return rated(p, "ConfigMaps read over plain connections", counts[:], began, before)
}

// readOver reads one answer, which is to be of the status 200 and to tell its length.
func readOver(r *bufio.Reader) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("answered %q", line)
	}
	length := -1
	for {
		if line, err = r.ReadSlice('\n'); err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		name, value, _ := strings.Cut(string(line), ":")
		if strings.EqualFold(name, "Content-Length") {
			if length, err = strconv.Atoi(strings.TrimSpace(value)); err != nil {
				return err
			}
		}
	}
	if length < 0 {
		return errors.New("an answer without its length")
	}
	_, err = io.CopyN(io.Discard, r, int64(length))
	return err
}
