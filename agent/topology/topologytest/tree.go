// Package topologytest gives tests the trees of other machines: what Linux says in sysfs on machines with several
// sockets, captured file by file.
package topologytest

import (
	"embed"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-node/berth/agent/topology"
)

//go:embed testdata
var captured embed.FS

// Tree unpacks a captured machine into a directory, which is then its root:
//
//   - two-sockets: 2 sockets, each a NUMA node, of 4 cores with 2 threads; 2 MiB pages on both nodes
//   - split-cache: the same with 4 cores a socket, where every 2 cores have a last-level cache of their own
//   - two-nodes-a-socket: 2 sockets of 2 NUMA nodes each, with 4 single-threaded cores a node
//   - four-nodes: 4 sockets in a ring, each a NUMA node of 2 cores; CPU 5 is offline
func Tree(t testing.TB, name string) string {
	t.Helper()
	b, err := captured.ReadFile("testdata/" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for line := range strings.Lines(string(b)) {
		path, content, ok := strings.Cut(line, "\t")
		if !ok {
			t.Fatalf("%s: no file in line %q", name, line)
		}
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Machine reads a captured machine.
func Machine(t testing.TB, name string) *topology.Machine {
	t.Helper()
	m, err := topology.Read(Tree(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return m
}
