// Package url asks a web server for a manifest, again and again: a server does not tell of changes.
package url

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/berth-node/berth/agent/source/manifest"
)

const (
	// defaultEvery is how often a URL is asked, as by kubelet: a web server does not tell of changes.
	defaultEvery = 20 * time.Second
	// timeout ends a question that hangs. The first one is waited for before the manifests count as read.
	timeout = 10 * time.Second
)

// maxHeader is how much of an answer may be before the manifest, in bytes, and maxReason how much of a status line is
// told.
const (
	maxHeader = 64 << 10
	maxReason = 100
)

// maxRedirects is how many redirections are followed.
const maxRedirects = 10

// clientWith asks with a header that is for the server of the URL alone: it may be a password.
func clientWith(header http.Header) *http.Client {
	return &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, MaxResponseHeaderBytes: maxHeader},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) >= maxRedirects {
				return fmt.Errorf("stopped after %d redirects", maxRedirects)
			}
			if r.URL.Host != via[0].URL.Host || r.URL.Scheme != via[0].URL.Scheme {
				for name := range header {
					r.Header.Del(name)
				}
			}
			return nil
		},
	}
}

// Answer is what a URL had to say.
type Answer struct {
	Data []byte
	Same bool // as before
	Err  error
}

// Fetcher asks one URL for a manifest. It belongs to one goroutine.
type Fetcher struct {
	url    string
	header http.Header
	every  time.Duration
	client *http.Client

	tag, modified string // of the last answer, so that the server need not send it again
}

// New returns a Fetcher that asks url with a header every so often; 0: 20 s, as by kubelet.
func New(url string, header http.Header, every time.Duration) *Fetcher {
	if every <= 0 {
		every = defaultEvery
	}
	return &Fetcher{url: url, header: header, every: every, client: clientWith(header)}
}

// Redacted is a URL without its password.
func Redacted(text string) string {
	if u, err := url.Parse(text); err == nil {
		return u.Redacted()
	}
	return text
}

// Run sends an answer at once, and then whenever it is another one or an error, until ctx ends.
func (f *Fetcher) Run(ctx context.Context, out chan<- Answer) {
	defer f.client.CloseIdleConnections()
	tick := time.NewTicker(f.every)
	defer tick.Stop()
	for first := true; ; first = false {
		a := f.get(ctx)
		if a.Err != nil {
			f.tag, f.modified = "", "" // who has heard of the error hears the manifest again when it is over
		}
		if first || !a.Same {
			select {
			case <-ctx.Done():
				return
			case out <- a:
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (f *Fetcher) get(ctx context.Context) Answer {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url, nil)
	if err != nil {
		return Answer{Err: err}
	}
	r.Header = f.header.Clone()
	if f.tag != "" {
		r.Header.Set("If-None-Match", f.tag)
	} else if f.modified != "" {
		r.Header.Set("If-Modified-Since", f.modified)
	}
	resp, err := f.client.Do(r)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		} else if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // the URL is named anyway, and may have a password in it
		}
		return Answer{Err: fmt.Errorf("cannot be read: %w", err)}
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotModified:
		return Answer{Same: true}
	default:
		return Answer{Err: fmt.Errorf("cannot be read: the server answers %s",
			resp.Status[:min(len(resp.Status), maxReason)])}
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, manifest.MaxSize+1))
	switch {
	case err != nil:
		return Answer{Err: fmt.Errorf("cannot be read: %w", err)}
	case len(data) > manifest.MaxSize:
		return Answer{Err: fmt.Errorf("answer has more than %d bytes", manifest.MaxSize)}
	case len(strings.TrimSpace(string(data))) == 0:
		return Answer{Err: errors.New("answer is empty: what runs of it stays")}
	}
	f.tag, f.modified = resp.Header.Get("ETag"), resp.Header.Get("Last-Modified")
	return Answer{Data: data}
}

// ParseHeaders makes a header of "NAME:VALUE" each.
func ParseHeaders(list []string) (http.Header, error) {
	out := http.Header{}
	for _, h := range list {
		name, value, ok := strings.Cut(h, ":")
		if name = strings.TrimSpace(name); !ok || name == "" || strings.ContainsAny(name+value, "\r\n") {
			// The value may be a password.
			return nil, fmt.Errorf("header %q: must be NAME:VALUE", name)
		}
		out.Add(name, strings.TrimSpace(value))
	}
	return out, nil
}
