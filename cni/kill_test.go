package cni

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"
)

func churnConfig(dir string) Config {
	return Config{
		StateDir: dir + "/ipam", NetNSDir: dir + "/netns", CacheDir: dir + "/cache", RecordDir: dir + "/records",
		BridgeName: testBridge, PodCIDR: testCIDR,
	}
}

func churnPod(i int) Pod {
	return Pod{ID: fmt.Sprint("pod", i), Ports: []PortMapping{{HostPort: int32(8000 + i), ContainerPort: 80}}}
}

// churn is an agent whose pods come and go until it is killed.
func churn(dir string) {
	n, err := New(churnConfig(dir))
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	for i := range 6 {
		go func() {
			for {
				p := churnPod(i)
				var err error
				if p.NetNS, err = n.NewNamespace(p.ID); err == nil {
					if _, err = n.Setup(context.Background(), p); err == nil {
						if err = n.Teardown(context.Background(), p); err == nil {
							err = n.RemoveNamespace(p.ID)
						}
					}
				}
				if err != nil {
					fmt.Println(err)
				}
			}
		}()
	}
	select {}
}

// TestKill kills an agent at random moments: the next one sets the same pods up, or collects what is left of them.
func TestKill(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	n := open(t, churnConfig(dir))
	rounds := 30
	if testing.Short() {
		rounds = 5
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for round := range rounds {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "BERTH_TEST_CHURN="+dir)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		_, err = out.Read(make([]byte, 6)) // ready
		must(t, err)
		time.Sleep(time.Duration(rnd.IntN(40_000)) * time.Microsecond)
		must(t, cmd.Process.Kill())
		rest := make([]byte, 1000)
		if size, _ := out.Read(rest); size > 1 {
			t.Errorf("the agent said: %s", rest[:size])
		}
		_ = cmd.Wait() // killed

		n = reopen(t, n.conf)
		live := []string{}
		if round%2 == 0 {
			for i := range 6 {
				p := churnPod(i)
				live = append(live, p.ID)
				p.NetNS, err = n.NewNamespace(p.ID)
				must(t, err)
				_, err = n.Setup(t.Context(), p)
				must(t, err)
			}
		}
		must(t, n.Collect(t.Context(), live))
		eventually(t, "veth pairs are left", func() bool { return len(veths(t, testBridge)) == len(live) })
		ids, err := n.pins.list()
		must(t, err)
		if len(ids) != len(live) || len(addresses(t, n)) != len(live) || hostPorts(t, n) != len(live) {
			t.Fatalf("round %d: namespaces %v, addresses %v, %d ports; want %v", round, ids, addresses(t, n),
				hostPorts(t, n), live)
		}
	}
}
