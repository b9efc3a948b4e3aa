package api

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/pprof"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// healthCheck is one part of /healthz.
type healthCheck struct {
	name  string
	check func() error
}

// health are the routes that say whether the agent is well: as a whole and part by part.
func (s *Server) health() map[string]handler {
	checks := []healthCheck{
		{"ping", func() error { return nil }},
		{"log", func() error { return nil }}, // kubelet's looks whether its log is flushed; this one is not buffered
		{"syncloop", func() error {
			if s.cfg.Healthy == nil {
				return nil
			}
			return s.cfg.Healthy()
		}},
	}
	all := func(w http.ResponseWriter, r *http.Request) error { return healthz(w, r, checks) }
	routes := map[string]handler{"GET /healthz": all, "GET /healthz/{$}": all}
	for _, c := range checks {
		routes["GET /healthz/"+c.name] = func(w http.ResponseWriter, _ *http.Request) error {
			if err := c.check(); err != nil {
				return unhealthy(err.Error())
			}
			_, err := io.WriteString(w, "ok")
			return err
		}
	}
	return routes
}

func unhealthy(message string) error {
	return &failure{http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, message}
}

func healthz(w http.ResponseWriter, r *http.Request, checks []healthCheck) error {
	var each bytes.Buffer
	var bad []string
	for _, c := range checks {
		if err := c.check(); err != nil {
			bad = append(bad, err.Error())
			fmt.Fprintf(&each, "[-]%s failed: %v\n", c.name, err)
			continue
		}
		fmt.Fprintf(&each, "[+]%s ok\n", c.name)
	}
	if len(bad) > 0 {
		return unhealthy(strings.Join(bad, "; "))
	}
	if _, verbose := r.URL.Query()["verbose"]; verbose {
		_, err := fmt.Fprintf(w, "%shealthz check passed\n", each.Bytes())
		return err
	}
	_, err := io.WriteString(w, "ok")
	return err
}

// systemLogs shows a directory of logs. Its root is opened so that no symbolic link leads out of it: pods that may
// write below it could otherwise have any file of the machine shown.
func (s *Server) systemLogs(w http.ResponseWriter, r *http.Request) error {
	root, err := os.OpenRoot(s.cfg.SystemLogs)
	if err != nil {
		return fmt.Errorf("open logs: %w", err)
	}
	defer root.Close()
	// They are what programs have written, for browsers too: no script in one acts as who reads it.
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Security-Policy", "sandbox")
	http.StripPrefix("/logs/", http.FileServerFS(logFiles{root})).ServeHTTP(w, r)
	return nil
}

// logFiles are the files and directories below a root, and nothing else: opening a FIFO would wait for ever for who
// writes to it, and a device may have no end.
type logFiles struct{ *os.Root }

// Open implements [fs.FS].
func (l logFiles) Open(name string) (fs.File, error) {
	f, err := l.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() && !st.IsDir() {
		err = &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// profiles are the profiles of the agent itself.
func profiles() map[string]http.Handler {
	return map[string]http.Handler{
		"GET /debug/pprof/":        http.HandlerFunc(pprof.Index),
		"GET /debug/pprof/cmdline": http.HandlerFunc(pprof.Cmdline),
		"GET /debug/pprof/profile": http.HandlerFunc(pprof.Profile),
		"GET /debug/pprof/symbol":  http.HandlerFunc(pprof.Symbol),
		"GET /debug/pprof/trace":   http.HandlerFunc(pprof.Trace),
	}
}

// maxRequest is more than a certificate request ever has.
const maxRequest = 64 << 10

// certificates are those of the administrator.
type certificates struct{ authority Authority }

// sign signs a certificate request of the administrator, who is whoever can open the socket.
func (c *certificates) sign(w http.ResponseWriter, r *http.Request) error {
	lifetime, err := time.ParseDuration(r.FormValue("ttl"))
	if err != nil {
		return badRequest("ttl: %q is not a duration", r.FormValue("ttl"))
	}
	request, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		return badRequest("read certificate request: %v", err)
	}
	cert, err := c.authority.SignClient(request, lifetime)
	if err != nil {
		return badRequest("%v", err)
	}
	w.Header().Set("Content-Type", "application/x-pem-file")
	_, err = w.Write(cert)
	return err
}

func (c *certificates) bundle(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/x-pem-file")
	_, err := w.Write(c.authority.Bundle())
	return err
}
