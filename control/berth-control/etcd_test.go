package main

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-node/berth/control/etcd"
	"github.com/berth-node/berth/internal/commandline"
)

// TestSilentServer asks a server that is stopped: the kernel takes connections for it, and nobody answers.
func TestSilentServer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "etcd.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := etcd.Connect(etcd.Servers{Endpoints: []string{etcd.Endpoint(socket)}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := answers(t.Context(), client, time.Millisecond); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("%v", err)
	}
}

func TestPodNamed(t *testing.T) {
	for arg, want := range map[string]string{"web": "n/web", "pod/web": "n/web", "pods/web": "n/web", "x/web": "x/web"} {
		ns, name, err := podNamed("n", arg)
		if err != nil || ns+"/"+name != want {
			t.Errorf("%s: %s/%s, %v", arg, ns, name, err)
		}
	}
}

// TestRestoreIntoForeignDirectory refuses one that has other things in it, and leaves it as it is.
func TestRestoreIntoForeignDirectory(t *testing.T) {
	for want, files := range map[string][]string{
		"passwd": {"passwd", "lost+found/x"},
		"":       {"lost+found/x", "snapshot.db"},
		"none":   {},
		"own":    {"passwd", "etcd/member/x"},
		"own pki": {
			"passwd", "pki/ca.pem",
		},
		"pki": {"pki/tls/cert.pem"},
	} {
		dir := t.TempDir()
		for _, f := range files {
			f = filepath.Join(dir, f)
			if err := os.MkdirAll(filepath.Dir(f), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(f, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		before, _ := os.ReadDir(dir)
		_, err := execute("--data-dir", dir, "etcd", "restore", filepath.Join(dir, "snapshot.db"))
		after, _ := os.ReadDir(dir)
		refused := want == "passwd" || want == "pki"
		switch {
		case refused && (exitCode(err) != commandline.ExitUsage || !strings.Contains(err.Error(), want) || len(after) != len(before)):
			t.Errorf("%q: %v, and there are %v", files, err, after)
		case !refused && (err == nil || exitCode(err) != commandline.ExitFailure):
			t.Errorf("%q: %v", files, err) // there is no good snapshot
		}
	}
}
