package control

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// watchMemory is the most resident memory, in MB, that ten thousand watches may bring the process to.
const watchMemory = 1300

// TestManyWatches has one client watch thousands of times (ten thousand with BERTH_TEST_LONG): each watch is served, or
// refused with the status that says to come again, and every one that is served hears of what happens. Others are
// served meanwhile, memory stays within bounds, and all of it is given back when the client goes. They are of a kind
// that a cache serves, over few connections, as Go's client has them. Of a kind that etcd serves, and over a connection
// each, there are fewer by default: what these cost is a read, and a handshake.
func TestManyWatches(t *testing.T) {
	t.Parallel()
	many, fewer := 2_000, 500
	if os.Getenv("BERTH_TEST_LONG") != "" {
		many, fewer = 10_000, 10_000
	}
	p := startAt(t, t.TempDir(), "0", "--controllers=", "--scheduler=false")
	before := p.burden(t)
	for _, c := range []struct {
		name, kind string
		watches    int
		shared     bool
	}{
		{"cached", "ConfigMap", many, true}, {"stored", "Endpoints", fewer, true}, {"apart", "ConfigMap", fewer, false},
	} {
		w := &watchers{plane: p, name: c.name, kind: c.kind, served: make(chan struct{}, c.watches)}
		w.open(t, c.watches, c.shared)
		during := p.burden(t)
		if during.watches-before.watches < float64(c.watches) {
			t.Errorf("%s: the server has %.0f watches, and had %.0f before", c.name, during.watches, before.watches)
		}
		w.hear(t)
		if mb := p.memory(t); mb > watchMemory {
			t.Errorf("%s: the process has had %d MB", c.name, mb)
		}
		full := p.burden(t)
		w.close()
		until(t, "what "+c.name+" watches have taken is given back", func() error {
			now := p.burden(t)
			if now.watches > before.watches+10 || now.goroutines > before.goroutines+200 || now.files > before.files+50 {
				return fmt.Errorf("before: %+v, now: %+v", before, now)
			}
			return nil
		})
		t.Logf("%d watches, %s: %d MB, at most %d, %d after, on %.0f file descriptors; %d were to come again",
			c.watches, c.name, full.megabytes, p.memory(t), p.burden(t).megabytes, full.files-before.files, w.again)
	}
}

// burden is what the process has of what watches take.
type burden struct {
	watches, goroutines, files float64
	megabytes                  int
}

func (p *plane) burden(t *testing.T) burden {
	t.Helper()
	text, err := p.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var h burden
	for line := range bytes.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		into := map[string]*float64{"go_goroutines": &h.goroutines, "process_open_fds": &h.files}[name]
		if strings.HasPrefix(name, "apiserver_longrunning_requests{") && strings.Contains(name, `verb="WATCH"`) {
			into = &h.watches
			value = value[strings.LastIndexByte(value, ' ')+1:]
		}
		n, err := strconv.ParseFloat(value, 64)
		if into != nil && err == nil {
			*into += n
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(status, []byte("VmRSS:"))
	kb, err := strconv.Atoi(string(bytes.Fields(rest)[0]))
	if err != nil {
		t.Fatal(err)
	}
	h.megabytes = kb / 1000
	return h
}

// watchers are the watches of one client.
type watchers struct {
	*plane

	name   string
	kind   string
	served chan struct{} // one for each watch that has heard of the object
	stop   context.CancelFunc
	group  sync.WaitGroup
	client *http.Client

	mu     sync.Mutex
	failed error
	again  int
}

// open opens watches and waits until the server has answered each.
func (w *watchers) open(t *testing.T, n int, shared bool) {
	t.Helper()
	config, err := rest.TLSConfigFor(w.config)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: shared}
	if !shared {
		config.NextProtos = nil
		transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	w.client = &http.Client{Transport: transport}
	ctx, stop := context.WithCancel(t.Context())
	w.stop = stop
	t.Cleanup(w.close)
	opened := make(chan struct{}, n)
	turns := make(chan struct{}, 64) // so many ask at a time, as one who means harm would
	for range n {
		w.group.Go(func() {
			if err := w.watch(ctx, turns, opened); err != nil && ctx.Err() == nil {
				w.mu.Lock()
				w.failed = errors.Join(w.failed, err)
				w.mu.Unlock()
				stop()
			}
		})
	}
	w.await(t, ctx, opened, n, "answered")
}

// await waits until something was so often. On a busy machine all of it takes long: what counts is that it goes on.
func (w *watchers) await(t *testing.T, ctx context.Context, what <-chan struct{}, n int, name string) {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	for i := range n {
		select {
		case <-what:
			late.Reset(patience)
		case <-late.C:
			t.Fatalf("%s: %d of %d watches are %s, and no other for %s", w.name, i, n, name, patience)
		case <-ctx.Done():
			w.mu.Lock()
			defer w.mu.Unlock()
			t.Fatalf("%s: %d of %d watches are %s: %v", w.name, i, n, name, w.failed)
		}
	}
}

// watch is one watch: it is asked for until it is served, and then hears of one object.
func (w *watchers) watch(ctx context.Context, turns chan struct{}, opened chan<- struct{}) error {
	for {
		turns <- struct{}{}
		body, retry, err := w.ask(ctx)
		<-turns
		if err != nil {
			return err
		}
		if body != nil {
			opened <- struct{}{}
			defer body.Close()
			return w.listen(body)
		}
		w.mu.Lock()
		w.again++
		w.mu.Unlock()
		select {
		case <-time.After(retry): // as the server has asked for
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ask opens a watch. One that is to come again has no body.
func (w *watchers) ask(ctx context.Context) (io.ReadCloser, time.Duration, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.config.Host+w.path()+"?watch=true&fieldSelector=metadata.name="+w.name, nil)
	if err != nil {
		return nil, 0, err
	}
	answer, err := w.client.Do(r)
	if err != nil {
		return nil, 0, err
	}
	if answer.StatusCode == http.StatusOK {
		return answer.Body, 0, nil
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	seconds, missing := strconv.Atoi(answer.Header.Get("Retry-After"))
	if answer.StatusCode != http.StatusTooManyRequests || missing != nil {
		return nil, 0, errors.Join(fmt.Errorf("a watch is answered %s: %s", answer.Status, text), err)
	}
	return nil, time.Duration(seconds) * time.Second, nil
}

// path is of the kind that is watched.
func (w *watchers) path() string {
	return "/api/v1/namespaces/default/" + map[string]string{"ConfigMap": "configmaps", "Endpoints": "endpoints"}[w.kind]
}

// listen waits for the object.
func (w *watchers) listen(body io.Reader) error {
	lines := bufio.NewReaderSize(body, 1<<10)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("a watch has ended: %w", err)
	}
	if !bytes.Contains(line, []byte(`"ADDED"`)) || !bytes.Contains(line, []byte(w.name)) {
		return fmt.Errorf("a watch says %.300s", line)
	}
	w.served <- struct{}{}
	_, err = io.Copy(io.Discard, lines) // it stays open
	return err
}

// hear has something happen that all watches are told of.
func (w *watchers) hear(t *testing.T) {
	t.Helper()
	object := fmt.Sprintf(`{"apiVersion":"v1","kind":%q,"metadata":{"name":%q}}`, w.kind, w.name)
	if err := w.plane.client.CoreV1().RESTClient().Post().AbsPath(w.path()).Body([]byte(object)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	for i := range 50 { // others are served while thousands are told
		if _, err := w.plane.client.CoreV1().ConfigMaps(w.ns).Create(t.Context(), configMap(fmt.Sprint(w.name, "-", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.await(t, t.Context(), w.served, cap(w.served), "told")
}

// close has the client go.
func (w *watchers) close() {
	w.stop()
	w.group.Wait()
	w.client.CloseIdleConnections()
}
