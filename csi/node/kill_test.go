package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/csi"
)

// What the tests tell the process that is killed.
const (
	envRoot   = "BERTH_TEST_CSI_ROOT"
	envSocket = "BERTH_TEST_CSI_SOCKET"
	envDo     = "BERTH_TEST_CSI_DO"
	envStep   = "BERTH_TEST_CSI_STEP"
)

func TestMain(m *testing.M) {
	if os.Getenv(envRoot) != "" {
		if err := killed(context.Background()); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// killed is an agent that is killed at a step, or does what it is to do.
func killed(ctx context.Context) error {
	drivers := csi.NewDrivers(csi.Config{})
	err := drivers.Register(ctx, csi.Registration{Name: driverName, Endpoint: os.Getenv(envSocket), Versions: []string{"1.0.0"}})
	if err != nil {
		return err
	}
	m, err := New(Config{Root: os.Getenv(envRoot), Drivers: drivers})
	if err != nil {
		return err
	}
	left, err := strconv.Atoi(os.Getenv(envStep))
	if err != nil {
		return err
	}
	m.step = func(string) {
		if left == 0 {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
		left--
	}
	m.ledger.journal.records.Hear(m.step)
	h := &house{root: m.ledger.layout.root}
	switch os.Getenv(envDo) {
	case "publish":
		_, err = m.Publish(ctx, h.request("a", "v"))
	case "release":
		err = m.Release(ctx, h.podDir("a"))
	case "grow": // as the pod gets it
		_, err = m.Publish(ctx, h.grown("a", "v"))
	case "held":
		_, err = m.Expand(ctx, Expansion{Driver: driverName, Handle: "v", Name: "pv-v", Bytes: 100, Held: true})
	case "expand":
		_, err = m.Expand(ctx, Expansion{Driver: driverName, Handle: "v", Name: "pv-v", Bytes: 100})
	}
	return err
}

// kill runs an agent that is killed at a step; false: it has come to its end before.
func (h *house) kill(do string, step int) bool {
	h.t.Helper()
	c := exec.CommandContext(h.t.Context(), os.Args[0])
	c.Env = append(os.Environ(), envRoot+"="+h.root, envSocket+"="+h.driver.socket, envDo+"="+do, envStep+"="+strconv.Itoa(step))
	out, err := c.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && (!errors.As(err, &exit) || exit.ProcessState.ExitCode() >= 0) {
		h.t.Fatalf("%s: %v: %s", do, err, out)
	}
	return err != nil
}

// TestKilled kills the agent at each step of what it does, and starts another one, which goes on, or undoes it all.
func TestKilled(t *testing.T) {
	all := func(d *dirDriver) {
		d.ctrl = []spec.ControllerServiceCapability_RPC_Type{spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
	}
	stride := 1
	if testing.Short() {
		stride = 3
	}
	for _, do := range []string{"publish", "expand", "release", "grow", "held"} {
		for _, then := range []string{"release", "publish", "reboot"} {
			for step, more := 0, true; more && !t.Failed(); step += stride {
				t.Run(fmt.Sprintf("%s %d %s", do, step, then), func(t *testing.T) {
					h := newHouse(t, all)
					h.Close()
					h.volume("v")
					if do != "publish" && do != "grow" {
						h.kill("publish", 1000)
					}
					if more = h.kill(do, step); !more {
						t.Log("it has no more steps")
					}
					boot := ""
					if then == "reboot" {
						h.unmountAll()
						boot = "another"
					}
					h.open(boot)
					if p := h.Problems(); len(p) > 0 {
						t.Error(p)
					}
					h.told()
					if then == "publish" {
						r := h.request("a", "v")
						if do == "grow" {
							r = h.grown("a", "v")
						}
						path := h.publish(r)
						if b, err := os.ReadFile(path + "/precious"); string(b) != "data" {
							t.Errorf("the pod reads %q, %v", b, err)
						}
						if s := h.List(); len(s) != 1 || !s[0].Staged || !s[0].Attached || !s[0].Uses[0].Published || s[0].ExpansionDue != 0 {
							t.Errorf("there is %+v", s)
						}
					}
					must(t, h.Release(t.Context(), h.podDir("a")))
					if do == "expand" {
						_, err := h.Expand(t.Context(), Expansion{Driver: driverName, Handle: "v"})
						must(t, err)
					}
					h.nothing()
				})
			}
		}
	}
}

// told wants the check to find something when a volume is neither wholly there nor wholly gone, and nothing otherwise.
func (h *house) told() {
	h.t.Helper()
	found, err := h.Check(h.t.Context())
	must(h.t, err)
	all := h.List()
	mounts, err := mountPoints()
	must(h.t, err)
	whole := len(all) == 1 && all[0].Staged && all[0].Attached && all[0].ExpansionDue == 0 && len(all[0].Uses) == 1 && all[0].Uses[0].Published
	gone := len(all) == 0 && len(mountsIn(mounts, h.root)) == 0 && len(h.ledger.layout.begun()) == 0 && len(h.driver.attached) == 0
	if half := !whole && !gone; half != (len(found) > 0) {
		h.t.Errorf("whole %t, gone %t: found %+v of %+v", whole, gone, found, all)
	}
}

// TestCrash has the driver end before or after the effect of each call, and come again on its socket.
func TestCrash(t *testing.T) {
	for _, method := range []string{
		"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume",
	} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %t", method, after), func(t *testing.T) {
				h := newHouse(t, func(d *dirDriver) {
					d.ctrl = []spec.ControllerServiceCapability_RPC_Type{spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
				})
				h.volume("v")
				came, went := make(chan bool, 100), false
				defer h.drivers.Subscribe(func(e csi.Event) { came <- e.Here })()
				crash := func(ctx context.Context, m string) error {
					if m != method || went {
						return nil
					}
					went = true
					return h.driver.crash(ctx)
				}
				if after {
					h.driver.fail(nil, crash)
				} else {
					h.driver.fail(crash, nil)
				}
				_, err := h.Publish(t.Context(), h.request("a", "v"))
				if err == nil {
					err = h.Release(t.Context(), h.podDir("a"))
				}
				if err == nil || csi.Final(err) {
					t.Fatalf("error is %v", err)
				}
				if here := <-came; here {
					t.Error("the driver is not known to be gone")
				}
				h.driver.start()
				for here := range came {
					if here {
						break
					}
				}
				h.publish(h.request("a", "v")) // at once: the driver has come
				must(t, h.Release(t.Context(), h.podDir("a")))
				h.nothing()
			})
		}
	}
}

// TestPowerCut has the power go after a volume was given to a pod, and the disk have nothing of its record but the
// journal: the next agent knows what is to be undone.
func TestPowerCut(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"lost": os.Remove, "empty": func(path string) error { return os.Truncate(path, 0) },
		"half": func(path string) error { return os.Truncate(path, 40) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, func(d *dirDriver) {
				d.ctrl = []spec.ControllerServiceCapability_RPC_Type{spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
			})
			h.volume("v")
			h.publish(h.request("a", "v"))
			h.Close()
			must(t, lose(h.recordPath("v")))
			// What else the disk need not have.
			for _, p := range []string{h.podDir("a") + "/volumes", h.root + "/plugins"} {
				h.unmountAll()
				must(t, os.RemoveAll(p))
			}
			h.open("another")
			if p := h.Problems(); len(p) > 0 {
				t.Error(p)
			}
			if s := h.List(); len(s) != 1 || len(s[0].Uses) != 1 || s[0].Handle != "v" {
				t.Fatalf("there is %+v", s)
			}
			must(t, h.Release(t.Context(), h.podDir("a")))
			h.nothing()
		})
	}
}
