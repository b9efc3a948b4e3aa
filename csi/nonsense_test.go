package csi

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// nonsense is a codec that reads nothing, and writes what nobody can read.
type nonsense struct{}

func (nonsense) Marshal(any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer("\xff\xff\xff\xff")}, nil
}
func (nonsense) Unmarshal(mem.BufferSlice, any) error { return nil }
func (nonsense) Name() string                         { return "proto" }

// serveHTTP serves something that is no driver.
func serveHTTP(t *testing.T, l net.Listener, answer http.HandlerFunc) {
	s := &http.Server{Handler: answer, Protocols: new(http.Protocols)}
	s.Protocols.SetUnencryptedHTTP2(true)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

// TestNonsense: of an answer that makes no sense nothing is known, neither that the call is over nor that it came to
// nothing, whatever the code that gRPC has for it.
func TestNonsense(t *testing.T) {
	answers := map[string]func(*testing.T, net.Listener){
		"no message": func(t *testing.T, l net.Listener) {
			s, ended := grpc.NewServer(grpc.ForceServerCodecV2(nonsense{})), make(chan error, 1)
			spec.RegisterNodeServer(s, &fake{t: t, stage: nil})
			go func() { ended <- s.Serve(l) }()
			t.Cleanup(func() { s.Stop(); must(t, <-ended) })
		},
	}
	for name, answer := range map[string]http.HandlerFunc{
		"another server":     http.NotFound,
		"who may not":        func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"text":               func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) },
		"no end":             func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "application/grpc") },
		"nothing":            grpcAnswer("0", ""),
		"two":                grpcAnswer("0", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
		"too long":           grpcAnswer("0", "\x00\x7f\xff\xff\xff"),
		"compressed somehow": grpcAnswer("0", "\x01\x00\x00\x00\x00"),
		"another format":     grpcAnswer("0", "\x07\x00\x00\x00\x00"),
		"no code":            grpcAnswer("x", ""),
		"broken off":         func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"long header": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		},
	} {
		answers[name] = func(t *testing.T, l net.Listener) { serveHTTP(t, l, answer) }
	}
	for name, serve := range answers {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "csi.sock")
			l, err := net.Listen("unix", socket)
			must(t, err)
			serve(t, l)
			c, err := newClient(example, socket, nil, newMetrics(), slog.New(slog.DiscardHandler))
			must(t, err)
			defer c.close()
			_, err = c.Node().NodeGetInfo(t.Context(), &spec.NodeGetInfoRequest{})
			t.Log(err)
			if err == nil || Final(err) || CodeOf(err) != codes.Unknown && CodeOf(err) != codes.Unavailable || len(err.Error()) > 2<<10 {
				t.Errorf("%v, final is %t", err, Final(err))
			}
		})
	}
}

// grpcAnswer is an answer by gRPC with a status and with what should be a message.
func grpcAnswer(code, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write([]byte(message))
		w.Header().Set("Grpc-Status", code)
	}
}

// TestCodesBeyond: a code that there is none of is that of an error of which nothing is known, and makes no series of
// metrics of its own.
func TestCodesBeyond(t *testing.T) {
	f := newFake(t, example).start()
	d := newDrivers(t)
	must(t, d.Register(t.Context(), f.registration()))
	driver, err := d.Get(example)
	must(t, err)
	for c := range codes.Code(40) {
		f.set(func() { f.nodeErr = status.Error(17+c, "no such code") })
		if _, err := driver.Client().Node().NodeGetInfo(t.Context(), &spec.NodeGetInfoRequest{}); CodeOf(err) != codes.Unknown {
			t.Errorf("%v", err)
		}
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(d.Collectors()...)
	families, err := registry.Gather()
	must(t, err)
	for _, m := range families[0].GetMetric() {
		for _, l := range m.GetLabel() {
			if strings.HasPrefix(l.GetValue(), "Code(") {
				t.Errorf("there is a series of %s", l.GetValue())
			}
		}
	}
}

// TestForget: why a driver is not registered is kept as long as its registrar is there.
func TestForget(t *testing.T) {
	f := newFake(t, example).start()
	d := newDrivers(t)
	r := f.registration()
	r.Versions = nil
	if err := d.Register(t.Context(), r); err == nil || len(d.Refused()) != 1 {
		t.Fatalf("%v, %v", err, d.Refused())
	}
	d.Forget("other", r.Endpoint)
	if len(d.Refused()) != 1 {
		t.Error("another one's is forgotten")
	}
	d.Forget(r.Name, r.Endpoint)
	if l := d.Refused(); len(l) > 0 {
		t.Errorf("refused are %v", l)
	}
	must(t, d.Register(t.Context(), f.registration()))
	d.Forget(r.Name, r.Endpoint)
	if _, err := d.Get(example); err != nil {
		t.Error(err)
	}
}

// TestEndlessCapabilities: a driver that says that it can do a hundred thousand things is asked for those that there
// are, and what it says is not kept.
func TestEndlessCapabilities(t *testing.T) {
	f := newFake(t, example).start()
	f.set(func() {
		f.caps = append(f.caps, spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
		for i := range 10_000 {
			f.caps = append(f.caps, spec.NodeServiceCapability_RPC_Type(1000+i), spec.NodeServiceCapability_RPC_Type(-i))
		}
	})
	d := newDrivers(t)
	must(t, d.Register(t.Context(), f.registration()))
	driver, err := d.Get(example)
	must(t, err)
	if n := len(driver.Capabilities()["node"]); n > maxKind || !driver.Node(spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		t.Errorf("it is kept that it can do %d things", n)
	}
}
