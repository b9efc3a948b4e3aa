// Package api serves the agent's API: what its pods are and say, a way into them, and what the agent knows of itself.
// The paths are kubelet's where kubelet has one, and an API server's for what is added to a pod. Else it reads, and
// what it makes happen is in a pod's own process.
package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/stats"
)

// Feed is a set of objects that can be listed and followed. What it hands out is shared and must not be changed.
type Feed[T any] interface {
	List() []T
	// Subscribe begins a watch that what it returns goes on with, which must be called, once: it calls fn with ADDED
	// for each object there was, then with every change in order, until ctx ends or fn returns an error, which it
	// returns.
	Subscribe() func(ctx context.Context, fn func(watch.EventType, T) error) error
}

// Runtime is what the API asks of the container runtime.
type Runtime interface {
	ContainerStatus(context.Context, *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error)
	ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error)
	ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error)
	CheckpointContainer(
		context.Context, *runtimeapi.CheckpointContainerRequest,
	) (*runtimeapi.CheckpointContainerResponse, error)
	ExecSync(context.Context, *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error)
	Exec(context.Context, *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error)
	Attach(context.Context, *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error)
	PortForward(context.Context, *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error)
}

// Stats says what pods and the node use.
type Stats interface {
	Summary(ctx context.Context, onlyCPUAndMemory bool) (*stats.Summary, error)
}

// Problem is what is wrong with a manifest.
type Problem struct {
	File     string   `json:"file"`
	Pod      string   `json:"pod,omitempty"` // namespace/name, with the kind before it when it is no pod
	Errors   []string `json:"errors,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Kept are the pods, as namespace/name, that run on as the file had them before.
	Kept []string `json:"kept,omitempty"`
	Node string   `json:"node,omitempty"` // whose name ends the names of pods
	// Directory says that File is the directory of manifests, with which something is wrong as a whole.
	Directory bool `json:"directory,omitempty"`
	// UID is what events have for the UID of a pod that was refused. Others are of the pods in Kept, and of the node.
	UID types.UID `json:"uid,omitempty"`
}

// Node is what is shown of the node itself. What is nil is not served.
type Node struct {
	Configz func() any // /configz
	Cluster func() any // how the node and its API server stand to each other
}

// Config is what a [Server] shows. Pods, Events and Runtime are required.
type Config struct {
	Pods    Feed[*corev1.Pod]
	Events  Feed[*corev1.Event]
	Runtime Runtime

	// File returns the manifest that asks for a pod, "" when nothing does any more.
	File     func(types.NamespacedName) string
	Problems func() []Problem
	// Timing returns what the pod's last start was spent on; nil when that is not known.
	Timing  func(types.UID) *pod.Span
	Healthy func() error
	// Metrics are served at their paths: /metrics, /metrics/resource and so on.
	Metrics  map[string]prometheus.Gatherer
	Stats    Stats        // nil: /stats/summary is not served
	Shortage Shortage     // of memory and other things
	Images   http.Handler // serves /images
	Node     Node

	Volumes       Volumes   // nil: /volumes is not served
	Prune         Pruner    // nil: nothing is removed by hand
	Changes       Changes   // nil: nothing can be added to a pod
	Authority     Authority // signs certificates for the administrator; nil: none
	CheckpointDir string    // where checkpoints of containers go; "": /checkpoint is not served
	SystemLogs    string    // directory that /logs/ shows; "": it is not served
	Profiling     bool      // /debug/pprof is served
	Log           *slog.Logger
}

// Shortage is who tells what ended because the node, or a group, ran short of something.
type Shortage struct {
	Eviction Eviction // by the agent; nil: /eviction is not served
	Kills    Kills    // by the kernel; nil: /eviction/oom is not served
}

// Authority signs client certificates.
type Authority interface {
	SignClient(request []byte, lifetime time.Duration) ([]byte, error)
	Bundle() []byte
}

// Server has the API's handlers.
type Server struct {
	cfg  Config
	log  *slog.Logger
	pods lookup
	full *Handler
}

// Access says which part of the API is served.
type Access int

const (
	// Full is everything, for whoever is root on this machine.
	Full Access = iota
	// Network is what may be reached from elsewhere, by those who are allowed to.
	Network
	// NoDebugging is Network without what shows logs, reaches into pods, or changes anything.
	NoDebugging
	// ReadOnly is what kubelet's read-only port has.
	ReadOnly
	// Health is /healthz alone.
	Health
)

// ManifestHeader names the file that asks for the pod in an answer about one pod.
const ManifestHeader = "Berth-Manifest"

// New returns the API as a whole.
func New(c Config) *Server {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: c, log: c.Log, pods: lookup{c.Pods}}
	s.full = s.Handler(Full)
	return s
}

// handler answers a request, or returns why it cannot.
type handler func(http.ResponseWriter, *http.Request) error

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.full.ServeHTTP(w, r) }

// failure is an error with the HTTP status that it is answered with.
type failure struct {
	code   int
	reason metav1.StatusReason
	msg    string
}

func (f *failure) Error() string { return f.msg }

func notFound(format string, a ...any) error {
	return &failure{http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf(format, a...)}
}

// NotFound is err as that of something that is not there, for parts of the node that the API asks.
func NotFound(err error) error { return notFound("%v", err) }

func badRequest(format string, a ...any) error {
	return &failure{http.StatusBadRequest, metav1.StatusReasonBadRequest, fmt.Sprintf(format, a...)}
}

// answer turns a handler's error into a metav1.Status, unless the answer has begun: then it can only be cut off.
func (s *Server) answer(h func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		w := &response{ResponseWriter: rw}
		err := h(w, r)
		if err == nil || r.Context().Err() != nil {
			return
		}
		if w.begun {
			s.log.Warn("answer cut off", "path", r.URL.Path, "error", err)
			panic(http.ErrAbortHandler) //nolint:forbidigo // how net/http is told to cut the connection
		}
		f := &failure{http.StatusInternalServerError, metav1.StatusReasonInternalError, err.Error()}
		if said, ok := errors.AsType[*apierrors.StatusError](err); ok {
			f = &failure{int(said.ErrStatus.Code), said.ErrStatus.Reason, said.ErrStatus.Message}
		} else if !errors.As(err, &f) {
			s.log.Warn("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(f.code)
		// A client that is gone needs no answer.
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusFailure, Message: f.msg, Reason: f.reason, Code: int32(f.code),
		})
	}
}

// response knows whether the answer has begun.
type response struct {
	http.ResponseWriter
	begun bool
}

func (r *response) WriteHeader(code int) {
	r.begun = true
	r.ResponseWriter.WriteHeader(code)
}

func (r *response) Write(b []byte) (int, error) {
	r.begun = true
	return r.ResponseWriter.Write(b)
}

// Flush sends what was written so far.
func (r *response) Flush() {
	r.begun = true
	// A connection that cannot be flushed shows at the next write.
	_ = http.NewResponseController(r.ResponseWriter).Flush()
}

// Hijack hands over the connection, to libraries that know of no http.ResponseController.
func (r *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	r.begun = true
	return http.NewResponseController(r.ResponseWriter).Hijack()
}

// Unwrap lets http.ResponseController reach the connection.
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (s *Server) summary(w http.ResponseWriter, r *http.Request) error {
	sum, err := s.cfg.Stats.Summary(r.Context(), wants(r, "only_cpu_and_memory"))
	if err != nil {
		return err
	}
	return writeJSON(w, sum)
}

func (s *Server) configz(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, map[string]any{"kubeletconfig": s.cfg.Node.Configz()})
}
