package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-node/berth/cri/imageapi"
)

// run runs "images args..." against handler.
func run(t *testing.T, handler http.HandlerFunc, args ...string) (string, string, error) {
	t.Helper()
	srv := httptest.NewServer(handler)
	defer srv.Close()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil, DialContext: srv.Client().Transport.(*http.Transport).DialContext}}
	c.Transport = redirect{srv.Listener.Addr().String(), c.Transport}
	cmd := Commands(func() *http.Client { return c }, func(w io.Writer) io.Writer { return escaped{w} })[0]
	var o, e bytes.Buffer
	cmd.SetOut(&o)
	cmd.SetErr(&e)
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(t.Context())
	return o.String(), e.String(), err
}

// escaped shows the character by which names steer terminals.
type escaped struct{ w io.Writer }

func (e escaped) Write(p []byte) (int, error) {
	_, err := e.w.Write(bytes.ReplaceAll(p, []byte("\x1b"), []byte("^[")))
	return len(p), err
}

// TestHostileNames has images, layers and errors of names that are commands to a terminal, and lines of their own.
func TestHostileNames(t *testing.T) {
	const evil = "evil\x1b[31m\nlocalhost/fake"
	list := func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode([]imageapi.Image{{ID: "sha256:" + evil, Tags: []string{evil + ":1"}, Digests: []string{evil + "@sha256:1"}}})
	}
	pulled := lines(imageapi.Line{Progress: &imageapi.Progress{Ref: evil, Phase: evil}}, imageapi.Line{Images: []imageapi.Image{{ID: evil, Tags: []string{evil}}}})
	for _, c := range []struct {
		h    http.HandlerFunc
		args []string
	}{{list, nil}, {list, []string{"--digests"}}, {list, []string{"list", "-q"}}, {list, []string{"-o", "json"}}, {pulled, []string{"pull", "x"}}} {
		out, errs, err := run(t, c.h, c.args...)
		if err != nil || strings.Contains(out+errs, "\x1b") {
			t.Errorf("%q: %v, %q, %q", c.args, err, out, errs)
		}
		if len(c.args) < 2 && strings.Count(out, "\n") != 2 {
			t.Errorf("%q: a name makes lines: %q", c.args, out)
		}
	}
}

// redirect sends every request to one address.
type redirect struct {
	addr string
	next http.RoundTripper
}

func (r redirect) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Host = r.addr
	return r.next.RoundTrip(req)
}

var images = []imageapi.Image{
	{ID: "sha256:0123456789abcdef", Tags: []string{"localhost:5000/a/b:1", "docker.io/library/x:latest"}, Digests: []string{"localhost:5000/a/b@sha256:fedcba9876543210"}, Size: 4300000, PulledAt: time.Now().Add(-time.Hour)},
	{ID: "sha256:aaaa", Digests: []string{"quay.io/y@sha256:bb"}, PulledAt: time.Now()},
}

func TestList(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/images/" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		json.NewEncoder(w).Encode(images)
	}
	out, _, err := run(t, h, "--digests")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"localhost:5000/a/b", "fedcba9876543", "0123456789abc", "4.3MB", "60m ago", "quay.io/y"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if n := strings.Count(out, "\n"); n != 4 {
		t.Errorf("%d lines\n%s", n, out)
	}
	if out, _, err := run(t, h, "list", "-q"); err != nil || out != "sha256:0123456789abcdef\nsha256:aaaa\n" {
		t.Errorf("-q: %q, %v", out, err)
	}
}

func lines(ls ...imageapi.Line) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		for _, l := range ls {
			json.NewEncoder(w).Encode(l)
		}
	}
}

func TestPull(t *testing.T) {
	layer := func(phase string, done int64) imageapi.Line {
		return imageapi.Line{Progress: &imageapi.Progress{Layer: "sha256:11112222333344445555", Phase: phase, Done: done, Total: 2000000}}
	}
	out, errs, err := run(t, lines(layer("downloading", 0), layer("downloading", 1000000), layer("unpacking", 0), imageapi.Line{Images: images[:1]}), "pull", "a/b:1")
	if err != nil || !strings.HasPrefix(out, "pulled localhost:5000/a/b:1") {
		t.Errorf("%q, %v", out, err)
	}
	if errs != "1111222233334: downloading (2MB)\n1111222233334: unpacking (2MB)\n" {
		t.Errorf("plain progress: %q", errs)
	}
	if _, _, err := run(t, lines(layer("downloading", 0), imageapi.Line{Error: "digest does not match"}), "pull", "x"); err == nil || err.Error() != "digest does not match" {
		t.Errorf("failed pull: %v", err)
	}
	if _, _, err := run(t, lines(layer("downloading", 0)), "pull", "x"); err == nil {
		t.Error("a connection that ends early is no error")
	}
}

func TestImportAndRemove(t *testing.T) {
	file := filepath.Join(t.TempDir(), "i.tar")
	if err := os.WriteFile(file, []byte("archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _, err := run(t, func(w http.ResponseWriter, r *http.Request) {
		if b, _ := io.ReadAll(r.Body); string(b) != "archive" || r.URL.Path != "/images/import" {
			t.Errorf("%s %q", r.URL, b)
		}
		json.NewEncoder(w).Encode(imageapi.Line{Images: images})
	}, "import", file)
	if err != nil || strings.Count(out, "imported") != 2 {
		t.Errorf("%q, %v", out, err)
	}
	_, _, err = run(t, func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "image not found", http.StatusNotFound)
	}, "rm", "x")
	var e *Error
	if !errors.As(err, &e) || !e.NotFound() || e.Message != "image not found" {
		t.Errorf("rm: %v", err)
	}
}

func TestBars(t *testing.T) {
	var b bytes.Buffer
	now := time.Unix(0, 0)
	p := &progress{out: &b, visible: func(w io.Writer) io.Writer { return w }, width: 60, last: map[string]imageapi.Progress{}, now: func() time.Time { return now }}
	p.show(imageapi.Progress{Phase: "resolving"})
	for _, done := range []int64{0, 50, 100} {
		now = now.Add(time.Second)
		p.show(imageapi.Progress{Layer: "sha256:one", Phase: "downloading", Done: done, Total: 100})
	}
	p.end()
	got := b.String()
	if !strings.Contains(got, "image         resolving") || !strings.Contains(got, "\x1b[1A") || !strings.Contains(got, "=>") || !strings.Contains(got, "100B/100B") {
		t.Errorf("%q", got)
	}
	for line := range strings.Lines(got) {
		if n := len(strings.ReplaceAll(strings.ReplaceAll(strings.TrimRight(line, "\n"), "\x1b[1A", ""), "\x1b[2K", "")); n > 60 {
			t.Errorf("line of %d columns: %q", n, line)
		}
	}
}
