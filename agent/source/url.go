package source

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// urlEvery is how often a URL is asked, as by kubelet: a web server does not tell of changes.
	urlEvery = 20 * time.Second
	// urlTimeout ends a question that hangs. The first one is waited for before the manifests count as read.
	urlTimeout = 10 * time.Second
)

// urlHeader is how much of an answer may be before the manifest, in bytes, and urlReason how much of a status line is told.
const (
	urlHeader = 64 << 10
	urlReason = 100
)

// urlRedirects is how many redirections are followed.
const urlRedirects = 10

// urlClient asks with a header that is for the server of the URL alone: it may be a password.
func urlClient(header http.Header) *http.Client {
	return &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, MaxResponseHeaderBytes: urlHeader},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) >= urlRedirects {
				return fmt.Errorf("stopped after %d redirects", urlRedirects)
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

// answer is what a URL had to say.
type answer struct {
	data []byte
	same bool // as before
	err  error
}

// fetcher asks one URL for a manifest. It belongs to one goroutine.
type fetcher struct {
	url    string
	header http.Header
	every  time.Duration
	client *http.Client

	tag, modified string // of the last answer, so that the server need not send it again
}

// run sends an answer at once, and then whenever it is another one or an error.
func (f *fetcher) run(ctx context.Context, out chan<- answer) {
	defer f.client.CloseIdleConnections()
	tick := time.NewTicker(f.every)
	defer tick.Stop()
	for first := true; ; first = false {
		if a := f.get(ctx); first || !a.same {
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

func (f *fetcher) get(ctx context.Context) answer {
	ctx, cancel := context.WithTimeoutCause(ctx, urlTimeout, fmt.Errorf("no answer within %v", urlTimeout))
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url, nil)
	if err != nil {
		return answer{err: err}
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
		return answer{err: fmt.Errorf("cannot be read: %w", err)}
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotModified:
		return answer{same: true}
	default:
		return answer{err: fmt.Errorf("cannot be read: the server answers %s", resp.Status[:min(len(resp.Status), urlReason)])}
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, MaxFile+1))
	switch {
	case err != nil:
		return answer{err: fmt.Errorf("cannot be read: %w", err)}
	case len(data) > MaxFile:
		return answer{err: fmt.Errorf("answer has more than %d bytes", MaxFile)}
	case len(strings.TrimSpace(string(data))) == 0:
		return answer{err: errors.New("answer is empty: what runs of it stays")}
	}
	f.tag, f.modified = resp.Header.Get("ETag"), resp.Header.Get("Last-Modified")
	return answer{data: data}
}

// fetched makes what the URL said the desired state.
func (s *Source) fetched(a answer) {
	s.answered = true
	if a.same {
		return
	}
	name := s.cfg.URL
	f := s.files[name]
	if f == nil {
		f = &file{}
		s.files[name] = f
	}
	if a.err != nil {
		s.fail(name, f, a.err)
		return
	}
	sum := sha256.Sum256(a.data)
	if f.read && f.sum == sum {
		return
	}
	f.sum, f.read = sum, true
	s.apply(name, f, decode(a.data))
}

// exposed is why what is there under a name may not hold Secrets.
func (s *Source) exposed(name string, f *file) error {
	if name == s.cfg.URL {
		return errors.New("Secrets are not taken from a URL: put them into files of mode 0600 in the manifest directory")
	}
	return f.id.exposed()
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
